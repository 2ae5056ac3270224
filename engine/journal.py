"""Append-only JSON lines: one writer, any number of readers, whole lines whatever is killed when."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from engine.files import write_all

CHUNK = 256 * 1024
_OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS | orjson.OPT_APPEND_NEWLINE


class JournalWriter:
    """Appends events to a file; each call is one write(2), so a kill leaves the line whole or absent.

    A torn last line (power cut, full disk) is cut off when the file is opened and after a failed write.
    orjson writes NaN and infinities as null, so every line is strict JSON.
    """

    def __init__(self, path: Path, **common: Any) -> None:
        self.path = path
        self.common = common
        path.parent.mkdir(parents=True, exist_ok=True)
        self._folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._fd = self._open()
        self._cut_torn_line()

    def _open(self) -> int:
        # through the folder's descriptor: the path may be another run's by the time the file is made again
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        return os.open(self.path.name, flags, 0o644, dir_fd=self._folder)

    def _cut_torn_line(self) -> None:
        end = os.fstat(self._fd).st_size
        position = end
        while position > 0:
            start = max(0, position - CHUNK)
            found = os.pread(self._fd, position - start, start).rfind(b"\n")
            if found >= 0:
                position = start + found + 1
                break
            position = start
        if position != end:
            os.ftruncate(self._fd, position)

    def append(self, event: str, **fields: Any) -> None:
        """Append one event with the current time.

        Raises:
            OSError: nothing of the line was kept (full disk, lost mount).
        """
        line = orjson.dumps({"event": event, "time": time.time(), **self.common, **fields}, option=_OPTIONS)
        info = os.fstat(self._fd)
        if info.st_nlink == 0:  # deleted under us: what follows would be read by nobody
            gone, self._fd = self._fd, self._open()
            os.close(gone)
            info = os.fstat(self._fd)
        before = info.st_size
        try:
            write_all(self._fd, line)
        except OSError:
            os.ftruncate(self._fd, before)
            raise

    def sync(self) -> None:
        """Make what was appended durable."""
        os.fsync(self._fd)

    def close(self) -> None:
        """Close the file; further appends fail."""
        if self._fd >= 0:
            os.close(self._fd)
            os.close(self._folder)
            self._fd = -1


class JournalReader:
    """Reads a journal piece by piece from a remembered byte offset.

    A partial last line waits for its end; a file that shrank or was replaced is read again from the start
    (`restarts` counts that); lines that are not JSON objects are skipped and counted in `bad_lines`.
    """

    def __init__(self, path: Path, offset: int = 0) -> None:
        self.path = path
        self.offset = offset
        self.restarts = 0
        self.bad_lines = 0
        self._inode: int | None = None

    def read_chunk(self, limit: int = CHUNK) -> tuple[bytes, bool]:
        """Whole lines, at most about `limit` bytes of them, and whether more are waiting."""
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return b"", False
        try:
            info = os.fstat(fd)
            if not stat.S_ISREG(info.st_mode):  # a folder or a pipe in its place holds no lines
                return b"", False
            if info.st_size < self.offset or (self._inode is not None and info.st_ino != self._inode):
                self.offset = 0
                self.restarts += 1
            self._inode = info.st_ino
            size = limit
            while True:
                data = os.pread(fd, size, self.offset)
                end = data.rfind(b"\n") + 1
                if end or len(data) < size:
                    break
                size *= 2  # one line longer than the chunk
            self.offset += end
            return data[:end], self.offset < info.st_size and end > 0
        finally:
            os.close(fd)

    def poll(self, limit: int = CHUNK) -> list[dict[str, Any]]:
        """The next events, at most about `limit` bytes of them; [] when there is nothing new."""
        data, _more = self.read_chunk(limit)
        return list(self.parse(data))

    def parse(self, data: bytes) -> Iterator[dict[str, Any]]:
        """The events in some whole lines."""
        for line in data.splitlines():
            try:
                value = orjson.loads(line)
            except ValueError:
                self.bad_lines += 1
                continue
            if isinstance(value, dict) and isinstance(value.get("event", ""), str):
                yield value
            else:
                self.bad_lines += 1

    def all(self) -> Iterator[dict[str, Any]]:
        """Every event from the offset to the end of the file."""
        while True:
            data, more = self.read_chunk()
            yield from self.parse(data)
            if not more:
                return


def read_all(path: Path) -> list[dict[str, Any]]:
    """Every event of a journal ([] when there is none)."""
    return list(JournalReader(path).all())


def last(path: Path, wanted: Mapping[str, Any] | None = None, window: int = CHUNK) -> dict[str, Any] | None:
    """The newest event, or the newest whose fields equal `wanted`, within the file's last `window` bytes."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "rb") as file:  # a pipe cannot be sought in: an OSError, too
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - window))
            data = file.read()
    except OSError:
        return None
    if size > window:
        data = data[data.find(b"\n") + 1 :]
    for line in reversed(data[: data.rfind(b"\n") + 1].splitlines()):
        try:
            value = orjson.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict) and all(value.get(k) == v for k, v in (wanted or {}).items()):
            return value
    return None
