"""What may change while backups run: paused or not, the bandwidth limit; and the low priority they run at."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.files import Lock, read_json, write_json
from engine.workspace import Workspace

NAME = "backup.json"
NICE = 10
IOPRIO_WHO_PROCESS, IOPRIO_BEST_EFFORT_LOWEST = 1, (2 << 13) | 7
_SYS_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}


@dataclass(frozen=True)
class Control:
    """The wishes in force for a workspace. `limit` in bytes per second; None: no limit."""

    paused: bool = False
    limit: float | None = None


def read(workspace: Workspace) -> Control:
    """The wishes now; the defaults where nobody said anything."""
    value = read_json(workspace.keeper_dir / NAME)
    if not isinstance(value, dict):
        return Control()
    limit = value.get("limit")
    if not isinstance(limit, int | float) or isinstance(limit, bool) or limit <= 0:
        limit = None
    return Control(value.get("paused") is True, limit)


def change(workspace: Workspace, **changes: Any) -> Control:
    """Set `paused` or `limit`; a running backup follows within a second or two."""
    workspace.prepare()
    path = workspace.keeper_dir / NAME
    with Lock(path.with_name(f".{NAME}.lock")).held():
        now = read(workspace)
        new = Control(**{"paused": now.paused, "limit": now.limit, **changes})
        write_json(path, {"format": 1, "paused": new.paused, "limit": new.limit})
    return new


def lower_priority() -> None:
    """Let everything else on the machine go first: processor and disk. What we start inherits it."""
    import ctypes
    import platform

    try:
        os.nice(NICE)
        if number := _SYS_IOPRIO_SET.get(platform.machine()):
            ctypes.CDLL(None).syscall(number, IOPRIO_WHO_PROCESS, 0, IOPRIO_BEST_EFFORT_LOWEST)
    except OSError:
        pass


class StepWatch:
    """Slows backups down while they slow the training: reads the run's step times in its journal.

    The step time from before the upload began is compared with that since; the limit is halved while it is more than
    a tenth higher, and raised by a quarter once it is not.
    """

    RISE = 1.10
    EVERY_S = 10.0
    FLOOR = 1e6

    def __init__(self, journal_path: Path, now: float) -> None:
        self.path = journal_path
        self.began = now
        self.limit: float | None = None
        self._looked = now
        self._ended = False  # the training has: nobody is slowed down any more, and the last uploads have the link

    def look(self, now: float, rate: float | None) -> float | None:
        """The limit that training needs now (None: none), given the present rate in bytes per second."""
        if now - self._looked < self.EVERY_S:
            return self.limit
        self._looked = now
        before, since = self._step_times()
        if self._ended:
            self.limit = None
            return None
        if before is None or since is None:
            return self.limit
        if since > before * self.RISE and (rate or self.limit):
            self.limit = max(self.FLOOR, min(self.limit or float("inf"), rate or float("inf")) / 2)
        elif self.limit is not None:
            raised = self.limit * 1.25
            self.limit = None if rate is not None and raised > 4 * rate else raised
        return self.limit

    def _step_times(self) -> tuple[float | None, float | None]:
        from statistics import median

        from engine import journal

        reader = journal.JournalReader(self.path)
        try:
            reader.offset = max(0, self.path.stat().st_size - journal.CHUNK)
        except OSError:
            return None, None
        before: list[float] = []
        since: list[float] = []
        for event in reader.all():
            value, at = event.get("step_time_s"), event.get("time")
            if event.get("event") in ("start", "end"):
                self._ended = event["event"] == "end"
            if event.get("event") == "log" and isinstance(value, int | float) and isinstance(at, int | float):
                (since if at > self.began else before).append(float(value))
        return (median(before[-30:]) if before else None, median(since[-3:]) if since else None)
