"""What no other part notices: how runs end, an evaluation that rises, a disk that fills, GPUs that idle."""

from __future__ import annotations

import logging
import shlex
import subprocess
import time
from collections.abc import Callable
from typing import Any

from engine import journal, settings
from engine.errors import FtuiError
from engine.hardware import disk
from engine.run.status import LIVE, state_of
from engine.workspace import RunFolder, Workspace

ENDS = {"done": "run_done", "stopped": "run_stopped", "failed": "run_failed"}
RISES = 2  # evaluations in a row above the best by RISE
RISE = 0.01
DISK_LOW = 0.1
DISK_BACK = 0.15
SLOW_S = 30.0
IDLE_UTILIZATION = 5.0
log = logging.getLogger("engine.keeper")


class Events:
    """Looked at by the keeper every two seconds; says each thing once.

    Args:
        workspace: whose runs.
        notify: tells people (kind, and the fields of the notice).
        busy: the highest utilization of any GPU now, percent; None: there are no GPUs, or they do not tell.
    """

    def __init__(
        self, workspace: Workspace, notify: Callable[..., None], *, busy: Callable[[], float | None] | None = None
    ) -> None:
        self.workspace = workspace
        self.notify = notify
        self.busy = busy or _utilization
        self._states: dict[str, str] = {}
        self._evals: dict[str, _Evals] = {}
        self._slow = -SLOW_S
        self._disk_low = False
        self._idle_since: float | None = None
        self._idle_told = False
        self._first = True
        self._child: subprocess.Popen[bytes] | None = None

    def look(self) -> None:
        """Look once."""
        live = False
        for run in self.workspace.folders():
            state = run.read_state()
            name = state_of(state) if state else ""
            live = live or name in LIVE
            before = self._states.get(run.name)
            self._states[run.name] = name
            if name in ENDS and before in LIVE:
                error = state.get("error") or {}
                self.notify(
                    ENDS[name], run=run.name, path=str(run.path), step=state.get("step"), reason=error.get("message")
                )
            if name in LIVE:
                self._evaluations(run)
        if time.monotonic() - self._slow >= SLOW_S:
            self._slow = time.monotonic()
            self._disk()
            self._gpus(live)
        if self._child is not None and self._child.poll() is not None:
            self._child = None

    def _evaluations(self, run: RunFolder) -> None:
        known = self._evals.get(run.name)
        if known is None:
            known = self._evals[run.name] = _Evals(run)
            known.told = known.poll() is not None  # what rose before we looked was told by the one before us
            return
        rising = known.poll()
        if rising is None:
            known.told = False
        elif not known.told:
            known.told = True
            self.notify("eval_rising", run=run.name, path=str(run.path), **rising)

    def _disk(self) -> None:
        sample = disk.sample(self.workspace.root)
        free, total = sample["free"], sample["total"]
        if not total:
            return
        if free < DISK_LOW * total and not self._disk_low:
            self._disk_low = True
            self.notify("disk_filling", path=str(self.workspace.root), free=free, total=total)
        elif free > DISK_BACK * total:
            self._disk_low = False

    def _gpus(self, live: bool) -> None:
        """GPUs that no run of ours uses and that do nothing, for as long as the settings say."""
        try:
            known = settings.load()
        except FtuiError:
            return
        busy = None if live or known.idle_minutes is None else self.busy()
        if busy is None or busy > IDLE_UTILIZATION:
            self._idle_since, self._idle_told = None, False
            return
        now = time.monotonic()
        self._idle_since = now if self._idle_since is None else self._idle_since
        assert known.idle_minutes is not None
        if now - self._idle_since >= known.idle_minutes * 60 and not self._idle_told:
            self._idle_told = True
            self.notify("gpus_idle", seconds=round(now - self._idle_since), command=bool(known.idle_command))
            if known.idle_command:
                self._run(known.idle_command)

    def _run(self, command: str) -> None:
        """The user's command, as a list of arguments: never through a shell."""
        if self._child is not None:
            return
        try:
            self._child = subprocess.Popen(
                shlex.split(command),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd=self.workspace.root,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            log.warning("idle_command cannot be run: %s", error)


class _Evals:
    """The evaluation losses of one run as they come."""

    def __init__(self, run: RunFolder) -> None:
        self.reader = journal.JournalReader(run.journal)
        self.told = False
        self._best: tuple[float, int] | None = None
        self._above = 0
        self._rising: dict[str, Any] | None = None

    def poll(self) -> dict[str, Any] | None:
        """The newest loss and the best where the last two lie above it; else None."""
        for event in self.reader.all():
            value, step = event.get("eval_loss"), event.get("step")
            if event.get("event") != "eval" or not isinstance(value, int | float) or not isinstance(step, int):
                continue
            if self._best is None or value <= self._best[0]:
                self._best, self._above = (value, step), 0
            else:
                self._above = self._above + 1 if value > self._best[0] * (1 + RISE) else 0
            rises = self._above >= RISES
            best = self._best
            self._rising = {"value": value, "best": best[0], "best_step": best[1], "step": step} if rises else None
        return self._rising


def _utilization() -> float | None:
    from engine.hardware import gpus

    try:
        with gpus.Probe() as probe:
            found = [sample["utilization"] for sample in probe.sample() if sample["utilization"] is not None]
    except Exception:  # noqa: BLE001 - a driver in any state: then nothing is said of it
        return None
    return max(found) if found else None
