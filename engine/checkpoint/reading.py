"""Reads files once, from front to back, and shows the bytes to all who want to see them: hash, checksums, numbers.

Reading, hashing and looking at numbers release the interpreter lock, so that they overlap: several files at a time,
and of one file the hash beside the rest. Files are read, not mapped: a file that is cut short meanwhile must be an
error and not a SIGBUS.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from engine.checkpoint.tensors import Watch

PIECE = 4 * 1024 * 1024
AHEAD = 32 * 1024 * 1024  # what the kernel is asked to read before it is needed
WORKERS = 4
_SMALL = 256 * 1024  # not worth a second thread


@dataclass
class Job:
    """One file to read. `sha256` and `error` are there afterwards."""

    path: Path
    size: int
    want_hash: bool = False
    watches: list[Watch] = field(default_factory=list)
    sha256: str | None = None
    error: str | None = None


def read_all(jobs: Iterable[Job], progress: Callable[[int], None] | None = None) -> None:
    """Do all jobs; `progress` is told the bytes of each piece, from any thread."""
    todo = sorted(jobs, key=lambda job: job.size, reverse=True)
    if sum(job.size for job in todo) < 2 * PIECE:
        for job in todo:  # threads would cost more than they bring
            _read(job, None, progress or _ignore)
        return
    stopped = False

    def go_on(count: int) -> None:
        nonlocal stopped
        if stopped:
            raise InterruptedError
        try:
            (progress or _ignore)(count)
        except BaseException:
            stopped = True
            raise

    workers = max(1, min(WORKERS, len(todo), os.cpu_count() or 1))
    with ThreadPoolExecutor(workers) as files, ThreadPoolExecutor(workers) as hashers:
        try:
            for done in [files.submit(_read, job, hashers, go_on) for job in todo]:
                done.result()
        except BaseException:  # ctrl-c: the threads must not read on to the end of a hundred gigabytes
            stopped = True
            raise


def _ignore(_count: int) -> None:
    pass


def _read(job: Job, hashers: ThreadPoolExecutor | None, progress: Callable[[int], None]) -> None:
    try:
        with open(job.path, "rb", buffering=0) as file:
            _pass(job, file.fileno(), hashers if job.size > _SMALL else None, progress)
    except OSError as error:
        job.error = error.strerror or str(error)


def _pass(job: Job, fd: int, hashers: ThreadPoolExecutor | None, progress: Callable[[int], None]) -> None:
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)
    hasher = hashlib.sha256() if job.want_hash else None
    watches = sorted(job.watches, key=lambda watch: watch.begin)
    end = max((watch.begin + watch.size for watch in watches), default=0)
    size = min(PIECE, max(job.size, 1))
    buffers = [bytearray(size) for _number in range(2 if hashers and hasher else 1)]
    hashing: Future[None] | None = None  # one at a time: the order of the pieces is what is hashed
    at = turn = 0
    first = 0  # watches before this one have seen all of their span
    while hasher or at < end:
        os.posix_fadvise(fd, at, AHEAD, os.POSIX_FADV_WILLNEED)
        count = os.preadv(fd, [buffers[turn]], at)
        if hashing:
            hashing.result()
        if not count:
            break
        view = memoryview(buffers[turn])[:count]
        if hasher and hashers:
            hashing = hashers.submit(hasher.update, view)
        elif hasher:
            hasher.update(view)
        first = _show(watches, first, view, at)
        at += count
        turn = (turn + 1) % len(buffers)
        progress(count)
    if hasher:
        job.sha256 = hasher.hexdigest()


def _show(watches: list[Watch], first: int, view: memoryview, at: int) -> int:
    """Show a piece that begins at `at` to the watches whose span it touches."""
    end = at + len(view)
    for watch in watches[first:]:
        if watch.begin >= end:
            break
        start, stop = max(watch.begin, at), min(watch.begin + watch.size, end)
        if start < stop:
            watch.feed(view[start - at : stop - at])
    while first < len(watches) and watches[first].begin + watches[first].size <= end:
        first += 1
    return first
