"""Is what lies at the remote what we have? The cheap check asks the server, the full one reads everything back."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from engine.backup import hashing
from engine.backup.ledger import FileRecord
from engine.backup.rclone import RcloneError
from engine.backup.remote import Remote, Seen

Answer = Literal["ok", "missing", "wrong", "unknown"]


@dataclass(frozen=True)
class Result:
    """What became of one file's check; `how` it was decided, `etag` as the server gave it."""

    answer: Answer
    how: Literal["etag", "full"]
    etag: str | None = None
    md5: str | None = None  # of the whole, where it had to be computed for the check
    detail: str = ""


def judge(record: FileRecord, seen: Seen, md5: str | None = None) -> Answer:
    """What the server's word is worth: `unknown` where it cannot be compared with what we know.

    An ETag may be that of the parts we sent, or the MD5 of the whole (a single part, a server-side copy, some servers).
    """
    if seen.size != record.size:
        return "wrong"
    if seen.value is None:
        return "unknown"
    if seen.form == "sha256":
        return "ok" if seen.value == record.sha256 else "wrong"
    md5 = md5 or record.md5
    value, _dash, parts = seen.value.lower().partition("-")
    if parts:
        if not parts.isdigit():
            return "unknown"
        if record.parts > 1:
            if int(parts) != record.parts:
                return "unknown"  # sent in parts of another size
            return "ok" if seen.value.lower() == record.etag else "wrong"
        if parts == "1" and md5:
            return "ok" if value == hashlib.md5(bytes.fromhex(md5), usedforsecurity=False).hexdigest() else "wrong"
        return "unknown"
    if len(value) != 32 or md5 is None:
        return "unknown"
    return "ok" if value == md5 else "wrong"


def cheap(remote: Remote, path: str, record: FileRecord, local: Path | None) -> Result:
    """Ask the server; read the file here once more only where the server gives the MD5 of the whole.

    Raises:
        RcloneError: the server does not answer.
    """
    seen = remote.see(path)
    if seen is None:
        return Result("missing", "etag")
    answer, md5 = judge(record, seen), None
    plain = seen.value is not None and len(seen.value) == 32 and seen.form in ("etag", "md5")
    if answer == "unknown" and plain and record.md5 is None and local is not None:
        try:
            if hashing.Stamp.of(local) == record.stamp:
                md5 = hashing.hash_file(local, whole_md5=True).md5
                answer = judge(record, seen, md5)
        except (OSError, hashing.Changed):
            pass
    if remote.opaque and answer == "wrong" and seen.size == record.size:
        answer = "unknown"
    detail = "" if seen.size == record.size else f"{seen.size} bytes instead of {record.size}"
    return Result(answer, "etag", seen.value if seen.form == "etag" else None, md5, detail)


def full(remote: Remote, path: str, record: FileRecord, tick: Callable[[], None] | None = None) -> Result:
    """Read the object back and hash it.

    Raises:
        RcloneError: it cannot be read.
    """
    found = remote.downloaded_sha256(path, tick)
    if found is None:
        return Result("missing", "full")
    return Result("ok" if found == record.sha256 else "wrong", "full", detail="" if found == record.sha256 else found)


def check(
    remote: Remote,
    path: str,
    record: FileRecord,
    local: Path | None,
    *,
    level: str = "etag",
    tick: Callable[[], None] | None = None,
) -> Result:
    """Prove one object, as cheaply as `level` allows.

    Where the server's word decides nothing, the object is read back. So it is where the word speaks against it: an
    encrypted bucket gives ETags that are no MD5, and only the content tells that from a corrupt object.

    Raises:
        RcloneError: the server does not answer.
    """
    if level == "full":
        return full(remote, path, record, tick)
    first = cheap(remote, path, record, local)
    if first.answer == "unknown" or (first.answer == "wrong" and not first.detail):
        second = full(remote, path, record, tick)
        if second.answer == "ok":
            return Result("ok", "full", first.etag, first.md5)
        how: Literal["etag", "full"] = "full" if first.answer == "unknown" else "etag"
        return Result(second.answer, how, first.etag, first.md5, second.detail)
    return first


def explain(error: RcloneError, remote: Remote) -> RcloneError:
    """The cause behind a refused upload: a listing names it where an upload says only 403 or 400."""
    from engine.backup.rclone import CODE

    if CODE.search(error.text):
        return error
    try:
        remote.daemon.call("operations/list", fs=remote.fs(), remote="", opt={"noModTime": True, "noMimeType": True})
    except RcloneError as better:
        if better.cause not in ("missing", "other"):
            return better
    return error
