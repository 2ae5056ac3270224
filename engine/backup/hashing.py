"""One read of a file feeds all its hashes: SHA-256 for the manifest, MD5 of each part for the ETag of the remote."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

MIB = 1024 * 1024
PART_SIZE = 16 * MIB
MAX_PARTS = 10_000
BLOCK = 4 * MIB


@dataclass(frozen=True)
class Stamp:
    """What tells whether a file was touched: a write, even one of the same size, changes it."""

    size: int
    mtime_ns: int
    inode: int

    @classmethod
    def of(cls, path: Path | str) -> Stamp:
        """The file's stamp now."""
        info = os.stat(path)
        return cls(info.st_size, info.st_mtime_ns, info.st_ino)


@dataclass(frozen=True)
class Hashes:
    """A file's hashes, as of `stamp`. `etag` is what an S3 server makes of it when it comes in parts of `part_size`."""

    stamp: Stamp
    sha256: str
    part_size: int
    parts: int
    etag: str
    md5: str | None  # of the whole; None where it was not asked for and the file has several parts


class Changed(Exception):
    """The file was written to while it was read."""


def part_size_of(size: int) -> int:
    """The size of the parts in which a file goes up: 16 MiB, doubled until 10,000 parts are enough."""
    part = PART_SIZE
    while size > part * MAX_PARTS:
        part *= 2
    return part


def multipart_etag(digests: list[bytes]) -> str:
    """The ETag of an object that was sent in parts with these MD5s."""
    return f"{hashlib.md5(b''.join(digests), usedforsecurity=False).hexdigest()}-{len(digests)}"


class _Feed:
    """A hash that is computed in a thread of its own: hashlib runs without the interpreter lock."""

    def __init__(self, name: str) -> None:
        self.hash = hashlib.new(name, usedforsecurity=False)
        self._queue: Queue[memoryview | None] = Queue(1)
        self._done: Queue[None] = Queue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while (block := self._queue.get()) is not None:
            self.hash.update(block)
            self._done.put(None)

    def give(self, block: memoryview) -> None:
        self._queue.put(block)

    def settle(self) -> None:
        self._done.get()

    def end(self) -> str:
        self._queue.put(None)
        self._thread.join()
        return self.hash.hexdigest()


def hash_file(
    path: Path, *, whole_md5: bool = False, length: int | None = None, tick: Callable[[int], None] | None = None
) -> Hashes:
    """Read a file once and hash it.

    Args:
        path: the file.
        whole_md5: also the MD5 of the whole (some servers give it as the ETag of an object that came in parts).
        length: only so many bytes of it (of a file that grows).
        tick: told the number of bytes of each block.

    Raises:
        Changed: it was written to meanwhile, or is shorter than `length`.
        OSError: it cannot be read.
    """
    before = Stamp.of(path)
    size = before.size if length is None else length
    part_size = part_size_of(size)
    feeds = [_Feed("sha256")]
    whole = _Feed("md5") if whole_md5 and size > part_size else None
    feeds += [whole] if whole else []
    digests: list[bytes] = []
    part = hashlib.md5(usedforsecurity=False)
    filled = done = 0
    buffer = bytearray(min(BLOCK, max(1, size)))
    try:
        with open(path, "rb", buffering=0) as file:
            while done < size:
                wanted = min(len(buffer), size - done, part_size - filled)
                view = memoryview(buffer)[:wanted]
                count = file.readinto(view)
                if not count:
                    break
                view = view[:count]
                for feed in feeds:
                    feed.give(view)
                part.update(view)
                for feed in feeds:
                    feed.settle()  # the buffer is written to again
                done += count
                filled += count
                if filled == part_size:
                    digests.append(part.digest())
                    part, filled = hashlib.md5(usedforsecurity=False), 0
                if tick:
                    tick(count)
    finally:
        sha256, *more = [feed.end() for feed in feeds]
    after = Stamp.of(path)
    if done != size or (length is None and after != before):
        raise Changed(str(path))
    if filled or not digests:
        digests.append(part.digest())
    single = len(digests) == 1
    md5 = digests[0].hex() if single else (more[0] if more else None)
    etag = digests[0].hex() if single else multipart_etag(digests)
    stamp = before if length is None else Stamp(size, before.mtime_ns, before.inode)
    return Hashes(stamp, sha256, part_size, len(digests), etag, md5)
