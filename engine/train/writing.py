"""Writes the files of a save: each byte is hashed while it is written, and durable before its file counts.

Copying to the disk's cache, hashing and waiting for the disk overlap: a thread hashes beside the one that writes, the
kernel is told to begin with what is in its cache, and one file waits for the disk while the next one is written.
None of it holds the interpreter for long, so that training goes on.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from engine.train.staging import Bytes, File

PIECE = 4 * 1024 * 1024
AT_ONCE = 2  # files
_START_WRITING = 2  # SYNC_FILE_RANGE_WRITE
_libc = ctypes.CDLL(None, use_errno=True)


class Aborted(Exception):
    """Another rank gave the save up."""


def write(files: Sequence[File], folder: Path, given_up: Callable[[], bool] = lambda: False) -> dict[str, Any]:
    """Write all files below `folder`; what a manifest says of each.

    Args:
        files: what to write; large ones first keeps the disk busy.
        folder: must be there.
        given_up: asked now and then.

    Raises:
        OSError: something could not be written; the others are not finished.
        Aborted: `given_up` said so.
    """
    for parent in sorted({(folder / file.name).parent for file in files}):
        parent.mkdir(parents=True, exist_ok=True)
    order = sorted(files, key=lambda file: file.size, reverse=True)
    entries: dict[str, Any] = {}
    stopped = False

    def stop() -> bool:
        return stopped or given_up()

    with ThreadPoolExecutor(AT_ONCE) as writers, ThreadPoolExecutor(AT_ONCE) as hashers:
        pending = {file.name: writers.submit(_write, folder / file.name, file, hashers, stop) for file in order}
        try:
            for name, future in pending.items():
                entries[name] = future.result()
        except BaseException:
            stopped = True
            for future in pending.values():
                future.cancel()
            raise
    return {file.name: entries[file.name] for file in files}


def _write(path: Path, file: File, hashers: ThreadPoolExecutor, stop: Callable[[], bool]) -> dict[str, Any]:
    digest = hashlib.sha256()
    hashing: Future[None] | None = None  # one at a time: the order of the pieces is what is hashed
    at = 0
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        for piece in gathered(file.pieces()):
            if stop():
                raise Aborted
            if hashing:
                hashing.result()
            hashing = hashers.submit(digest.update, piece)
            write_all(fd, piece)
            _libc.sync_file_range(fd, ctypes.c_int64(at), ctypes.c_int64(len(piece)), _START_WRITING)
            at += len(piece)
        if hashing:
            hashing.result()
        os.fsync(fd)
    finally:
        if hashing:
            hashing.exception()  # nobody may read memory that is handed back
        os.close(fd)
    return {"size": at, "sha256": digest.hexdigest()}


def write_all(fd: int, piece: Bytes) -> None:
    """write(2) until everything is written."""
    view = memoryview(piece)
    while view:
        view = view[os.write(fd, view) :]


def gathered(pieces: Iterator[Bytes]) -> Iterator[Bytes]:
    """The same bytes in pieces of a handy size: small ones together, large ones in parts."""
    waiting = bytearray()
    for piece in pieces:
        view = memoryview(piece)
        if len(waiting) + len(view) < PIECE:
            waiting += view
            continue
        if waiting:
            yield waiting
            waiting = bytearray()
        if len(view) < PIECE // 4:
            waiting += view
            continue
        for at in range(0, len(view), PIECE):
            yield view[at : at + PIECE]
    if waiting:
        yield waiting
