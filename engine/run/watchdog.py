"""The hang watchdog: ranks that show no sign of life for many times what a step takes, and where they stand then."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import statistics
import subprocess
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.process import ProcessId, marked, read_stat
from engine.run.guard import settings
from engine.text import _, duration
from engine.workspace import RunFolder

GAPS = 64
OWN_PAUSE_S = 5.0  # we were stopped, too (a paused container, a suspended machine): that says nothing of the ranks
DUMP_S = 10.0
SIGNAL_S = 1.5  # what faulthandler needs to write its lines


class Watchdog:
    """Watches one attempt. Signs of life are the journal's lines and the heartbeat that rank 0 gives at each step.

    Loading and saving do not count: a save has limits of its own, and loading takes as long as it takes.
    """

    def __init__(self, run: RunFolder, recipe: Mapping[str, Any], python: str) -> None:
        self.run = run
        self.python = python
        self._dump: StackDump | None = None
        self.heartbeat = run.logs / "heartbeat"
        wanted = settings(recipe)
        self.floor = float(wanted["hang_after_s"])
        self.factor = float(wanted["hang_factor"])
        self._sign: float | None = None
        self._looked = time.monotonic()
        self._beat: int | None = None
        self._busy = False
        self._gaps: deque[float] = deque(maxlen=GAPS)
        self._step_times: deque[float] = deque(maxlen=GAPS)

    @property
    def limit(self) -> float:
        """Seconds of silence after which the ranks count as hanging."""
        usual = [statistics.median(times) for times in (self._gaps, self._step_times) if times]
        return max(self.floor, self.factor * max(usual, default=0.0))

    def take(self, event: Mapping[str, Any]) -> None:
        """Any line of the journal is a sign of life."""
        kind = event.get("event")
        if kind == "start":
            self._sign = time.monotonic()
        if kind == "save_begin":
            self._busy = True
        elif kind in ("save_staged", "save", "save_failed", "log", "eval"):
            self._busy = False
        elif kind == "end":
            self._sign = None  # it writes its result and leaves
            return
        if isinstance(seconds := event.get("step_time_s"), int | float):
            self._step_times.append(float(seconds))
        self._alive()

    def _alive(self) -> None:
        if self._sign is not None:
            now = time.monotonic()
            self._gaps.append(now - self._sign)
            self._sign = now

    def silent_s(self) -> float | None:
        """How long there has been no sign of life, once that is too long; None while all is well."""
        now = time.monotonic()
        paused, self._looked = now - self._looked > OWN_PAUSE_S, now
        if self._sign is None or self.floor <= 0:
            return None
        beat = _changed(self.heartbeat)
        if beat != self._beat:
            self._beat = beat
            self._busy = False
            self._alive()
        if self._busy or paused:
            self._sign = now
        silent = now - self._sign
        return silent if silent > self.limit else None

    def tick(
        self, launcher: ProcessId | None, attempt: int, step: int | None
    ) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
        """Look once.

        Returns:
            Events for events.jsonl, and the error of state.json once the ranks' stacks are written: time to end them.
        """
        if self._dump is None:
            if (silent := self.silent_s()) is None:
                return [], None
            self._dump = StackDump(self.run, attempt, launcher, self.python)
            seconds, limit = round(silent, 1), round(self.limit, 1)
            return [{"event": "hang", "attempt": attempt, "step": step, "seconds": seconds, "limit": limit}], None
        if (files := self._dump.poll()) is None:
            return [], None
        self.close()
        text = _("the ranks hang at step {step}: no sign of life for {time}")
        error = {
            "kind": "hang",
            "message": text.format(step=step, time=duration(self.limit)),
            "where": str(files[0]) if files else str(self.run.logs),
            "fix": _("the stacks there say where each rank stands; `ftui explain {run}`").format(run=self.run.name),
            "exit_code": 1,
        }
        return [{"event": "stacks", "attempt": attempt, "files": [f"logs/{path.name}" for path in files]}], error

    def close(self) -> None:
        """End what still looks at the ranks."""
        if self._dump is not None:
            self._dump.close()
            self._dump = None


def _changed(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None


@dataclass
class _Rank:
    index: int
    process: ProcessId
    log: Path
    offset: int
    target: Path
    spy: subprocess.Popen[bytes] | None = None


class StackDump:
    """Where each rank stands, written to logs/hang-ATTEMPT-rank-N.txt: by py-spy where it is installed, else by the
    rank itself on SIGUSR1; what the kernel says of it in any case. `poll` drives it, nothing waits.
    """

    def __init__(self, run: RunFolder, attempt: int, launcher: ProcessId | None, python: str) -> None:
        self._ranks = [
            _Rank(index, process, log, _size(log), run.logs / f"hang-{attempt}-rank-{index}.txt")
            for index, process in ranks_of(run, launcher)
            for log in [run.logs / f"rank-{index}.log"]
        ]
        spy = _py_spy(python)
        for rank in self._ranks:
            with contextlib.suppress(OSError):
                rank.target.write_text(_kernel_says(rank.process.pid))
            if _takes(rank.process.pid, signal.SIGUSR1):  # without its handler the signal would end it
                rank.process.send(signal.SIGUSR1)
            if spy is not None:
                with contextlib.suppress(OSError), open(rank.target, "ab") as file:
                    arguments = [spy, "dump", "--pid", str(rank.process.pid)]
                    rank.spy = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
        now = time.monotonic()
        self._earliest, self._latest = now + SIGNAL_S, now + DUMP_S

    def poll(self) -> list[Path] | None:
        """The files, once they are written; None until then."""
        now = time.monotonic()
        running = [rank for rank in self._ranks if rank.spy is not None and rank.spy.poll() is None]
        if now < self._earliest or (running and now < self._latest):
            return None
        self.close()
        for rank in self._ranks:
            with contextlib.suppress(OSError), open(rank.log, "rb") as log, open(rank.target, "ab") as file:
                log.seek(rank.offset)
                file.write(log.read(1 << 20))
        return [rank.target for rank in self._ranks if rank.target.exists()]

    def close(self) -> None:
        """End what still looks at the ranks."""
        for rank in self._ranks:
            if rank.spy is not None and rank.spy.poll() is None:
                rank.spy.kill()
                rank.spy.wait()


def ranks_of(run: RunFolder, launcher: ProcessId | None) -> list[tuple[int, ProcessId]]:
    """The live ranks of a run with their numbers; not the workers that load their data."""
    found = {}
    for process in {p for place in {str(run.path), os.path.realpath(run.path)} for p in marked("FTUI_RUN", place)}:
        stat = read_stat(process.pid)
        index = _rank_number(process.pid)
        if stat is not None and index is not None and (launcher is None or stat.parent == launcher.pid):
            found[index] = process
    return sorted(found.items())


def _rank_number(pid: int) -> int | None:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    value = next((entry[5:] for entry in environment if entry.startswith(b"RANK=")), b"")
    return int(value) if value.isdigit() else None


def _takes(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    except (OSError, ValueError, IndexError):
        pass
    return False


def _kernel_says(pid: int) -> str:
    """State and place in the kernel of each thread: `D` in a driver or a disk, `S` in a lock, `T` stopped."""
    lines = [f"process {pid}"]
    for task in sorted(Path(f"/proc/{pid}/task").iterdir(), key=lambda path: int(path.name)):
        with contextlib.suppress(OSError):
            name = (task / "comm").read_text().strip()
            state = (task / "stat").read_text().rpartition(")")[2].split()[0]
            place = (task / "wchan").read_text().strip() or "-"
            lines.append(f"  thread {task.name} {name}: {state} {place}")
    return "\n".join(lines) + "\n\n"


def _py_spy(python: str) -> str | None:
    beside = Path(shutil.which(python) or python).with_name("py-spy")
    return str(beside) if beside.is_file() else shutil.which("py-spy")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
