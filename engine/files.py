"""Writing so that a kill or a power cut leaves the old content or the new, and locks that die with their holder."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from engine.errors import UsageError
from engine.text import _


def user_path(text: str | os.PathLike[str]) -> Path:
    """A path as a user writes it, `~` expanded. (Path.expanduser dies of a user id without a passwd entry.)

    Raises:
        UsageError: `~` stands for nothing here (a folder literally named "~" must not come into being), or no JSON
            file could hold the path: it has a zero byte or is not UTF-8.
    """
    try:
        bad = b"\0" in os.fspath(text).encode()
    except UnicodeEncodeError:
        bad = True
    if bad:
        raise UsageError(
            _("{path}: a path must be valid UTF-8").format(path=ascii(os.fspath(text))[1:-1]),
            fix=_("rename it"),
            kind="bad_path",
        )
    expanded = os.path.expanduser(text)  # noqa: PTH111
    if str(expanded).startswith("~") and str(text).startswith("~"):
        raise UsageError(
            _("'{path}': this user has no home folder").format(path=text),
            fix=_("set HOME, or give the path in full"),
            kind="no_home",
        )
    return Path(expanded)


def fsync_dir(path: Path) -> None:
    """Make renames inside `path` durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    except OSError as error:  # some network and overlay file systems do not take fsync on a folder
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(fd)


def write_all(fd: int, data: bytes) -> None:
    """write(2) until everything is written."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def write_atomic(path: Path, data: bytes, *, mode: int = 0o644, durable: bool = True) -> None:
    """Replace `path` by `data`: temporary file beside it, fsync, rename, fsync of the folder."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        try:
            write_all(fd, data)
            if durable:
                os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(temporary, path)
    except BaseException as error:
        if isinstance(error, OSError) and error.filename is None:
            error.filename = os.fspath(path)  # a full disk must be named
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    if durable:
        fsync_dir(path.parent)


def write_json(path: Path, value: Any, *, durable: bool = True, mode: int = 0o644) -> None:
    """Replace `path` by `value` as indented JSON (see `write_atomic`)."""
    option = orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
    write_atomic(path, orjson.dumps(value, option=option) + b"\n", durable=durable, mode=mode)


def read_regular(path: str | os.PathLike[str], limit: int = -1) -> bytes:
    """The bytes of a regular file, `limit` at most: a pipe would never answer, a device never end.

    Raises:
        OSError: it cannot be read, or is no regular file.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb", buffering=0) as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, _("it is not a regular file"), os.fspath(path))
        if limit < 0:
            return file.readall()
        return file.read(limit)


def read_json(path: Path) -> Any | None:
    """The JSON value in `path`, or None when it is absent, unreadable or not JSON."""
    try:
        return orjson.loads(read_regular(path))
    except (OSError, ValueError):
        return None


def sha256_file(path: Path) -> str:
    """Hex SHA-256 of a file's content."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Lock:
    """An exclusive flock on a file: it is released when the process ends, however it ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None

    def acquire(self, *, wait: bool = False) -> bool:
        """Take the lock; False when another process holds it and `wait` is off."""
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            os.close(fd)
            return False
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd
        return True

    def adopt(self, fd: int) -> None:
        """Go on holding the lock that came with the inherited descriptor `fd`; our children do not get it."""
        os.set_inheritable(fd, False)
        self._fd = fd

    def fileno(self) -> int:
        """The descriptor that holds the lock, to be passed to the process that shall go on holding it."""
        assert self._fd is not None
        return self._fd

    def release(self) -> None:
        """Give the lock up; the file stays."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Wait for the lock and hold it for the block."""
        self.acquire(wait=True)
        try:
            yield
        finally:
            self.release()
