"""Processes: who is alive (here), supervised children (`child`) and programs that outlive their starter (`daemon`).

Imports the standard library and engine.errors, engine.text only; Linux (/proc, prctl).
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

PR_SET_PDEATHSIG = 1


class Stat(NamedTuple):
    """The fields of /proc/PID/stat that matter here."""

    state: str
    parent: int
    group: int
    session: int
    start: int

    @property
    def dead(self) -> bool:
        """A zombie holds its pid and nothing else."""
        return self.state in "ZXx"


def read_stat(pid: int) -> Stat | None:
    """What the kernel says about `pid`; None when there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            content = file.read()
    except OSError:
        return None
    # the name in parentheses may hold anything, spaces and ')' included
    fields = content[content.rfind(b")") + 2 :].split()
    return Stat(fields[0].decode(), int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19]))


@functools.cache
def boot_id() -> str:
    """Which boot of the machine this is; start times only compare within one."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


@dataclass(frozen=True)
class ProcessId:
    """A process for ever: the pid alone is used again, with the start time (clock ticks) and the boot it is not."""

    pid: int
    start: int
    boot: str

    @classmethod
    def of(cls, pid: int) -> ProcessId:
        """The process that has `pid` now.

        Raises:
            ProcessLookupError: there is none.
        """
        stat = read_stat(pid)
        if stat is None:
            raise ProcessLookupError(pid)
        return cls(pid, stat.start, boot_id())

    @classmethod
    def current(cls) -> ProcessId:
        """This process."""
        return cls.of(os.getpid())

    @classmethod
    def from_json(cls, value: Any) -> ProcessId | None:
        """Read back `to_json`; None for anything else."""
        try:
            return cls(int(value["pid"]), int(value["start"]), str(value["boot"]))
        except (TypeError, KeyError, ValueError):
            return None

    def to_json(self) -> dict[str, int | str]:
        """As it stands in state files."""
        return {"pid": self.pid, "start": self.start, "boot": self.boot}

    def alive(self) -> bool:
        """Whether this very process runs: a zombie does not, nor does another process with its pid."""
        if self.boot != boot_id():
            return False
        stat = read_stat(self.pid)
        return stat is not None and not stat.dead and stat.start == self.start

    def send(self, number: int) -> bool:
        """Send a signal to this process and to no other that got its pid; False when it is gone."""
        try:
            fd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return False
        except OSError:  # an old kernel: the check just before has to do
            return self.alive() and _quietly(os.kill, self.pid, number)
        try:
            return self.alive() and _quietly(signal.pidfd_send_signal, fd, number)
        finally:
            os.close(fd)


def _quietly(send: Callable[[int, int], None], target: int, number: int) -> bool:
    try:
        send(target, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def processes() -> Iterator[tuple[int, Stat]]:
    """All live processes that /proc shows, without zombies."""
    for name in os.listdir("/proc"):
        if name.isdigit() and (stat := read_stat(int(name))) and not stat.dead:
            yield int(name), stat


def marked(name: str, value: str) -> list[ProcessId]:
    """Live processes, other than this one, that were started with `name=value` in their environment.

    That finds descendants which a process group or a parent link has lost: torchrun gives each rank a session of its
    own, and daemons fork twice.
    """
    wanted = f"{name}={value}".encode()
    found = []
    for pid, stat in processes():
        if pid == os.getpid():
            continue
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                if wanted in file.read().split(b"\0"):
                    found.append(ProcessId(pid, stat.start, boot_id()))
        except OSError:  # gone, or another user's
            continue
    return found


def descendants(pid: int) -> list[int]:
    """Pids below `pid`, as far as the kernel tells (CONFIG_PROC_CHILDREN); cheap enough for each second."""
    found: list[int] = []
    waiting = [pid]
    while waiting:
        parent = waiting.pop()
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{parent}/task"):
                with contextlib.suppress(OSError), open(f"/proc/{parent}/task/{task}/children", "rb") as file:
                    children = [int(child) for child in file.read().split()]
                    found += children
                    waiting += children
    return found


def end_all(targets: Callable[[], Iterable[ProcessId]], *, grace: float, number: int = signal.SIGTERM) -> bool:
    """Signal what `targets` finds, wait up to `grace`, KILL the rest; True when nothing is left. Blocks."""
    for process in targets():
        process.send(number)
        process.send(signal.SIGCONT)  # one that was stopped would not act on it
    deadline = time.monotonic() + grace
    while left := list(targets()):
        if time.monotonic() > deadline + 5:  # not even KILL ends a process that hangs in the kernel
            return False
        if time.monotonic() > deadline:
            for process in left:
                process.send(signal.SIGKILL)
        time.sleep(0.05)
    return True


@functools.cache
def prctl() -> Callable[[int, int], int]:
    import ctypes

    return ctypes.CDLL(None, use_errno=True).prctl


def die_with_parent(number: int = signal.SIGTERM, parent: int | None = None) -> None:
    """Ask the kernel for a signal when the parent ends; sends it at once when `parent` is gone already."""
    prctl()(PR_SET_PDEATHSIG, number)
    if parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), number)
