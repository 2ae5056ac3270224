"""One metric over steps, append-only, with its moving average kept up to date point by point."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

EMA_POINTS = 10  # the moving average looks back over about so many points,
EMA_SHARE = 0.1  # or over this share of what there is: on a short falling curve a longer one would lag visibly
_STEPS, _VALUES, _EMA = range(3)


@dataclass(frozen=True, eq=False)
class SeriesView:
    """A series as it was at one moment: read-only arrays that later points never change."""

    steps: Floats
    values: Floats
    ema: Floats

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def last_step(self) -> float | None:
        """The newest step, None when there is no point."""
        return float(self.steps[-1]) if len(self.steps) else None

    def nearest(self, step: float) -> int | None:
        """The index of the point nearest to `step`, None when there is no point."""
        count = len(self.steps)
        if not count:
            return None
        right = int(np.searchsorted(self.steps, step))
        if right == 0:
            return 0
        if right == count:
            return count - 1
        return right if self.steps[right] - step < step - self.steps[right - 1] else right - 1


class Series:
    """Steps, values and moving average in arrays that double when full.

    Steps rise strictly. A point at a step that was passed already means that the run went back (a resume repeats
    steps): what lies at and after it is cut off, so the newest attempt wins. A value that is not finite is kept as a
    gap: it has no average, and the average goes on after it.
    """

    def __init__(self) -> None:
        self._data = np.empty((3, 1024), dtype=np.float64)
        self._count = 0
        self._average: float | None = None

    def __len__(self) -> int:
        return self._count

    @property
    def last(self) -> float | None:
        """The newest value, None when there is no point."""
        return float(self._data[_VALUES, self._count - 1]) if self._count else None

    def extend(self, steps: Sequence[float], values: Sequence[float]) -> None:
        """Append points in the order in which they were written."""
        if not len(steps):
            return
        all_steps = np.asarray(steps, dtype=np.float64)
        all_values = np.asarray(values, dtype=np.float64)
        backward = np.flatnonzero(np.diff(all_steps) <= 0) + 1
        for begin, end in zip((0, *backward.tolist()), (*backward.tolist(), len(all_steps)), strict=True):
            self._append(all_steps[begin:end], all_values[begin:end])

    def _append(self, steps: Floats, values: Floats) -> None:
        if self._count and steps[0] <= self._data[_STEPS, self._count - 1]:
            self._keep(int(np.searchsorted(self._data[_STEPS, : self._count], steps[0])))
        begin, end = self._count, self._count + len(steps)
        if end > self._data.shape[1]:
            capacity = self._data.shape[1]
            while capacity < end:
                capacity *= 2
            grown = np.empty((3, capacity), dtype=np.float64)
            grown[:, :begin] = self._data[:, :begin]
            self._data = grown
        self._data[_STEPS, begin:end] = steps
        self._data[_VALUES, begin:end] = values
        self._data[_EMA, begin:end] = self._averages(values.tolist(), begin)
        self._count = end

    def _averages(self, values: list[float], begin: int) -> list[float]:
        """The moving average of the next points, which follow `begin` others."""
        average = self._average
        result = []
        infinity = float("inf")
        for index, value in enumerate(values, begin):
            if not -infinity < value < infinity:
                result.append(float("nan"))
                continue
            if average is None:
                average = value
            else:
                average += (value - average) * 2.0 / (min(EMA_POINTS, 1.0 + EMA_SHARE * index) + 1.0)
            result.append(average)
        self._average = average
        return result

    def truncate(self, step: float) -> None:
        """Forget the points after `step`."""
        if self._count and self._data[_STEPS, self._count - 1] > step:
            self._keep(int(np.searchsorted(self._data[_STEPS, : self._count], step, side="right")))

    def _keep(self, count: int) -> None:
        self._data = self._data.copy()  # views that were handed out keep the old points
        self._count = count
        kept = self._data[_EMA, :count]
        finite = np.flatnonzero(np.isfinite(kept[-2048:]))
        if not len(finite):
            finite = np.flatnonzero(np.isfinite(kept))
            self._average = float(kept[finite[-1]]) if len(finite) else None
        else:
            self._average = float(kept[-2048:][finite[-1]])

    def view(self) -> SeriesView:
        """The series as it is now."""
        part = self._data[:, : self._count]
        part.flags.writeable = False
        return SeriesView(part[_STEPS], part[_VALUES], part[_EMA])


EMPTY = Series().view()
