"""What the journal says about an attempt, folded into the fields of state.json."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.workspace import RunFolder

if TYPE_CHECKING:
    from engine.checkpoint.ledger import Entry

WINDOW = 64  # journal lines that the remaining time is estimated from


class UnsavedTime:
    """How long the ranks have trained since the newest sealed checkpoint, by the journal's own times.

    A new attempt begins at its checkpoint: neither what was lost before nor the time between counts.
    """

    def __init__(self) -> None:
        self.seconds: float | None = None
        self._begin: float | None = None
        self._taken: dict[Any, float] = {}  # when the state of a save that is being written was taken, by steps

    def take(self, event: Mapping[str, Any]) -> None:
        """Fold in one event of the newest attempt."""
        moment = event.get("time")
        if not isinstance(moment, int | float):
            return
        kind = event.get("event")
        if kind == "save_begin" and event.get("background"):
            self._taken[event.get("step")] = moment  # what is trained while it is written is not in it
        elif kind == "save_failed":
            self._taken.pop(event.get("step"), None)
        elif kind in ("start", "save"):
            self._begin = self._taken.pop(event.get("step"), moment) if kind == "save" else moment
        if self._begin is not None:
            self.seconds = max(0.0, moment - self._begin)


def from_checkpoint(run: RunFolder, entry: Entry | None) -> dict[str, Any]:
    """The fields of state.json of a run that goes on from a checkpoint; None: from the beginning.

    Loss and evaluation are those of that step until the ranks report new ones.
    """
    metrics = entry.metrics if entry is not None else {}
    sealed = None
    if entry is not None:
        path = os.path.relpath(entry.path, run.path)
        sealed = {"step": entry.step, "path": path, "time": entry.path.stat().st_mtime}
    return {
        "step": entry.step if entry is not None else 0,
        **{key: metrics.get(key) for key in ("loss", "eval_loss", "epoch")},
        "tokens_per_s": None,
        "eta_s": None,
        "unsaved_s": 0.0,
        "last_checkpoint": sealed,
        "resumed_from": str(entry.path) if entry is not None else None,
    }


class Progress:
    """Reads the events of one attempt; `changes` is for state.json, the rest is what the supervisor decides by."""

    def __init__(self, run: RunFolder, attempt: int) -> None:
        self.run = run
        self.attempt = attempt
        self.changes: dict[str, Any] = {}  # since the last `take_changes`
        self.started = False
        self.step: int | None = None
        self.max_steps: int | None = None
        self.evaluating = False
        self.answered = 0  # the newest request that the ranks acted upon
        self.outcome: str | None = None
        self.saved_step: int | None = None
        self.news: list[dict[str, Any]] = []  # checkpoints and failed saves, for events.jsonl
        self._asked_at = 0  # the step of the newest request for an evaluation
        self._pace: deque[tuple[float, int]] = deque(maxlen=WINDOW)
        self._unsaved = UnsavedTime()

    def take(self, events: Iterable[dict[str, Any]]) -> None:
        """Fold in some events; those of older attempts are left out."""
        for event in events:
            if event.get("attempt", self.attempt) == self.attempt:
                handler = getattr(self, f"_on_{event.get('event')}", None)
                if handler is not None:
                    handler(event)
                self._unsaved.take(event)
                if self._unsaved.seconds is not None:
                    self.changes["unsaved_s"] = round(self._unsaved.seconds, 1)

    def take_changes(self) -> dict[str, Any]:
        """The fields that changed since the last call."""
        changes, self.changes = self.changes, {}
        return changes

    def _at(self, event: dict[str, Any]) -> None:
        step = event.get("step")
        if isinstance(step, int):
            self.step = step
            self.changes["step"] = step

    def _on_phase(self, event: dict[str, Any]) -> None:
        if isinstance(event.get("phase"), str):
            self.changes["phase"] = event["phase"]

    def _on_start(self, event: dict[str, Any]) -> None:
        self.started = True
        self._at(event)
        self.changes.update(state="running", phase="train")
        if isinstance(event.get("max_steps"), int):
            self.max_steps = self.changes["max_steps"] = event["max_steps"]
        self._pace.append((time.monotonic(), self.step or 0))

    def _on_log(self, event: dict[str, Any]) -> None:
        self._at(event)
        for key in ("loss", "epoch", "tokens_per_s"):
            if key in event:  # null, too: a loss that is no number any more is not the last good one
                self.changes[key] = event[key]
        if self.evaluating and self.step is not None and self.step > self._asked_at:
            self._evaluated()  # it came to nothing
        self._pace.append((time.monotonic(), self.step or 0))
        self.changes["eta_s"] = self._eta(event.get("step_time_s"))

    def _eta(self, step_time: Any) -> float | None:
        """Remaining time at the pace of the last lines: that counts evaluations and saves in.

        Measured by our own monotonic clock; the journal's times are the wall clock's, which may be set.
        """
        if self.max_steps is None or self.step is None:
            return None
        (first_time, first_step), (last_time, last_step) = self._pace[0], self._pace[-1]
        if last_step > first_step and len(self._pace) > 2 and last_time - first_time > 1.0:
            pace = (last_time - first_time) / (last_step - first_step)
        elif isinstance(step_time, int | float):
            pace = float(step_time)
        else:
            return None
        return round(max(0, self.max_steps - self.step) * pace, 1)

    def _on_eval(self, event: dict[str, Any]) -> None:
        if event.get("eval_loss") is not None:
            self.changes["eval_loss"] = event["eval_loss"]
        if self.evaluating:
            self._evaluated()

    def _evaluated(self) -> None:
        self.evaluating = False
        self.changes["phase"] = "train"

    def _on_save_begin(self, _event: dict[str, Any]) -> None:
        self.changes.update(state="saving", phase="save")

    def _on_save_staged(self, _event: dict[str, Any]) -> None:
        self.changes.update(state="running", phase="train")  # it is written in the background

    def _on_save(self, event: dict[str, Any]) -> None:
        step = event.get("step")
        if isinstance(step, int) and step > (self.step or 0):  # it may come between two lines of the log
            self._at(event)
        self.changes.update(state="running", phase="train")
        path = Path(str(event.get("path") or f"checkpoints/checkpoint-{event.get('step')}"))
        if path.is_absolute() and path.is_relative_to(self.run.path):
            path = path.relative_to(self.run.path)
        self.changes["last_checkpoint"] = {"step": event.get("step"), "path": str(path), "time": event.get("time")}
        self.news.append({"event": "checkpoint", "step": event.get("step"), "seconds": event.get("seconds")})

    def _on_save_failed(self, event: dict[str, Any]) -> None:
        self.changes.update(state="running", phase="train")
        self.news.append({"event": "save_failed", "step": event.get("step"), "reason": event.get("reason")})

    def _on_request(self, event: dict[str, Any]) -> None:
        if isinstance(event.get("id"), int):
            self.answered = max(self.answered, event["id"])
        if event.get("do") == "evaluate":
            self.evaluating = True
            self._asked_at = event["step"] if isinstance(event.get("step"), int) else self.step or 0
            self.changes["phase"] = "evaluate"

    def _on_end(self, event: dict[str, Any]) -> None:
        self._at(event)
        self.outcome = event.get("outcome")
        self.saved_step = event.get("saved_step")
