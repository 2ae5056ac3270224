"""Collects what a run's files say and hands out frozen snapshots of it. Fed by one thread, read by another."""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from engine.run.progress import UnsavedTime
from tui.state.series import Series
from tui.state.snapshot import LIVE, Gpu, Host, Numbers, Plan, PostMortem, Problem, RunSnapshot, figure

KEPT_EVENTS = 200
SHOWN_EVENTS = 60
_NUMBERS = ("learning_rate", "grad_norm", "epoch", "tokens_per_s", "step_time_s", "mfu")
_SPEEDS = ("tokens_per_s", "step_time_s", "mfu")
_TOLD_BY_JOURNAL = frozenset({"checkpoint", "save_failed"})  # the supervisor repeats what rank 0 wrote


class RunStore:
    """The state of one run, from its journal, events, hardware samples and state.json."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.revision = 0
        self.loading: float | None = None
        self._state: Mapping[str, Any] = {}
        self._shown_state = ""
        self._sealed: int | None = None
        self._sample: Mapping[str, Any] = {}
        self._snapshot: RunSnapshot | None = None
        self._plan: Plan | None = None
        self._post_mortem: PostMortem | None = None
        self._supervisor_events: deque[Mapping[str, Any]] = deque(maxlen=KEPT_EVENTS)
        self.reset_journal()

    def reset_journal(self) -> None:
        """Forget what the journal said: the file shrank or was replaced."""
        self.revision += 1
        self._attempt = 0
        self._trained = 0  # the attempt that the figures below are of: one that still loads has none
        self._unsaved = UnsavedTime()
        self._step: int | None = None
        self._max_steps: int | None = None
        self._train, self._evaluation = Series(), Series()
        self._best: tuple[float, float] | None = None  # lowest eval loss and its step
        self._last_log: Mapping[str, Any] = {}
        self._saved_step: int | None = None
        self._time = 0.0
        self._journal_events: deque[Mapping[str, Any]] = deque(maxlen=KEPT_EVENTS)

    def reset_events(self) -> None:
        """Forget what the supervisor's events said."""
        self.revision += 1
        self._supervisor_events.clear()

    def feed(self, events: Iterable[Mapping[str, Any]]) -> int:
        """Take the next lines of journal.jsonl; returns how many there were."""
        steps: list[float] = []
        losses: list[float] = []
        count = 0
        last = None
        for event in events:
            count += 1
            attempt = event.get("attempt", 1)
            if attempt != self._attempt:
                if not isinstance(attempt, int) or attempt < self._attempt:
                    continue  # a line of an attempt that has been replaced
                self._attempt = attempt
                self._unsaved = UnsavedTime()
            if event.get("event") == "log":
                step = event.get("step")
                if type(step) is int:
                    last = event
                    if "loss" in event:
                        loss = event["loss"]
                        steps.append(step)
                        losses.append(loss if type(loss) is float else _loss(loss))
                continue
            self._train.extend(steps, losses)
            steps, losses = [], []
            if last is not None:
                self._take_log(last)
                last = None
            self._take_other(event)
        self._train.extend(steps, losses)
        if last is not None:
            self._take_log(last)
        self.revision += bool(count)
        return count

    def _take_log(self, event: Mapping[str, Any]) -> None:
        self._last_log = event
        self._trained = self._attempt
        self._unsaved.take(event)
        self._step = event["step"]
        self._time = max(self._time, figure(event.get("time")) or 0.0)

    def _take_other(self, event: Mapping[str, Any]) -> None:
        kind, step = event.get("event"), event.get("step")
        self._unsaved.take(event)
        self._time = max(self._time, figure(event.get("time")) or 0.0)
        if kind == "start":
            begin = step if isinstance(step, int) else 0
            self._trained = self._attempt
            self._train.truncate(begin)
            self._forget_evals(begin)
            self._step = begin
            if self._saved_step is not None:  # what lies after the resumed step is no longer part of this run
                self._saved_step = min(self._saved_step, begin)
            maximum = event.get("max_steps")
            self._max_steps = maximum if isinstance(maximum, int) and maximum > 0 else None
        elif kind == "eval" and isinstance(step, int):
            self._take_eval(event, step)
        elif kind in ("save", "save_failed"):
            self._journal_events.append(event)
            if kind == "save" and isinstance(step, int):
                self._saved_step = step
                self._step = max(self._step or 0, step)  # it may come between two lines of the log, or after more
        elif kind == "end" and isinstance(step, int):
            self._step = step

    def _take_eval(self, event: Mapping[str, Any], step: int) -> None:
        value = _loss(event.get("eval_loss"))
        self._forget_evals(step - 1)
        before = self._evaluation.last
        self._evaluation.extend([step], [value])
        best = math.isfinite(value) and (self._best is None or value < self._best[0])
        if best:
            self._best = (value, float(step))
        self._journal_events.append({**event, "previous": before, "best": best and before is not None})

    def _forget_evals(self, after: int) -> None:
        self._evaluation.truncate(after)
        if self._best is not None and self._best[1] > after:
            view = self._evaluation.view()
            pairs = zip(view.values.tolist(), view.steps.tolist(), strict=True)
            self._best = min((pair for pair in pairs if math.isfinite(pair[0])), default=None)

    def feed_events(self, events: Iterable[Mapping[str, Any]]) -> None:
        """Take the next lines of events.jsonl."""
        for event in events:
            if event.get("event") not in _TOLD_BY_JOURNAL:
                self._supervisor_events.append(event)
            self.revision += 1

    def feed_hardware(self, samples: Iterable[Mapping[str, Any]]) -> None:
        """Take the next lines of hardware.jsonl; only the newest is kept."""
        for sample in samples:
            self._sample = sample
            self.revision += 1

    def feed_state(self, state: Mapping[str, Any], shown: str | None = None, sealed: int | None = None) -> None:
        """Take state.json as it is now.

        Args:
            state: its content.
            shown: the state to show in place of its own (a lost run).
            sealed: of a run that has ended, the step of the checkpoint that a resume would take.
        """
        shown = shown or str(state.get("state") or "queued")
        if (state, shown, sealed) != (self._state, self._shown_state, self._sealed):
            self._state, self._shown_state, self._sealed = state, shown, sealed
            self.revision += 1

    def feed_plan(self, document: Mapping[str, Any] | None) -> None:
        """Take plan.json as it is now; None without one."""
        plan = None if document is None else Plan.from_document(document)
        if plan != self._plan:
            self._plan = plan
            self.revision += 1

    def feed_post_mortem(self, found: PostMortem | None) -> None:
        """Take why the run ended; None while it lives, or when it ended well."""
        if found != self._post_mortem:
            self._post_mortem = found
            self.revision += 1

    def set_loading(self, share: float | None) -> None:
        """Say how much of the journal has been read, None when all of it has."""
        if share != self.loading:
            self.loading = share
            self.revision += 1

    def snapshot(self) -> RunSnapshot:
        """The run as it is now; the same object as before when nothing was fed since."""
        if self._snapshot is None or self._snapshot.revision != self.revision:
            self._snapshot = self._make()
        return self._snapshot

    def _make(self) -> RunSnapshot:
        state = self._state
        attempt = max(self._attempt, int(figure(state.get("attempt")) or 1))
        loads = bool(state) and self._trained < attempt  # the journal still tells of the attempt before
        step = int(figure(state.get("step")) or 0) if loads or self._step is None else self._step
        maximum = self._max_steps or int(figure(state.get("max_steps")) or 0) or None
        live = self._shown_state in LIVE
        safe = self._safe_step(step) if live else self._sealed
        at_risk = max(0, step - (safe or 0)) if self._shown_state != "done" else 0
        unsaved = self._unsaved.seconds if not loads and self.loading is None else figure(state.get("unsaved_s"))
        numbers = self._numbers(loads, attempt)
        return RunSnapshot(
            revision=self.revision,
            name=self.name,
            state=self._shown_state or "queued",
            phase=str(state.get("phase") or ""),
            step=step,
            max_steps=maximum,
            attempt=attempt,
            restarts=int(figure(state.get("restarts")) or 0),
            device=str(state.get("device") or ""),
            world_size=int(figure(state.get("world_size")) or 1),
            numbers=numbers,
            train=self._train.view(),
            evaluation=self._evaluation.view(),
            gpus=self._gpus(),
            host=Host.from_sample(self._sample) if self._sample else None,
            events=self._events(),
            problem=_problem(state.get("error")),
            post_mortem=self._post_mortem,
            plan=self._plan,
            eta_s=figure(state.get("eta_s")) if live else None,
            elapsed_s=self._elapsed(live),
            safe_step=safe,
            at_risk_steps=at_risk,
            at_risk_seconds=unsaved if at_risk else 0.0,
            loading=self.loading,
        )

    def _numbers(self, loads: bool, attempt: int) -> Numbers:
        """The newest figures. After a resume the loss is that of its step until a new one comes; speeds are unknown."""
        log, state = self._last_log, self._state
        loss = figure(state.get("loss")) if loads or not len(self._train) else self._train.last
        newest_eval = None if loads else self._evaluation.last
        best, best_step = self._best or (None, None)
        unknown = _SPEEDS if log and log.get("attempt", 1) != attempt else ()
        return Numbers(
            loss=loss,
            eval_loss=figure(state.get("eval_loss")) if newest_eval is None else newest_eval,
            best_eval=best,
            best_eval_step=best_step,
            **{name: figure(log.get(name, state.get(name))) for name in _NUMBERS if name not in unknown},
        )

    def _safe_step(self, step: int) -> int | None:
        """The newest checkpoint of a live run: the journal knows it a moment before state.json does."""
        checkpoint = self._state.get("last_checkpoint")
        told = figure(checkpoint.get("step")) if isinstance(checkpoint, Mapping) else None
        known = (saved for saved in (told, self._saved_step) if saved is not None and saved <= step)
        return max((int(saved) for saved in known), default=None)

    def _gpus(self) -> tuple[Gpu, ...]:
        """The run's own GPUs; all of the sample's where state.json does not name them."""
        sampled, own = self._sample.get("gpus"), self._state.get("gpus")
        if not isinstance(sampled, list):
            return ()
        named = set(own) if isinstance(own, list) else set()
        gpus = [(gpu, i) for i, gpu in enumerate(sampled) if isinstance(gpu, Mapping)]
        mine = [(gpu, i) for gpu, i in gpus if gpu.get("uuid") in named]
        if not named and self._state.get("device") == "cpu":
            return ()
        return tuple(Gpu.from_sample(gpu, i) for gpu, i in mine or gpus)

    def _elapsed(self, live: bool) -> float | None:
        """How long it has held its devices, over all attempts; it stands still when the files do."""
        started, ended = figure(self._state.get("started")), figure(self._state.get("ended"))
        earlier = figure(self._state.get("earlier_s")) or 0.0
        if started is None:
            return earlier or None
        newest = max(self._time, figure(self._state.get("updated")) or 0.0)
        if live:
            newest = max(newest, figure(self._sample.get("time")) or 0.0)
        return earlier + max(0.0, (ended if ended is not None and not live else newest) - started)

    def _events(self) -> tuple[Mapping[str, Any], ...]:
        """The newest events of both files, newest first."""
        merged = heapq.merge(
            reversed(self._journal_events), reversed(self._supervisor_events), key=_event_time, reverse=True
        )
        return tuple(itertools.islice(merged, SHOWN_EVENTS))


def _event_time(event: Mapping[str, Any]) -> float:
    return figure(event.get("time")) or 0.0


def _loss(value: Any) -> float:
    """A loss as float; the journal writes NaN and infinities as null."""
    number = figure(value)
    return math.nan if number is None else number


def _problem(error: Any) -> Problem | None:
    if not isinstance(error, Mapping):
        return None
    return Problem(
        message=str(error.get("message") or error.get("kind") or ""),
        where=str(error.get("where") or ""),
        fix=str(error.get("fix") or ""),
    )
