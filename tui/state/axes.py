"""Axes that move in steps: an axis that shifted with each point would repaint the whole chart each time."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

_CEILINGS = (1.0, 1.2, 1.6, 2.0, 2.5, 3.2, 4.0, 5.0, 6.4, 8.0, 10.0)
_SHRINK_BELOW = 0.45  # a range is taken back when the data fills less than this share of it
_MARGIN = 0.06  # of the data's span, so that the next point does not move the axis again
_MIN_POINTS = 8


def nice_step(span: float, parts: int) -> float:
    """The smallest of 1, 2, 5 x 10^n that divides `span` into at most `parts`."""
    raw = span / max(parts, 1)
    if not raw > 0 or not math.isfinite(raw):
        return 1.0
    scale = 10.0 ** math.floor(math.log10(raw))
    for factor in (1.0, 2.0, 5.0, 10.0):
        if raw <= factor * scale * (1 + 1e-9):
            return factor * scale
    return 10.0 * scale


def nice_ceiling(value: float) -> float:
    """The next round number at or above `value` (at most about a quarter above it)."""
    if value <= 0:
        return 1.0
    scale = 10.0 ** math.floor(math.log10(value))
    return next(factor * scale for factor in (*_CEILINGS, 20.0) if factor * scale >= value * (1 - 1e-12))


def ticks(low: float, high: float, parts: int, *, log: bool = False) -> list[float]:
    """Round values from `low` to `high`, about `parts` of them; powers of ten and their parts on a wide log axis."""
    if log and low > 0 and high / low >= 20:
        exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        for factors in ((1.0, 2.0, 5.0), (1.0,)):
            found = [f * 10.0**e for e in exponents for f in factors if low * 0.999 <= f * 10.0**e <= high * 1.001]
            if len(found) <= parts + 2:
                return found
        return found[:: math.ceil(len(found) / max(parts, 1))]
    found = []
    for share in (parts, parts * 2, parts * 4):  # one lonely tick tells no scale
        step = nice_step(high - low, share)
        first = math.ceil(low / step - 1e-6)
        found = [index * step for index in range(first, math.floor(high / step + 1e-6) + 1)]
        if len(found) > 1:
            break
    return found


def decimals(values: list[float]) -> int:
    """How many decimals tell these ticks apart."""
    if len(values) < 2:
        return 3
    gap = min(abs(b - a) for a, b in itertools.pairwise(values))
    return 0 if gap >= 1 or gap <= 0 else min(6, math.ceil(-math.log10(gap) - 1e-6))


class ValueAxis:
    """The range of a value axis, kept until the data leaves it or fills too little of it."""

    def __init__(self) -> None:
        self.low = 0.0
        self.high = 1.0
        self._key: tuple[int, bool] | None = None

    def fit(self, extent: tuple[float, float] | None, parts: int, *, log: bool = False) -> tuple[float, float]:
        """The range that shows `extent` with about `parts` ticks."""
        if extent is None:
            return self.low, self.high
        low, high = extent
        fits = self._key == (parts, log) and self.low <= low and high <= self.high
        if fits and self._share(low, high, log) >= _SHRINK_BELOW:
            return self.low, self.high
        self._key = (parts, log)
        if high - low < 1e-9 * max(abs(high), 1e-6):  # one value: some room around it
            room = max(abs(high) * 0.05, 1e-6)
            low, high = (low / 1.1, high * 1.1) if log else (low - room, high + room)
        if log:
            self.low, self.high = self._log_floor(low), self._log_ceiling(high)
        else:
            margin = (high - low) * _MARGIN
            step = nice_step(high - low, parts) / 2  # ends between ticks keep the curve large
            low, high = (low - margin if low < 0 or low > margin else low), high + margin
            self.low, self.high = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
        return self.low, self.high

    def _share(self, low: float, high: float, log: bool) -> float:
        if log:
            return math.log(high / low) / math.log(self.high / self.low) if low > 0 else 1.0
        return (high - low) / (self.high - self.low)

    @staticmethod
    def _log_floor(value: float) -> float:
        scale = 10.0 ** math.floor(math.log10(value))
        return math.floor(value / scale * 10 + 1e-9) / 10 * scale

    @staticmethod
    def _log_ceiling(value: float) -> float:
        scale = 10.0 ** math.floor(math.log10(value))
        return math.ceil(value / scale * 10 - 1e-9) / 10 * scale


@dataclass(frozen=True)
class Window:
    """The steps that a chart shows."""

    begin: float
    end: float

    @property
    def width(self) -> float:
        return self.end - self.begin


class StepAxis:
    """Which steps are shown: the whole run with room to grow, or a window that follows the run or stands still."""

    def __init__(self) -> None:
        self._whole = Window(0.0, 10.0)
        self._zoom: Window | None = None
        self._follow = True
        self._last = 0.0

    @property
    def window(self) -> Window:
        """The steps shown now."""
        return self._zoom or self._whole

    @property
    def zoomed(self) -> bool:
        return self._zoom is not None

    def update(self, last: float | None, max_steps: float | None) -> Window:
        """Make room for the newest step; the window moves only when the data leaves it."""
        self._last = last or 0.0
        end = nice_ceiling(max(self._last, 10.0))
        if max_steps and self._last <= max_steps:
            end = min(end, float(max_steps))
        self._whole = Window(0.0, max(end, 1.0))
        if self._zoom is not None and self._follow and self._last > self._zoom.end:
            end = self._last + self._zoom.width / 4
            self._zoom = Window(end - self._zoom.width, end)
        return self.window

    def zoom(self, direction: int, around: float | None = None) -> None:
        """Half the width (1) or double it (-1), around a step or, without one, at the newest step."""
        shown = self.window
        width = shown.width / 2 if direction > 0 else shown.width * 2
        if width >= self._whole.width:
            self.fit()
            return
        width = max(width, float(_MIN_POINTS))
        if around is None:
            self._follow = True
            end = min(self._last + width / 8, max(self._whole.end, self._last))
            self._zoom = Window(end - width, end)
            return
        share = (around - shown.begin) / shown.width
        self._place(around - width * share, width)

    def reveal(self, step: float) -> None:
        """Move a zoomed window so far that `step` lies inside it."""
        if self._zoom is None or self._zoom.begin <= step <= self._zoom.end:
            return
        width = self._zoom.width
        self._place(step - width * (0.25 if step > self._zoom.end else 0.75), width)

    def fit(self) -> None:
        """Show the whole run."""
        self._zoom = None
        self._follow = True

    def _place(self, begin: float, width: float) -> None:
        begin = min(max(begin, 0.0), max(self._whole.end - width, 0.0))
        self._zoom = Window(begin, begin + width)
        self._follow = begin + width >= self._last
