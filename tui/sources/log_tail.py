"""The end of a run's logs as plain lines: escape sequences and progress-bar rewrites are taken out."""

from __future__ import annotations

import os
from pathlib import Path

from engine.text import printable
from engine.workspace import RunFolder

FIRST_TAIL = 64 * 1024
CHUNK = 256 * 1024


def plain(line: str) -> str:
    """A line as it would stand on a terminal: without escape sequences, and only the last rewrite of it."""
    text = line.rstrip("\r").rpartition("\r")[2]
    return printable(text).expandtabs(4)


def log_files(run: RunFolder) -> list[Path]:
    """The logs that a reader wants, most telling first; only those that exist."""
    names = ["rank-0.log", "launcher.log", "supervisor.log"]
    return [path for path in (run.logs / name for name in names) if path.is_file()]


class LogTail:
    """Follows one log file; a partial last line waits for its end, a rotated file is read from its start."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset: int | None = None
        self._inode = 0
        self._partial = b""

    def poll(self) -> list[str]:
        """The lines that were written since the last call (the first time: those at the end of the file)."""
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return []
        try:
            info = os.fstat(fd)
            if self._offset is None:
                data = self._skip_to(fd, max(0, info.st_size - FIRST_TAIL))
            elif info.st_ino != self._inode or info.st_size < self._offset:
                data = self._skip_to(fd, 0)
            elif info.st_size - self._offset > CHUNK:
                data = self._skip_to(fd, info.st_size - CHUNK)
            else:
                data = self._partial + os.pread(fd, CHUNK, self._offset)
                self._offset += len(data) - len(self._partial)
            self._inode = info.st_ino
        finally:
            os.close(fd)
        whole, newline, self._partial = data.rpartition(b"\n")
        self._partial = self._partial[-CHUNK:]
        return [plain(line) for line in whole.decode("utf-8", "replace").split("\n")] if newline else []

    def _skip_to(self, fd: int, offset: int) -> bytes:
        data = os.pread(fd, CHUNK, offset)
        self._offset = offset + len(data)
        return data[data.find(b"\n") + 1 :] if offset else data
