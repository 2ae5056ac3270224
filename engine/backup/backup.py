"""One pass over one run: what it wants elsewhere is hashed, sent, committed and proved, the most valuable first.

Only one process works on a run at a time (a lock in its folder). A pass may end anywhere; the next one reconciles the
ledger with what lies at the remote and goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from engine.backup import forecast, items, protect, verify
from engine.backup.items import RUN, Item, Source
from engine.backup.jobs import AuthNeeded, Job, Limits, remote_path
from engine.backup.ledger import MANIFESTS, FileRecord, Ledger
from engine.backup.policy import Policy
from engine.backup.progress import Progress
from engine.backup.rclone import Daemon, RcloneError
from engine.backup.remote import Remote
from engine.backup.transfer import Sender
from engine.errors import FtuiError
from engine.files import Lock, write_atomic
from engine.text import _
from engine.workspace import RunFolder, Workspace

PROVERS = 8
CHECK_TRIES = 5
T = TypeVar("T")
OLD_UPLOAD = "24h"  # of another machine: nothing of ours that is alive is older


@dataclass
class Outcome:
    """What a pass did. `ok`: everything wanted is proved at the level that the policy asks for."""

    ok: bool
    sent_bytes: int = 0
    sent_files: int = 0
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)


def run_lock(run: RunFolder) -> Lock:
    """The lock of whoever writes a run's ledgers; not yet taken."""
    folder = run.path / "backup"
    folder.mkdir(parents=True, exist_ok=True)
    return Lock(folder / ".lock")


class Pass:
    """One pass over one run; the caller holds the run's lock and gives a started daemon."""

    def __init__(
        self,
        workspace: Workspace,
        run: RunFolder,
        policy: Policy,
        daemon: Daemon,
        *,
        limits: Limits | None = None,
        on_progress: Callable[[Progress], None] | None = None,
        again: bool = False,
    ) -> None:
        self.workspace = workspace
        self.run = run
        self.policy = policy
        self.daemon = daemon
        self.limits = limits or Limits()
        self.folder = run.path / "backup"
        self.target = policy.to(run.name)
        self.on_progress = on_progress
        self.again = again
        self.problems: list[str] = []
        self._version = 0
        self._left: dict[str, int] = {}
        self._proving: dict[Future[verify.Result], tuple[Item, str]] = {}
        self._provers = ThreadPoolExecutor(PROVERS, "prove")

    def go(self) -> Outcome:
        """Do it.

        Raises:
            AuthNeeded: the credentials are refused; the ledger says so until they are renewed.
            FtuiError: the remote cannot be used, or nothing moves any more.
        """
        started = time.monotonic()
        self.ledger = Ledger(self.folder, self.policy.remote, write=True)
        self.progress = Progress(self.folder / "progress.json", self.policy.remote)
        sender = None
        try:
            self.items = items.wanted(self.run, self.policy, self.ledger, again=self.again, fresh=True)
            protect.update(self.run, self.policy, self.ledger, self.items)
            self.remote = Remote(self.daemon, self.target)
            there = self._reconcile()
            sender = self._sender(there)
            self._work(sender)
            protect.update(self.run, self.policy, self.ledger, self.items)
            seconds = time.monotonic() - started
            forecast.remember(self.workspace, self.policy.remote, sender.sent_bytes, seconds)
            ok = not self.problems and all(self.ledger.item(i.name).proved(self.policy.verify) for i in self.items)
            return Outcome(ok, sender.sent_bytes, self.progress.files_done, seconds, self.problems)
        except RcloneError as error:
            if error.cause == "auth":
                error = AuthNeeded(error.text, cause="auth", where=self.target)
            state = "AUTH_NEEDED" if error.cause == "auth" else "FAILED"
            for item in getattr(self, "items", []):
                if not self.ledger.item(item.name).safe:
                    self.ledger.side(item.name, state, error.text)  # type: ignore[arg-type]
            raise error from None
        finally:
            if sender is not None:
                sender.close()
            self._provers.shutdown(wait=True, cancel_futures=True)
            if hasattr(self, "remote"):
                self.remote.close()
            self.ledger.close()
            self.progress.end()

    def _reconcile(self) -> dict[str, int]:
        """Compare the ledger with what is there: what is gone or of another size has to be sent again."""
        there = self._patiently(self.remote.listing)
        for name, path, file in list(self.ledger.known()):
            if there.get(remote_path(name, path)) != file.size:
                self.ledger.lost(name, path, "not there")
        fresh = not any(item.started for item in self.ledger.items.values())
        for item in self.items:
            record = self.ledger.item(item.name)
            if record.side in ("AUTH_NEEDED", "STALLED", "FAILED", "SOURCE_CHANGED"):
                self.ledger.side(item.name, None)
            for path in set(record.files) - set(item.files) - set(MANIFESTS):
                self.ledger.pruned(item.name, path)  # it is not part of the item any more
            self.ledger.expects(item.name, len(item.files))
        age = "1s" if self.ledger.interrupted else OLD_UPLOAD if fresh else None
        if age:
            for folder in ("checkpoints", "adapters", "final", "data", "named"):
                self.remote.abort_uploads(folder, age)
        return there

    def _sender(self, there: dict[str, int]) -> Sender:
        sender = Sender(self.remote, self.ledger, self.progress, there, self._watched_limits())
        sender.arrived = lambda job: self._arrived(sender, job)
        jobs = [Job(item, name, source) for item in self.items for name, source in item.files.items()]
        order = {item.name: position for position, item in enumerate(self.items)}
        jobs.sort(key=lambda job: (job.source.value, order[job.item.name], job.source.size, job.name))
        for item in self.items:
            self._left[item.name] = len(item.files)
            self.progress.total += item.bytes
            self.progress.files_total += len(item.files)
        for job in jobs:
            sender.add(job)
        for item in self.items:
            if not item.files:
                self._commit(sender, item)
        return sender

    def _watched_limits(self) -> Limits:
        look = self.limits.look

        def watched() -> tuple[bool, float | None]:
            self._guard()
            paused, limit = look()
            both = [value for value in (limit, self.policy.limit) if value]
            return paused, min(both) if both else None

        return Limits(self.limits.stall_s, self.limits.renew_s, self.limits.give_up_s, watched)

    def _guard(self) -> None:
        """A long pass also protects the checkpoints that are sealed while it lasts; the next pass sends them."""
        try:
            version = self.run.checkpoints.stat().st_mtime_ns
        except OSError:
            return
        if version != self._version:
            self._version = version
            protect.update(self.run, self.policy, self.ledger, items.wanted(self.run, self.policy, self.ledger))

    def _work(self, sender: Sender) -> None:
        while not sender.idle or self._proving:
            if sender.idle:
                self.daemon.ensure()
                self.progress.doing = "verify"
                self.progress.look()
                self.progress.write()
                time.sleep(0.01)
            else:
                sender.step()
            self._proved()
            if self.on_progress:
                self.on_progress(self.progress)
        self.problems += [f"{broken.job.item.name}: {broken.reason}" for broken in sender.broken]

    def _arrived(self, sender: Sender, job: Job) -> None:
        item = job.item
        if job.name == item.manifest:
            if self.ledger.item(item.name).committed is None:
                self.ledger.committed(item.name)
            self._prove(item)
            return
        self._left[item.name] -= 1
        if self._left[item.name] == 0:
            self._commit(sender, item)

    def _commit(self, sender: Sender, item: Item) -> None:
        """All files are there: the manifest follows, as the mark that the item is whole."""
        record = self.ledger.item(item.name)
        path = item.sealed or self._made_manifest(item)
        source = Source(path, path.stat().st_size, items.REPORT)
        self.progress.total += source.size
        self.progress.files_total += 1
        if record.committed is None and (known := record.files.get(item.manifest)) is not None and known.uploaded:
            self.ledger.lost(item.name, item.manifest, "older than its files")
        sender.add(Job(item, item.manifest, source), first=True)

    def _made_manifest(self, item: Item) -> Path:
        import orjson

        known = self.ledger.item(item.name).files
        files: dict[str, Any] = {
            name: {"size": known[name].size, "sha256": known[name].sha256} for name in sorted(item.files)
        }
        if item.name == RUN:
            for name in items.CHANGING:
                if name in files and files[name]["size"] <= items.INLINE:
                    # it may be replaced there before the next BACKUP.json is: what belongs to this one stands in it
                    files[name]["content"] = item.files[name].path.read_text(encoding="utf-8", errors="replace")
        document = {"format": 1, **item.document, "files": files}
        data = orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS) + b"\n"
        path = self.folder / "manifests" / item.name / item.manifest
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_bytes() != data:
            write_atomic(path, data)
        return path

    # proving

    def _prove(self, item: Item) -> None:
        record = self.ledger.item(item.name)
        for name, file in record.files.items():
            if file.full or (file.verified and self.policy.verify != "full"):
                continue
            source = item.files.get(name)
            local = source.path if source else None
            future = self._provers.submit(self._checked, item.remote(name), file, local)
            self._proving[future] = (item, name)

    def _checked(self, path: str, record: FileRecord, local: Path | None) -> verify.Result:
        """One check, in a thread: a server that is away for a moment is asked again."""
        for tries in range(CHECK_TRIES):
            try:
                return verify.check(self.remote, path, record, local, level=self.policy.verify)
            except RcloneError as error:
                if error.cause not in ("busy", "network") or tries == CHECK_TRIES - 1:
                    raise
                time.sleep(2.0**tries)
        raise AssertionError

    def _patiently(self, call: Callable[[], T]) -> T:
        """Ask the server, again while it is away or overloaded: that shows as STALLED, and ends some time."""
        wait = 0.5
        while True:
            try:
                return call()
            except RcloneError as error:
                if error.cause not in ("busy", "network") or self.progress.still_s > self.limits.give_up_s:
                    raise
                self.progress.reason = error.text
                if self.progress.still_s > self.limits.stall_s:
                    self.progress.state = "STALLED"
                self.progress.write()
                if self.on_progress:
                    self.on_progress(self.progress)
                time.sleep(wait)
                wait = min(10.0, 2 * wait)
                self.daemon.ensure()

    def _proved(self) -> None:
        for future in [future for future in self._proving if future.done()]:
            item, name = self._proving.pop(future)
            try:
                result = future.result()
            except RcloneError as error:
                if error.cause == "auth":
                    raise
                self._doubt(item, name, error.text)
                continue
            if result.answer == "ok":
                self.ledger.verified(item.name, name, result.how)
                if not any(waiting.name == item.name for waiting, _name in self._proving.values()):
                    protect.update(self.run, self.policy, self.ledger, self.items)
            else:
                self.ledger.lost(item.name, name, result.answer)
                self._doubt(item, name, _("what arrived there is not what was sent"))

    def _doubt(self, item: Item, name: str, reason: str) -> None:
        text = f"{name}: {reason}"
        self.ledger.side(item.name, "FAILED", text)
        self.problems.append(f"{item.name}: {text}")


def busy(run: RunFolder) -> FtuiError:
    """Another process works on this run's backup."""
    return FtuiError(
        _("a backup of {run} runs already").format(run=run.name),
        where=str(run.path / "backup"),
        fix=_("`ftui backup status {run}` shows it").format(run=run.name),
        kind="backup_running",
    )
