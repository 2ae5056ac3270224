"""What the loop tells the journal, and what signals and requests tell the loop."""

from __future__ import annotations

import time
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from engine.files import read_json
from engine.train import flops
from engine.train.events import Events, answered
from engine.train.rank import Rank, Signals, rotate_if_large
from engine.train.ranks import Ranks
from engine.train.saving import Saver


class JournalCallback(TrainerCallback):
    """Writes `start`, `log` and `eval`, with the figures that the trainer does not have or forgets on a resume."""

    def __init__(self, rank: Rank, ranks: Ranks, events: Events, saver: Saver, start: dict[str, Any]) -> None:
        self.rank = rank
        self.ranks = ranks
        self.events = events
        self.saver = saver
        self.start = start
        self.step = 0
        self.tokens_before = int(start.pop("tokens_seen", 0) or 0)  # the trainer's own count begins at 0 again
        self._tokens_logged = self.tokens_before
        self._step_logged = 0
        self._busy = 0.0  # seconds in steps since the last line: evaluations and saves are not training time
        self._mark = 0.0
        self._flops: float | None = None
        self._peak: float | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.step = self._step_logged = state.global_step
        self.events.append("start", step=state.global_step, max_steps=state.max_steps, **self.start)
        self.events.sync()
        if torch.cuda.is_available() and args.device.type == "cuda":
            length = int(getattr(args, "max_length", None) or 0)
            self._flops = flops.per_token(kwargs["model"], length if getattr(args, "packing", False) else length // 2)
            self._peak = flops.peak(torch.cuda.get_device_name(args.device))
            torch.cuda.reset_peak_memory_stats()
        if args.save_strategy != "no":
            self.saver.warm_up(kwargs["model"])
        self._mark = time.monotonic()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        now = time.monotonic()
        self._busy += now - self._mark
        self._mark = now
        self.step = state.global_step

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if not logs or "loss" not in logs:  # the evaluation's and the closing summary
            return
        allocated, reserved = self._memory(args)
        tokens = self.tokens_before + int(logs.get("num_tokens", 0))
        steps = max(1, state.global_step - self._step_logged)
        rate = (tokens - self._tokens_logged) / self._busy if self._busy > 0 else None
        fields = {
            **logs,
            "tokens_seen": tokens,
            "tokens_per_s": round(rate, 1) if rate is not None else None,
            "step_time_s": round(self._busy / steps, 5),
            "mfu": self._mfu(rate),
            "memory_allocated": allocated,
            "memory_reserved": reserved,
        }
        fields.pop("num_tokens", None)
        self.events.append("log", step=state.global_step, **fields)
        self.saver.metrics.update(loss=logs["loss"], tokens_seen=tokens)
        self._tokens_logged, self._step_logged, self._busy = tokens, state.global_step, 0.0
        self._mark = time.monotonic()
        rotate_if_large(self.rank.log)

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        values = {key: value for key, value in (metrics or {}).items() if key.startswith("eval_")}
        self.events.append("eval", step=state.global_step, epoch=state.epoch, **values)
        self.saver.metrics.update(values)
        self._mark = time.monotonic()

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._mark = time.monotonic()

    def _memory(self, args: TrainingArguments) -> tuple[list[int] | None, list[int] | None]:
        """Peak bytes of each rank since the last line; None on a CPU, where torch does not count."""
        if args.device.type != "cuda":
            return None, None
        own = (torch.cuda.max_memory_allocated(args.device), torch.cuda.max_memory_reserved(args.device))
        torch.cuda.reset_peak_memory_stats()
        of_all = self.ranks.gather(own)
        return [allocated for allocated, _reserved in of_all], [reserved for _allocated, reserved in of_all]

    def _mfu(self, rate: float | None) -> float | None:
        if rate is None or not self._flops or not self._peak:
            return None
        return round(rate * self._flops / (self._peak * self.ranks.size), 4)


class ControlCallback(TrainerCallback):
    """At the end of each step all ranks agree on what was asked: by a signal, or by request.json."""

    def __init__(self, ranks: Ranks, events: Events, signals: Signals, rank: Rank, *, can_evaluate: bool) -> None:
        self.ranks = ranks
        self.events = events
        self.signals = signals
        self.request = rank.run.request
        self.can_evaluate = can_evaluate
        self.stopped = False
        self._stamp: tuple[int, int] | None = None
        self._answered = answered(rank.run.journal) if ranks.first else 0

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        number, wish = self._new_request() if self.ranks.first else (0, "")
        save, evaluate, stop = self.ranks.highest(
            (wish == "save", wish == "evaluate", wish == "stop" or self.signals.stop is not None)
        )
        if save:
            control.should_save = True
        if evaluate and self.can_evaluate:
            control.should_evaluate = True
        if stop:
            # An evaluation that is due at this step is still made: a resume would not come by here again.
            control.should_log = control.should_save = control.should_training_stop = True
            self.stopped = state.global_step < state.max_steps
        if number:
            self.events.append("request", step=state.global_step, id=number, do=wish)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.stopped:  # in the middle of an epoch: what is due at its end is not due
            control.should_evaluate = control.should_log = control.should_save = False

    def _new_request(self) -> tuple[int, str]:
        """Number and wish of a request that was not acted upon yet; (0, "") without one."""
        try:
            info = self.request.stat()
        except OSError:
            return 0, ""
        stamp = (info.st_mtime_ns, info.st_ino)
        if stamp == self._stamp:
            return 0, ""
        self._stamp = stamp
        value = read_json(self.request)
        if not isinstance(value, dict):
            return 0, ""
        number, wish = value.get("id"), value.get("do")
        if not isinstance(number, int) or number <= self._answered or wish not in ("save", "evaluate", "stop"):
            return 0, ""
        self._answered = number
        return number, str(wish)
