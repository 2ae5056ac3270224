"""What is where, in what state: one journal per run and remote, appended before and after each step and made durable.

The states of an item (a checkpoint, the final model, the run's files) follow from its files; side states tell why it
does not get further. Whatever is killed when, the journal says no more than what was done.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from engine import journal
from engine.backup.hashing import Hashes, Stamp
from engine.files import write_atomic

State = Literal["SEALED", "HASHED", "UPLOADING", "UPLOADED", "VERIFIED_ETAG", "VERIFIED_FULL"]
Side = Literal["STALLED", "AUTH_NEEDED", "SOURCE_CHANGED", "FAILED"]
VERIFIED = ("VERIFIED_ETAG", "VERIFIED_FULL")
MANIFESTS = ("MANIFEST.json", "BACKUP.json")  # of a checkpoint or model, and of the run's own files
SYNC_S = 1.0
COMPACT_BYTES = 8 << 20


@dataclass
class FileRecord:
    """One file of an item: what it was when it was hashed, and how far it is at the remote."""

    size: int
    mtime_ns: int
    inode: int
    sha256: str
    part_size: int
    parts: int
    etag: str
    md5: str | None = None
    uploaded: float | None = None
    etag_seen: str | None = None
    verified: float | None = None
    full: float | None = None

    @property
    def stamp(self) -> Stamp:
        return Stamp(self.size, self.mtime_ns, self.inode)

    @classmethod
    def of(cls, hashes: Hashes) -> FileRecord:
        """A file that was just hashed."""
        stamp = hashes.stamp
        return cls(
            stamp.size,
            stamp.mtime_ns,
            stamp.inode,
            hashes.sha256,
            hashes.part_size,
            hashes.parts,
            hashes.etag,
            hashes.md5,
        )


@dataclass
class ItemRecord:
    """One item. `committed`: its manifest is there, so it is whole."""

    files: dict[str, FileRecord] = field(default_factory=dict)
    expected: int = 0  # files without the manifest
    started: bool = False
    committed: float | None = None
    side: Side | None = None
    reason: str | None = None
    gone: bool = False  # pruned from the remote

    @property
    def progress(self) -> State:
        """How far it got, whatever stopped it."""
        files = self.files.values()
        known = sum(name not in MANIFESTS for name in self.files)
        if self.committed and files and known >= self.expected:  # fewer: a line was damaged, and proves nothing
            if all(record.full for record in files):
                return "VERIFIED_FULL"
            if all(record.verified or record.full for record in files):
                return "VERIFIED_ETAG"
            return "UPLOADED"
        if self.started:
            return "UPLOADING"
        if self.expected and known >= self.expected:
            return "HASHED"
        return "SEALED"

    @property
    def state(self) -> str:
        """What to show: the side state where there is one, else the progress."""
        return self.side or self.progress

    @property
    def verified_at(self) -> float | None:
        """When the last of its files was proved; None while one is not."""
        if self.progress not in VERIFIED:
            return None
        return max(max(record.full or 0.0, record.verified or 0.0) for record in self.files.values())

    @property
    def safe(self) -> bool:
        """Whether it was proved to be there, by the cheap check or in full."""
        return self.progress in VERIFIED and self.side is None

    def proved(self, level: str) -> bool:
        """Whether it is proved at the level that a policy asks for (`etag` or `full`)."""
        return self.safe and (level != "full" or self.progress == "VERIFIED_FULL")


def file_name(remote: str) -> str:
    """The ledger's name for a remote: readable, and different for different remotes."""
    readable = re.sub(r"[^A-Za-z0-9]+", "-", remote).strip("-")[:40]
    return f"{readable}-{hashlib.sha256(remote.encode()).hexdigest()[:8]}.jsonl"


class Ledger:
    """The ledger of one run and one remote. Only the holder of the run's backup lock may write."""

    def __init__(self, folder: Path, remote: str, *, write: bool = False) -> None:
        self.path = folder / file_name(remote)
        self.remote = remote
        self.items: dict[str, ItemRecord] = {}
        self.interrupted = False  # files were on their way when the last writer ended
        self.by_sha: dict[str, set[tuple[str, str]]] = {}
        self._flying: set[tuple[str, str]] = set()
        lines = 0
        for event in journal.JournalReader(self.path).all():
            self._apply(event)
            lines += 1
        self.interrupted = bool(self._flying)
        self._writer: journal.JournalWriter | None = None
        self._synced = time.monotonic()
        if write:
            self._open(lines)

    def _open(self, lines: int) -> None:
        folder = self.path.parent
        folder.mkdir(parents=True, exist_ok=True)
        if lines and self.path.stat().st_size > COMPACT_BYTES:
            self._compact()
        self._writer = journal.JournalWriter(self.path)
        if not lines:
            self._append("remote", format=1, remote=self.remote)

    def close(self) -> None:
        """Make everything durable and close the file."""
        if self._writer is not None:
            self._writer.sync()
            self._writer.close()
            self._writer = None

    def item(self, name: str) -> ItemRecord:
        """The record of an item; an empty one where nothing is known."""
        return self.items.setdefault(name, ItemRecord())

    def known(self) -> Iterator[tuple[str, str, FileRecord]]:
        """Every file that is at the remote, as far as is known: item, path, record."""
        for name, item in self.items.items():
            for path, record in item.files.items():
                if record.uploaded and not item.gone:
                    yield name, path, record

    # What happened; each appends one line and changes what is in memory the same way.

    def hashed(self, item: str, path: str, hashes: Hashes) -> None:
        """A file was read; if its content is another than before, it is not at the remote any more."""
        stamp = hashes.stamp
        self._append(
            "hashed",
            item=item,
            file=path,
            size=stamp.size,
            mtime_ns=stamp.mtime_ns,
            inode=stamp.inode,
            sha256=hashes.sha256,
            part_size=hashes.part_size,
            parts=hashes.parts,
            etag=hashes.etag,
            md5=hashes.md5,
        )

    def expects(self, item: str, files: int) -> None:
        """How many files the item has, without the manifest."""
        if self.item(item).expected != files:
            self._append("item", item=item, files=files)

    def sending(self, item: str, path: str) -> None:
        """A file is about to go up: durable before it does, so that what a kill leaves there is known as ours."""
        self._append("sending", item=item, file=path)
        self.sync(now=True)

    def uploaded(self, item: str, path: str, etag: str | None, how: str = "sent") -> None:
        """A file is at the remote (`how`: sent, copied there, found there)."""
        self._append("uploaded", item=item, file=path, etag=etag, how=how)
        self.sync()

    def lost(self, item: str, path: str, why: str) -> None:
        """A file is not (or not rightly) at the remote, whatever was known."""
        self._append("lost", item=item, file=path, why=why)

    def committed(self, item: str) -> None:
        """The item's manifest is there."""
        self._append("committed", item=item)
        self.sync(now=True)

    def verified(self, item: str, path: str, how: Literal["etag", "full"]) -> None:
        """A file was proved to be right at the remote."""
        self._append("verified", item=item, file=path, how=how)
        self.sync()

    def side(self, item: str, state: Side | None, reason: str | None = None) -> None:
        """Why an item does not get further; None: it does again."""
        record = self.item(item)
        if (record.side, record.reason) != (state, reason):
            self._append("side", item=item, state=state, reason=reason)
            self.sync(now=True)

    def pruned(self, item: str, path: str | None = None) -> None:
        """An item, or one file of it, was removed from the remote as asked."""
        self._append("pruned", item=item, file=path)
        self.sync(now=True)

    def sync(self, *, now: bool = False) -> None:
        """Make the lines durable; without `now` at most once a second."""
        assert self._writer is not None
        if now or time.monotonic() - self._synced > SYNC_S:
            self._writer.sync()
            self._synced = time.monotonic()

    def _append(self, event: str, **fields: Any) -> None:
        assert self._writer is not None, "opened for reading"
        self._writer.append(event, **fields)
        self._apply({"event": event, "time": time.time(), **fields})

    def _apply(self, event: dict[str, Any]) -> None:
        try:
            self._apply_known(event)
        except (KeyError, TypeError, ValueError):
            return  # a damaged line proves nothing

    def _apply_known(self, event: dict[str, Any]) -> None:
        kind, now = event["event"], float(event["time"])
        if kind == "remote":
            return
        item = self.item(str(event["item"]))
        path = str(event.get("file"))
        if kind == "hashed":
            if not all(type(event[key]) in kinds for key, kinds in _HASH_FIELDS.items()):
                return
            new = FileRecord(**{key: event[key] for key in _HASH_FIELDS})
            old = item.files.get(path)
            if old is not None and old.sha256 == new.sha256:
                new.uploaded, new.etag_seen, new.verified, new.full = (
                    old.uploaded,
                    old.etag_seen,
                    old.verified,
                    old.full,
                )
                new.md5 = new.md5 or old.md5
            elif path not in MANIFESTS:
                item.committed = None
            item.files[path] = new
            self.by_sha.setdefault(new.sha256, set()).add((str(event["item"]), path))
            item.gone = False
        elif kind == "item":
            item.expected = int(event["files"])
        elif kind == "sending":
            item.started = True
            item.gone = False
            self._flying.add((str(event["item"]), path))
        elif kind == "uploaded":
            item.started = True
            self._flying.discard((str(event["item"]), path))
            record = item.files[path]
            record.uploaded, record.etag_seen, record.verified, record.full = now, event.get("etag"), None, None
        elif kind == "verified":
            record = item.files[path]
            if event["how"] == "full":
                record.full = now
            record.verified = now
        elif kind == "lost":
            record = item.files[path]
            record.uploaded = record.verified = record.full = record.etag_seen = None
            item.committed = None
        elif kind == "committed":
            item.committed = now
        elif kind == "side":
            state, reason = event.get("state"), event.get("reason")
            item.side = state if state in get_args(Side) else None
            item.reason = reason if isinstance(reason, str) else None
        elif kind == "pruned":
            if event.get("file") is None:
                self.items[event["item"]] = ItemRecord(gone=True)
            else:
                item.files.pop(path, None)
                item.expected = max(0, item.expected - 1)

    def _compact(self) -> None:
        """Write the present state alone: a run's growing files are hashed again at each checkpoint."""
        import orjson

        lines: list[dict[str, Any]] = [{"event": "remote", "time": time.time(), "format": 1, "remote": self.remote}]
        for name, item in self.items.items():
            if item.gone:
                lines.append({"event": "pruned", "time": time.time(), "item": name, "file": None})
                continue
            lines.append({"event": "item", "time": time.time(), "item": name, "files": item.expected})
            for path, record in item.files.items():
                base = {"item": name, "file": path}
                lines.append(
                    {"event": "hashed", "time": time.time(), **base, **{k: getattr(record, k) for k in _HASH_FIELDS}}
                )
                if record.uploaded:
                    lines.append({"event": "uploaded", "time": record.uploaded, **base, "etag": record.etag_seen})
                if record.full:
                    lines.append({"event": "verified", "time": record.full, **base, "how": "full"})
                if record.verified and record.verified != record.full:
                    lines.append({"event": "verified", "time": record.verified, **base, "how": "etag"})
            if item.committed:
                lines.append({"event": "committed", "time": item.committed, "item": name})
            if item.side:
                lines.append(
                    {"event": "side", "time": time.time(), "item": name, "state": item.side, "reason": item.reason}
                )
        write_atomic(self.path, b"".join(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE) for line in lines))


_HASH_FIELDS: dict[str, tuple[type, ...]] = {
    "size": (int,), "mtime_ns": (int,), "inode": (int,), "sha256": (str,), "part_size": (int,), "parts": (int,),
    "etag": (str,), "md5": (str, type(None)),
}  # fmt: skip
