"""The loss guard: a loss that is no number, a spike that stays, an evaluation that only rises."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.text import _, number

NEWEST = 5  # one high loss is noise, so many in a row are not
BEFORE = 50
LEAST_BEFORE = 20  # before that the loss falls too fast to be compared with itself
LEAST_RISE = 0.1  # near zero, twice of next to nothing is nothing
DEFAULTS: dict[str, Any] = {
    "on_nan": "stop",
    "on_loss_spike": "warn",
    "on_eval_rise": "warn",
    "loss_spike_factor": 2.0,
    "eval_rise_patience": 3,
    "max_rollbacks": 2,
    "hang_after_s": 600.0,
    "hang_factor": 20.0,
}
"""As in engine/recipe/own.py, for runs whose recipe was resolved before these keys were there; a test compares them."""


KINDS = {"nan": "loss_not_finite", "spike": "loss_spike", "eval_rise": "eval_rise"}
"""The kind of the error that a run stops with."""


def settings(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """The guard's and the watchdog's keys of a resolved recipe."""
    return {key: recipe[key] if recipe.get(key) is not None else value for key, value in DEFAULTS.items()}


@dataclass(frozen=True)
class Trip:
    """What the guard saw: `what` is `nan`, `spike` or `eval_rise`; `back_to` is the last step before it began."""

    what: str
    action: str
    step: int
    value: float | None
    limit: float | None
    back_to: int

    def error(self) -> dict[str, Any]:
        """As it stands in state.json when the run stops for it."""
        fix = _("lower learning_rate or raise warmup_steps, then go on from before it: `ftui resume RUN --step N`")
        if self.what == "eval_rise":
            fix = _("the best checkpoint is the result: `ftui ckpt list RUN` names it")
        return {
            "kind": KINDS[self.what],
            "message": self.describe(),
            "where": None,
            "fix": fix,
            "exit_code": 1,
            "step": self.step,
        }

    def describe(self) -> str:
        """One sentence for people."""
        if self.what == "nan":
            return _("the loss at step {step} is not a number").format(step=number(self.step))
        value, limit = number(self.value or 0.0, 3), number(self.limit or 0.0, 3)
        if self.what == "spike":
            text = _("the loss jumped to {value} at step {step}; above {limit} it counts as a spike")
        else:
            text = _("the evaluation at step {step} is {value}, and none since step {best} was below {limit}")
        return text.format(value=value, step=number(self.step), limit=limit, best=number(self.back_to))


class LossGuard:
    """Reads a run's journal; each trouble trips it once, until it is over.

    An attempt that goes on from a checkpoint begins with what was known at that step.
    """

    def __init__(self, recipe: Mapping[str, Any]) -> None:
        self.settings = settings(recipe)
        self._losses: deque[tuple[int, float]] = deque(maxlen=BEFORE + NEWEST)
        self._evals: list[tuple[int, float]] = []
        self._last = 0
        self._nan = self._spiking = False
        self._worse = 0

    def take(self, event: Mapping[str, Any]) -> Trip | None:
        """Look at one event."""
        step = event.get("step")
        if not isinstance(step, int):
            return None
        if event.get("event") == "start":
            self._rewind(step)
        if event.get("event") == "log" and "loss" in event:
            return self._log(step, event["loss"])
        if event.get("event") == "eval":
            return self._eval(step, event.get("eval_loss"))
        return None

    def _trip(self, key: str, what: str, step: int, value: float | None, limit: float | None, back: int) -> Trip | None:
        action = self.settings[key]
        return None if action == "ignore" else Trip(what, action, step, value, limit, back)

    def _log(self, step: int, loss: Any) -> Trip | None:
        if not isinstance(loss, int | float):  # the journal writes NaN and infinities as null
            before, self._nan = self._nan, True
            return None if before else self._trip("on_nan", "nan", step, None, None, self._last)
        self._nan, self._last = False, step
        self._losses.append((step, float(loss)))
        losses = [value for _step, value in self._losses]
        newest, earlier = losses[-NEWEST:], losses[:-NEWEST]
        if len(earlier) < LEAST_BEFORE:
            return None
        middle = statistics.median(earlier)
        limit = max(middle * self.settings["loss_spike_factor"], middle + LEAST_RISE)
        if min(newest) <= limit:
            self._spiking = self._spiking and max(newest) > limit
            return None
        if self._spiking:
            return None
        self._spiking = True
        back = self._losses[-NEWEST - 1][0]
        return self._trip("on_loss_spike", "spike", step, statistics.fmean(newest), limit, back)

    def _eval(self, step: int, loss: Any) -> Trip | None:
        if not isinstance(loss, int | float):
            return None
        best = min(self._evals, key=lambda known: known[1], default=None)
        self._evals.append((step, float(loss)))
        if best is None or loss < best[1]:
            self._worse = 0
            return None
        self._worse += 1
        if self._worse < self.settings["eval_rise_patience"]:
            return None
        self._worse = 0
        return self._trip("on_eval_rise", "eval_rise", step, float(loss), best[1], best[0])

    def _rewind(self, step: int) -> None:
        self._losses = deque((known for known in self._losses if known[0] <= step), maxlen=BEFORE + NEWEST)
        self._evals = [known for known in self._evals if known[0] <= step]
        self._nan = self._spiking = False
        self._worse, self._last = 0, step
