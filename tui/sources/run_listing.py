"""The list of runs as frozen rows, read again only where something can have changed. No Textual here."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

from engine.run import status
from engine.text import _, number
from engine.workspace import RunFolder, Workspace, may_be_run

MONTH_HOURS = 730.0
Mark = tuple[int, int, int]
METHODS = {"lora": "LoRA", "qlora": "QLoRA", "full": "full"}


@dataclass(frozen=True)
class RunRow:
    """One run as the list, the header and the palette show it."""

    run: RunFolder
    state: str
    step: int
    max_steps: int
    loss: float | None
    eval_loss: float | None
    eta_s: float | None
    what: str
    created: float
    started: float | None
    ended: float | None
    saved_step: int | None
    unsaved_steps: int
    unsaved_s: float | None
    earlier_s: float
    error: str
    fix: str

    @property
    def name(self) -> str:
        """The run's name."""
        return self.run.name

    @property
    def live(self) -> bool:
        """Whether it is on its way."""
        return self.state in status.LIVE

    def hours(self, now: float) -> float:
        """How long it has held its devices."""
        times = {"earlier_s": self.earlier_s, "started": self.started, "ended": self.ended}
        return status.held_s(times, now) / 3600


@dataclass(frozen=True)
class Price:
    """What the server costs, as the user's settings say."""

    amount: float
    currency: str
    period: str

    def of(self, hours: float) -> float:
        """The cost of some hours."""
        return self.amount * hours / (MONTH_HOURS if self.period == "month" else 1.0)


class RunListing:
    """Reads a workspace's runs; what has ended is read once, what lives each time."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self._ended: dict[str, tuple[Mark | None, RunRow]] = {}
        self._what: dict[str, str] = {}
        self._names: list[str] = []

    def poll(self) -> tuple[RunRow, ...]:
        """All runs, newest first."""
        try:
            names = [entry.name for entry in os.scandir(self.workspace.runs_dir) if may_be_run(entry)]
        except FileNotFoundError:
            names = []
        except OSError:
            names = self._names  # a disk that does not answer: what was known stays on show
        self._names = names
        rows = [row for name in names if (row := self._row(RunFolder(self.workspace.runs_dir / name))) is not None]
        for gone in self._ended.keys() - set(names):
            del self._ended[gone]
        return tuple(sorted(rows, key=lambda row: (row.created, row.name), reverse=True))

    def _row(self, run: RunFolder) -> RunRow | None:
        mark = _mark(run)
        if mark is None and not run.resolved.exists():
            return None  # a folder, but not a run
        known = self._ended.get(run.name)
        if known is not None and known[0] == mark:
            return known[1]
        row = self._read(run)
        if row.live:
            self._ended.pop(run.name, None)
        else:
            self._ended[run.name] = (mark, row)
        return row

    def _read(self, run: RunFolder) -> RunRow:
        summary = status.summary(run)
        state = run.read_state()
        error = summary.get("error") or {}
        if isinstance(error, str):
            error = {"message": error}
        saved = state.get("last_checkpoint") or {}
        unsaved_steps, unsaved_s = status.unsaved(state)
        claims_life = state.get("ended") is None and summary.get("state") == "lost"
        return RunRow(
            run=run,
            state=str(summary.get("state") or "lost"),
            step=int(summary.get("step") or 0),
            max_steps=int(summary.get("max_steps") or 0),
            loss=_float(summary.get("loss")),
            eval_loss=_float(summary.get("eval_loss")),
            eta_s=_float(summary.get("eta_s")),
            what=self._what_it_is(run, state),
            created=_float(state.get("created")) or _made(run),
            started=_float(state.get("started")),
            ended=_float(state.get("updated" if claims_life else "ended")),
            saved_step=saved.get("step"),
            unsaved_steps=unsaved_steps,
            unsaved_s=unsaved_s,
            earlier_s=float(state.get("earlier_s") or 0.0),
            error=str(error.get("message") or ""),
            fix=str(error.get("fix") or ""),
        )

    def _what_it_is(self, run: RunFolder, state: dict[str, Any]) -> str:
        """Method and device: they stand once the run has started."""
        if known := self._what.get(run.name):
            return known
        recipe = run.read_resolved().get("recipe") or {}
        method = str(recipe.get("method") or "")
        text = METHODS.get(method, method)
        rank = recipe.get("lora_r")
        if rank and method in ("lora", "qlora"):
            text = f"{text} r{rank}"
        device = _device(run, state)
        if device and text:
            self._what[run.name] = f"{text} · {device}"
            return self._what[run.name]
        return text


def _device(run: RunFolder, state: dict[str, Any]) -> str:
    if state.get("device") == "cpu":
        return "CPU"
    count = len(state.get("gpus") or ()) or int(state.get("world_size") or 0)
    if not count or not state.get("device"):
        return ""
    name = _gpu_name(run)
    return f"{number(count)}x{name}" if name else _("{n} GPU").format(n=number(count))


def _gpu_name(run: RunFolder) -> str:
    """`H100` from `NVIDIA H100 80GB HBM3`, as the run's first hardware sample tells it."""
    try:
        with open(run.hardware, "rb") as file:
            line = file.readline(64 * 1024)
    except OSError:
        return ""
    import orjson

    try:
        gpus = orjson.loads(line).get("gpus") or [{}]
    except ValueError:
        return ""
    words = str(gpus[0].get("name") or "").split()
    useful = [word for word in words if word not in ("NVIDIA", "AMD", "Instinct", "Tesla", "GeForce", "RTX")]
    return useful[0][:8] if useful else ""


def _mark(run: RunFolder) -> Mark | None:
    """Changes whenever state.json was replaced; None where there is none."""
    try:
        info = os.stat(run.state)
    except OSError:
        return None
    return (info.st_ino, info.st_mtime_ns, info.st_size)


def _made(run: RunFolder) -> float:
    try:
        return run.path.stat().st_mtime
    except OSError:
        return time.time()


def _float(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None
