"""Reads a run's checkpoints, what retention says of each, the disk and the drills. For one thread; no widgets."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from engine import journal
from engine.checkpoint import pins, pruning
from engine.errors import FtuiError
from engine.run.status import LIVE, state_of, unsaved
from engine.workspace import RunFolder
from tui.sources.backup_source import BackupSource, lease_strip
from tui.state.checkpoints import CheckpointRow, CheckpointsSnapshot, Extra, Forecast, forecast
from tui.state.snapshot import figure

Added = Mapping[str, Mapping[str, Extra]]  # checkpoint's name -> column's title -> cell
EXTRA_COLUMNS: list[Callable[[RunFolder], Added]] = []
"""Parts that know more about checkpoints add a function here: quick, and raising nothing."""


class CheckpointSource:
    """Follows the checkpoints of a run; the folder is read again only when something in it changed."""

    def __init__(self, run: RunFolder) -> None:
        self.run = run
        self._stamp: object = None
        self._rows: tuple[CheckpointRow, ...] = ()
        self._problem = ""
        self._policy: Any = None
        self._backup = BackupSource(run)
        self._snapshot = CheckpointsSnapshot(run=run.name)

    def poll(self) -> CheckpointsSnapshot:
        """The checkpoints as they are now; the same snapshot object when nothing changed."""
        state = self.run.read_state()
        name = state_of(state)
        stamp = self._look(name)
        if stamp != self._stamp:
            self._stamp = stamp
            self._read(state, name)
        snapshot = self._make(state, name)
        if snapshot != self._snapshot:
            self._snapshot = snapshot
        return self._snapshot

    def _look(self, state: str) -> object:
        paths = (
            self.run.checkpoints, self.run.path / pins.NAME, self.run.path / "backup" / "protected.json",
            self.run.path / "drills.jsonl", self.run.resolved,
        )  # fmt: skip
        self._backup.read()
        more = (self._backup.version, *(str(add(self.run)) for add in EXTRA_COLUMNS))
        return (state in LIVE, *(_changed(path) for path in paths), *more)

    def _read(self, state: dict[str, Any], name: str) -> None:
        in_use = state.get("resumed_from") if name in LIVE else None
        try:
            plan = pruning.plan(self.run.path, in_use=in_use)
        except FtuiError as error:
            self._problem = error.what
            self._rows = ()
            return
        self._problem, self._policy = "", plan.policy
        pinned = pins.read(self.run.path) or set()
        found = journal.read_all(self.run.path / "drills.jsonl")
        drills = {event["step"]: event.get("passed") for event in found if isinstance(event.get("step"), int)}
        extras = [self._backup.cells, *(add(self.run) for add in EXTRA_COLUMNS)]
        newest = next((v.entry for v in reversed(plan.verdicts) if v.entry.resumable), None)
        rows = []
        for verdict in reversed(plan.verdicts):
            entry = verdict.entry
            cells = {title: cell for added in extras for title, cell in added.get(entry.path.name, {}).items()}
            rows.append(
                CheckpointRow(
                    step=entry.step,
                    name=entry.path.name,
                    path=str(entry.path),
                    state=_state(entry, live=name in LIVE),
                    resumable=entry.resumable,
                    loss=figure(entry.metrics.get("loss")),
                    eval_loss=figure(entry.metrics.get("eval_loss")),
                    bytes=entry.bytes,
                    time=_made(entry.path),
                    attempt=entry.attempt,
                    pinned=entry.path.name in pinned,
                    best=entry.path.name == plan.best,
                    newest=entry is newest,
                    goes=verdict.goes,
                    reason=verdict.reason,
                    problem=entry.problem or "",
                    drilled=drills.get(entry.step),
                    extra=cells,
                )
            )
        self._rows = tuple(sorted(rows, key=lambda row: row.state != "writing"))  # what is being written is the newest

    def _make(self, state: dict[str, Any], name: str) -> CheckpointsSnapshot:
        steps, seconds = unsaved(state)
        saved = next((row.step for row in self._rows if row.newest), None)
        free, total = _disk(self.run)
        maximum = state.get("max_steps")
        return CheckpointsSnapshot(
            run=self.run.name,
            state=name,
            live=name in LIVE,
            step=int(figure(state.get("step")) or 0),
            max_steps=maximum if isinstance(maximum, int) else None,
            safe_step=saved,
            at_risk_steps=steps,
            at_risk_seconds=figure(seconds),
            rows=self._rows,
            columns=tuple(dict.fromkeys(title for row in self._rows for title in row.extra)),
            disk_path=str(self.run.path),
            disk_free=free,
            disk_total=total,
            forecast=self._forecast(state, free) if name in LIVE else None,
            problem=self._problem,
            read=True,
            backup=self._backup.view(),
            lease=lease_strip(self.run),
        )

    def _forecast(self, state: dict[str, Any], free: float | None) -> Forecast | None:
        """None where it cannot be told: nothing saved yet, or no regular saves."""
        whole = [row for row in self._rows if row.state == "sealed"]
        step, maximum = figure(state.get("step")), figure(state.get("max_steps"))
        recipe = self.run.read_resolved().get("recipe") or {}
        every = figure(recipe.get("save_steps")) if recipe.get("save_strategy", "steps") == "steps" else None
        if every is None and len(whole) > 1:
            every = float(abs(whole[0].step - whole[1].step))
        if not whole or free is None or step is None or not maximum or not every or self._policy is None:
            return None
        every = max(1, round(every * maximum)) if every < 1 else every
        eta = figure(state.get("eta_s"))
        return forecast(
            free=round(free, -8),  # what other programs write every second is not to move it
            size=whole[0].bytes,
            step=int(step),
            max_steps=int(maximum),
            every=int(every),
            kept=len(whole),
            limit=self._policy.keep_last,
            keep_every=self._policy.keep_every,
            step_s=None if eta is None or maximum <= step else eta / (maximum - step),
        )


def _state(entry: Any, *, live: bool) -> str:
    if entry.state == "staging":
        return "writing" if live else "leftover"
    if entry.state == "broken":
        return "damaged"
    if entry.state == "foreign":
        return "foreign"
    if not entry.resumable:
        return "partial"
    return "sealed" if getattr(entry, "exact", True) else "not_exact"


def _changed(path: os.PathLike[str]) -> tuple[int, int] | None:
    try:
        info = os.stat(path)
    except OSError:
        return None
    return (info.st_mtime_ns, info.st_ino)


def _made(path: os.PathLike[str]) -> float | None:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return None


def _disk(run: RunFolder) -> tuple[float | None, float | None]:
    try:
        info = os.statvfs(run.checkpoints if run.checkpoints.exists() else run.path)
    except OSError:
        return None, None
    return float(round(info.f_bavail * info.f_frsize, -7)), float(info.f_blocks * info.f_frsize)
