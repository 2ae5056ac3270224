"""One rank as a process: who it is, how it dies with its launcher, where its output goes, what signals ask of it.

Light, so that it is in force before the seconds that loading torch takes.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from engine.workspace import RunFolder

PR_SET_PDEATHSIG = 1
LOG_LIMIT = 32 * 1024 * 1024
LOGS_KEPT = 2
STOP_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
EXIT_INTERRUPTED = 143  # ended by a signal while loading: nothing was trained, nothing is lost


@dataclass(frozen=True)
class Rank:
    """This process among the ranks of the run, as the launcher told it."""

    run: RunFolder
    index: int
    local_index: int
    world_size: int
    attempt: int
    resume_from: Path | None

    @property
    def first(self) -> bool:
        """Whether this is the rank that writes the journal."""
        return self.index == 0

    @property
    def begins_at(self) -> int:
        """The step that this attempt goes on from, by the name of its checkpoint; 0 for a fresh start."""
        number = self.resume_from.name.rpartition("-")[2] if self.resume_from else ""
        return int(number) if number.isdecimal() else 0

    @property
    def log(self) -> Path:
        return self.run.logs / f"rank-{self.index}.log"

    @property
    def error_file(self) -> Path:
        return self.run.logs / f"rank-{self.index}.error.json"

    @classmethod
    def from_environment(cls, run: RunFolder) -> Rank:
        """The rank that RANK, WORLD_SIZE and the run's own variables describe."""
        resume = os.environ.get("FTUI_RESUME_FROM", "")
        return cls(
            run=run,
            index=int(os.environ.get("RANK", "0")),
            local_index=int(os.environ.get("LOCAL_RANK", "0")),
            world_size=int(os.environ.get("WORLD_SIZE", "1")),
            attempt=int(os.environ.get("FTUI_ATTEMPT", "1")),
            resume_from=Path(resume) if resume else None,
        )

    def become_plain_process(self) -> None:
        """Forget the launcher's variables when there is one rank.

        Else accelerate makes a process group of one and wraps the model for it, which costs time on each step.
        """
        if self.world_size == 1:
            for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
                os.environ.pop(name, None)


def _set_death_signal(number: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)


def die_with_parent() -> None:
    """Get SIGTERM when the launcher dies, however it dies; end now if it is dead already.

    Children (workers that load data) get SIGKILL when this process dies, and a process group of their own: the
    launcher signals the whole group, and a worker killed that way would take the rank down instead of a save.
    """
    _set_death_signal(signal.SIGTERM)
    if "TORCHELASTIC_RUN_ID" in os.environ:
        try:
            parent = Path(f"/proc/{os.getppid()}/cmdline").read_bytes()
        except OSError:
            parent = b""
        if b"torch" not in parent:
            os._exit(EXIT_INTERRUPTED)

    def in_child() -> None:
        with contextlib.suppress(OSError):
            os.setpgid(0, 0)
        _set_death_signal(signal.SIGKILL)

    os.register_at_fork(after_in_child=in_child)


def rotate_log(path: Path, limit: int = LOG_LIMIT) -> None:
    """Point standard output and error to `path`, after moving a file over `limit` bytes out of the way."""
    with contextlib.suppress(OSError):  # a full disk must not end the training
        path.parent.mkdir(parents=True, exist_ok=True)
        for number in range(LOGS_KEPT, 0, -1):
            older = path.with_name(f"{path.name}.{number}")
            newer = path if number == 1 else path.with_name(f"{path.name}.{number - 1}")
            if newer.exists():
                newer.replace(older)
    redirect(path)


def redirect(path: Path) -> None:
    """Append everything that this process writes to standard output and error to `path`."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        sys.stdout.flush()
        sys.stderr.flush()
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(fd, 1)
        os.dup2(fd, 2)
        os.close(fd)


def open_log(path: Path) -> None:
    """Send this process's output to its log, with a stack dump on a crash and on SIGUSR1."""
    rotate_if_large(path)
    redirect(path)
    faulthandler.enable(2, all_threads=True)
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)


def rotate_if_large(path: Path, limit: int = LOG_LIMIT) -> None:
    """Rotate the log when it has grown over `limit` bytes; called now and then from the training loop."""
    with contextlib.suppress(OSError):
        if path.stat().st_size > limit:
            rotate_log(path, limit)


class Signals:
    """TERM, HUP and INT ask for a save and a stop at the end of the step; while loading they end the process."""

    def __init__(self) -> None:
        self.stop: str | None = None
        self._loading: Callable[[], None] | None = None

    def install(self, while_loading: Callable[[], None]) -> None:
        """Take the signals over; `while_loading` runs before the process ends without having trained."""
        self._loading = while_loading
        for number in STOP_SIGNALS:
            signal.signal(number, self._handle)

    def training_begins(self) -> None:
        """From now on a signal waits for the end of the step."""
        self._loading = None

    def _handle(self, number: int, _frame: object) -> None:
        self.stop = signal.Signals(number).name
        if self._loading is not None:
            self._loading()
            os._exit(EXIT_INTERRUPTED)  # not SystemExit: a library's `except BaseException` would swallow it
