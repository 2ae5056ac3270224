"""A series of any length as the columns of a chart: lowest, highest and average line per column."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tui.state.series import Floats, SeriesView


@dataclass(frozen=True, eq=False)
class Columns:
    """Per column: the extremes of the values, the line, and whether a value there was not finite.

    NaN stands where nothing is to be drawn.
    """

    low: Floats
    high: Floats
    line: Floats
    bad: NDArray[np.bool_]

    def extent(self, *, positive: bool = False) -> tuple[float, float] | None:
        """The range that the axis must show: all of the line, and the extremes but for rare outliers."""
        ends: list[float] = []
        for values, share in ((self.low, 2.0), (self.high, 98.0)):
            usable = values[np.isfinite(values) & (values > 0)] if positive else values[np.isfinite(values)]
            if len(usable):
                ends.append(float(np.percentile(usable, share)))
        line = self.line[np.isfinite(self.line) & (self.line > 0)] if positive else self.line[np.isfinite(self.line)]
        if len(line):
            ends += [float(line.min()), float(line.max())]
        return (min(ends), max(ends)) if ends else None


def columns(series: SeriesView, begin: float, end: float, count: int, *, smooth: bool = True) -> Columns:
    """Cut the steps from `begin` to `end` into `count` columns.

    A column with points has their extremes and their mean average; a column between two points has what lies on the
    straight line between them; a value that is not finite breaks the line. With `smooth` off the line follows the
    values themselves.
    """
    nothing = np.full(count, np.nan)
    bad = np.zeros(count, dtype=np.bool_)
    if not len(series) or count < 1 or end <= begin:
        return Columns(nothing, nothing, nothing, bad)
    width = (end - begin) / count
    edges = begin + width * np.arange(count + 1)
    edges[-1] = np.nextafter(end, np.inf)  # the last step of the window belongs to the last column
    bounds = np.searchsorted(series.steps, edges)
    first, last = int(bounds[0]), int(bounds[-1])
    around = slice(max(0, first - 1), last + 1)  # the neighbors outside let the line enter and leave the window
    values = np.where(np.isfinite(series.values[around]), series.values[around], np.nan)
    line_values = series.ema[around] if smooth else values
    centers = edges[:-1] + width / 2
    line = np.interp(centers, series.steps[around], line_values, left=np.nan, right=np.nan)
    low = np.interp(centers, series.steps[around], values, left=np.nan, right=np.nan)
    high = low.copy()
    counts = np.diff(bounds)
    filled = np.flatnonzero(counts)
    if len(filled):
        starts = bounds[:-1][filled] - around.start
        inside = slice(0, last - around.start)
        low[filled] = np.fmin.reduceat(values[inside], starts)
        high[filled] = np.fmax.reduceat(values[inside], starts)
        bad[filled] = np.logical_or.reduceat(np.isnan(values[inside]), starts)
        usable = np.isfinite(line_values[inside])
        totals = np.add.reduceat(np.where(usable, line_values[inside], 0.0), starts)
        numbers = np.add.reduceat(usable.astype(np.float64), starts)
        line[filled] = np.divide(totals, numbers, out=np.full(len(filled), np.nan), where=numbers > 0)
    return Columns(low, high, line, bad)
