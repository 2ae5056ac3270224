"""Sending files: hashed while others go up, a few at a time, watched for stalls, each failure named.

Progress is counted in completed files of ours plus a bounded part of those on their way. A file that a killed process
was sending is sent again from its beginning; one that arrived is asked for and not sent again.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from engine.backup import hashing, verify
from engine.backup.jobs import AuthNeeded, Broken, Job, Limits, remote_path
from engine.backup.ledger import FileRecord, Ledger
from engine.backup.progress import Progress
from engine.backup.rclone import RcloneError
from engine.backup.remote import Remote
from engine.backup.wire import Wire
from engine.errors import FtuiError
from engine.text import _, duration

TRANSFERS = 4
AHEAD = 8  # files hashed before the uploads need them
TRIES = 6
LONGEST_WAIT_S = 30.0
SMALL_FILE = 16 * hashing.MIB
COPY_FROM = 64 * 1024  # a smaller file is sent faster than it is copied there


@dataclass
class Sender:
    """Sends the files of a pass. One use; from the main thread."""

    remote: Remote
    ledger: Ledger
    progress: Progress
    there: dict[str, int]
    limits: Limits = field(default_factory=Limits)
    arrived: Callable[[Job], None] = lambda _job: None  # a file is there
    broken: list[Broken] = field(default_factory=list)
    sent_bytes: int = 0

    def __post_init__(self) -> None:
        self._waiting: deque[Job] = deque()
        self._hashing: dict[Future[hashing.Hashes], Job] = {}
        self._asking: dict[Future[verify.Result], Job] = {}
        self._ready: deque[Job] = deque()
        self._flying: list[Job] = []
        self._count = 0
        self._wire = Wire()
        self._arrived = 0  # of the files in flight, by the kernel's count
        self._looked = 0.0
        self._limit: float | None = None
        self._paused = False
        self._renewed = time.monotonic()
        self._dropped: set[str] = set()
        self._hashers = ThreadPoolExecutor(1, "hash")
        self._askers = ThreadPoolExecutor(4, "ask")

    def add(self, job: Job, *, first: bool = False) -> None:
        """Queue a file."""
        (self._waiting.appendleft if first else self._waiting.append)(job)

    @property
    def idle(self) -> bool:
        """Whether nothing is left to do."""
        return not (self._waiting or self._hashing or self._asking or self._ready or self._flying)

    def step(self) -> None:
        """Move everything on, then sleep for a moment.

        Raises:
            AuthNeeded: the credentials are refused.
            FtuiError: no byte moved for too long, or the remote cannot be written to at all.
        """
        self._look()
        self._hash()
        self._ask()
        if not self._paused:
            self._launch()
        self._poll()
        small = all(job.source.size < SMALL_FILE for job in self._flying)
        time.sleep(0.004 if (self._flying and small) else 0.05 if self._flying else 0.01)

    def close(self) -> None:
        """End what is on its way."""
        for job in self._flying:
            if job.number is not None:
                self.remote.stop_job(job.number)
        self._flying.clear()
        self._hashers.shutdown(wait=True, cancel_futures=True)
        self._askers.shutdown(wait=True, cancel_futures=True)

    # hashing

    def _hash(self) -> None:
        while self._waiting and len(self._hashing) + len(self._ready) < AHEAD:
            job = self._waiting.popleft()
            if job.item.name in self._dropped:
                self._forget(job)
                continue
            record = self._record(job)
            try:
                known = record is not None and (
                    record.stamp == hashing.Stamp.of(job.source.path)
                    # what is there is what the manifest wants: damage here, later, does not matter to it
                    or (record.uploaded is not None and record.sha256 == job.source.sha256)
                )
            except OSError as error:
                self._break(job, "SOURCE_CHANGED", _reason(error))
                continue
            if known and record is not None and record.sha256 == (job.source.sha256 or record.sha256):
                self._decide(job, record)
            else:
                self._hashing[self._hashers.submit(hashing.hash_file, job.source.path)] = job
        for future in [future for future in self._hashing if future.done()]:
            job = self._hashing.pop(future)
            self.progress.moved()
            try:
                hashes = future.result()
            except hashing.Changed:
                self._retry_changed(job)
                continue
            except OSError as error:
                self._break(job, "SOURCE_CHANGED", _reason(error))
                continue
            if job.source.sha256 is not None and hashes.sha256 != job.source.sha256:
                self._break(job, "SOURCE_CHANGED", _("it is not what its MANIFEST.json says: the copy here is damaged"))
                continue
            self.ledger.hashed(*job.key, hashes)
            record = self._record(job)
            assert record is not None
            self._decide(job, record)

    def _retry_changed(self, job: Job) -> None:
        job.tries += 1
        if job.source.sha256 is not None or job.tries >= TRIES:
            self._break(job, "SOURCE_CHANGED", _("it is being written to"))
        else:
            self.add(job)

    def _decide(self, job: Job, record: FileRecord) -> None:
        """Is it there already, is a copy of it there, or must it be sent?"""
        size = self.there.get(job.item.remote(job.name))
        if record.uploaded and size == record.size:
            self._done(job, None, "known")
        elif size == record.size and not job.tries:
            future = self._askers.submit(verify.cheap, self.remote, job.item.remote(job.name), record, job.source.path)
            self._asking[future] = job
        else:
            self._ready.append(job)

    def _ask(self) -> None:
        for future in [future for future in self._asking if future.done()]:
            job = self._asking.pop(future)
            try:
                result = future.result()
            except RcloneError:
                result = verify.Result("unknown", "etag")
            if result.answer == "ok":
                self._done(job, result.etag, "found")
            else:
                self._ready.append(job)

    # sending

    def _launch(self) -> None:
        now = time.monotonic()
        for _attempt in range(len(self._ready)):
            if len(self._flying) >= TRANSFERS:
                return
            job = self._ready.popleft()
            if job.item.name in self._dropped:
                self._forget(job)
            elif job.not_before > now:
                self._ready.append(job)
            else:
                self._start(job)

    def _start(self, job: Job) -> None:
        record = self._record(job)
        assert record is not None
        twin = self._twin(job, record)
        self._count += 1
        job.group, job.bytes, job.copied = f"ftui-{self._count}", 0, twin is not None
        self.ledger.sending(*job.key)
        target = self.remote.fs(record.size)
        source = (target, twin) if twin is not None else (str(job.source.path.parent), job.source.path.name)
        try:
            answer = self.remote.daemon.call(
                "operations/copyfile",
                srcFs=source[0],
                srcRemote=source[1],
                dstFs=target,
                dstRemote=job.item.remote(job.name),
                _async=True,
                _group=job.group,
                _config={"IgnoreTimes": True},  # same size and time do not mean same content
            )
        except RcloneError as error:
            self._failed(job, error)
            return
        job.number = int(answer["jobid"])
        self._flying.append(job)

    def _twin(self, job: Job, record: FileRecord) -> str | None:
        """Where the same content lies at the remote already, proved; the server copies it then."""
        if record.size < COPY_FROM or job.tries:
            return None
        for item, name in self.ledger.by_sha.get(record.sha256, ()):
            other = self.ledger.item(item).files.get(name)
            if other is None or (item, name) == job.key or other.sha256 != record.sha256 or not other.uploaded:
                continue
            if self.there.get(remote_path(item, name)) == record.size:
                return remote_path(item, name)
        return None

    def _poll(self) -> None:
        for job in list(self._flying):
            try:
                status = self.remote.daemon.call("job/status", jobid=job.number)
            except RcloneError as error:
                if not self.remote.daemon.alive():
                    self._restart()
                    return
                if error.cause == "network":
                    continue  # it did not answer in time
                status = {"finished": True, "success": False, "error": error.text}
            if not status.get("finished"):
                continue
            self._flying.remove(job)
            self._arrived = max(0, self._arrived - job.source.size)
            if status.get("success"):
                self._landed(job)
            else:
                self._failed(job, RcloneError(str(status.get("error"))))

    def _landed(self, job: Job) -> None:
        record = self._record(job)
        assert record is not None
        if not job.copied:
            try:
                same = hashing.Stamp.of(job.source.path) == record.stamp
            except OSError as error:
                self._break(job, "SOURCE_CHANGED", _reason(error))
                return
            if not same:  # what arrived may be half of each
                job.tries += 1
                self.add(job, first=True)
                return
            self.sent_bytes += record.size
        self.there[job.item.remote(job.name)] = record.size
        self._done(job, None, "copied" if job.copied else "sent")

    def _done(self, job: Job, etag: str | None, how: str) -> None:
        if how != "known":
            self.ledger.uploaded(*job.key, etag, how)
        self.progress.done += job.source.size
        self.progress.files_done += 1
        self.progress.flying[job.item.name] = self.progress.flying.get(job.item.name, 0) + job.source.size
        self.progress.moved()
        self.progress.reason = None
        self._clear_stall(job.item.name)
        self.arrived(job)

    def _failed(self, job: Job, error: RcloneError) -> None:
        job.number = None
        if error.cause == "auth":
            better = verify.explain(error, self.remote)
            raise AuthNeeded(better.text, cause="auth", where=self.remote.path) from None
        if error.cause == "no_bucket" or error.cause == "quota":
            raise RcloneError(error.text, cause=error.cause, where=self.remote.path)
        if not job.source.path.exists():
            self._break(job, "SOURCE_CHANGED", _("it was removed here"))
            return
        job.tries += 1
        if error.cause in ("other", "missing") and job.tries >= TRIES:
            self._break(job, "FAILED", error.text)
            return
        job.not_before = time.monotonic() + min(LONGEST_WAIT_S, 0.5 * 2.0 ** min(job.tries, 8))
        self.progress.reason = error.text
        self._ready.append(job)

    def _restart(self) -> None:
        """rclone was killed: what it had in flight is sent again, what it left half done there is thrown away."""
        self.remote.daemon.ensure()
        for folder in {job.item.folder for job in self._flying if job.item.folder}:
            self.remote.abort_uploads(folder, "1s")
        for job in self._flying:
            job.number = None
            self._ready.appendleft(job)
        self._flying.clear()
        self._limit = None

    # watching

    def _look(self) -> None:
        now = time.monotonic()
        if now - self._looked < 0.5:
            return
        self._looked = now
        if not self.remote.daemon.alive():
            self._restart()
        self.progress.in_flight = self._in_flight()
        self.progress.doing = "upload" if self._flying or self._ready else "hash"
        self.progress.item = self._flying[0].item.name if self._flying else self.progress.item
        paused, limit = self.limits.look()
        self._obey(paused, limit)
        self.progress.look()
        self._watchdog(now)
        self.progress.write()

    def _in_flight(self) -> int:
        """Bytes of unfinished files that are through: what rclone read of them, and no more than what arrived there."""
        if not self._flying:
            self._arrived = 0
            return 0
        try:
            stats = self.remote.daemon.call("core/stats", timeout=5.0)
        except RcloneError:
            return sum(job.bytes for job in self._flying)
        seen = {str(entry.get("group")): int(entry.get("bytes") or 0) for entry in stats.get("transferring") or []}
        for job in self._flying:
            # a part that is sent again counts once: never more than the file, never less than before
            job.bytes = max(job.bytes, min(seen.get(job.group, 0), job.source.size))
        read = sum(job.bytes for job in self._flying)
        pid = self.remote.daemon.pid
        moved = self._wire.moved(pid) if pid is not None and self.remote.name else None
        if moved is None:
            return read
        self._arrived = min(read, self._arrived + moved)
        return self._arrived

    def _obey(self, paused: bool, limit: float | None) -> None:
        if limit != self._limit:
            try:
                self.remote.daemon.call("core/bwlimit", rate=f"{int(limit)}B" if limit else "off")
                self._limit = self.progress.limit = limit
            except RcloneError:
                pass  # at the next look
        if paused and not self._paused:
            for job in self._flying:
                if job.number is not None:
                    self.remote.stop_job(job.number)
                job.number, job.bytes = None, 0
                self._ready.appendleft(job)
            self._flying.clear()
        self._paused = paused
        if paused:
            self.progress.state = "PAUSED"
            self.progress.moved()
        elif self.progress.state == "PAUSED":
            self.progress.state = None

    def _watchdog(self, now: float) -> None:
        still = self.progress.still_s
        if not (self._flying or self._ready) or still < self.limits.stall_s:
            if self.progress.state == "STALLED":
                self._clear_stall(None)
            return
        reason = _("no byte for {time}").format(time=duration(still))
        if self.progress.reason:
            reason += f": {self.progress.reason}"
        if self.progress.state != "STALLED":
            for name in {job.item.name for job in (*self._flying, *self._ready)}:
                self.ledger.side(name, "STALLED", reason)
        self.progress.state = "STALLED"
        if still > self.limits.give_up_s:
            raise FtuiError(
                _("the backup stands still: {reason}").format(reason=reason),
                where=self.remote.path,
                fix=_("check the network and the server; `ftui backup now` goes on from here"),
                kind="stalled",
            )
        if still > self.limits.renew_s and now - self._renewed > self.limits.renew_s:
            self._renewed = now
            for job in self._flying:
                if job.number is not None:
                    self.remote.stop_job(job.number)  # it fails, and is tried again

    def _clear_stall(self, item: str | None) -> None:
        if self.progress.state == "STALLED":
            self.progress.state = self.progress.reason = None
            for name, record in self.ledger.items.items():
                if record.side == "STALLED":
                    self.ledger.side(name, None)
        elif item is not None and self.ledger.item(item).side == "STALLED":
            self.ledger.side(item, None)

    def _break(self, job: Job, state: str, reason: str) -> None:
        self._dropped.add(job.item.name)
        self.broken.append(Broken(job, state, f"{job.name}: {reason}"))
        self.ledger.side(job.item.name, state, f"{job.name}: {reason}")  # type: ignore[arg-type]
        self._forget(job)

    def _forget(self, job: Job) -> None:
        """Count a file that will not be sent now as not to be sent."""
        self.progress.total -= job.source.size
        self.progress.files_total -= 1

    def _record(self, job: Job) -> FileRecord | None:
        return self.ledger.item(job.item.name).files.get(job.name)


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
