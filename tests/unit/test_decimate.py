"""Columns of a chart: no extreme is lost, gaps stay gaps, zoomed windows join their neighbors."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tui.state.decimate import columns
from tui.state.series import Series, SeriesView


def series(values: list[float], steps: list[int] | None = None) -> SeriesView:
    made = Series()
    made.extend(steps or range(len(values)), values)
    return made.view()


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=300), st.integers(1, 50))
def test_no_extreme_is_lost(values: list[float], count: int) -> None:
    part = columns(series(values), 0, len(values) - 1, count)
    assert np.nanmin(part.low) == pytest.approx(min(values))
    assert np.nanmax(part.high) == pytest.approx(max(values))
    drawn = ~np.isnan(part.line)
    assert (part.low[drawn] <= part.high[drawn]).all()


def test_each_column_has_the_extremes_of_its_steps() -> None:
    part = columns(series([0, 10, 1, 11, 2, 12, 3, 13]), 0, 7, 4, smooth=False)
    assert part.low.tolist() == [0, 1, 2, 3]
    assert part.high.tolist() == [10, 11, 12, 13]
    assert part.line.tolist() == [5, 6, 7, 8]


def test_between_points_lies_a_straight_line() -> None:
    part = columns(series([0.0, 10.0], [0, 100]), 0, 100, 10, smooth=False)
    assert np.allclose(part.line[1:-1], np.arange(1.5, 9.0, 1.0))
    assert np.allclose(part.low, part.high)


def test_the_line_enters_and_leaves_a_zoomed_window() -> None:
    part = columns(series([0.0, 10.0, 0.0], [0, 100, 200]), 20, 80, 6, smooth=False)
    assert not np.isnan(part.line).any()
    assert np.allclose(part.line, np.linspace(2.5, 7.5, 6))


def test_nothing_is_drawn_beyond_the_data() -> None:
    part = columns(series([1.0] * 50), 0, 100, 10)
    assert not np.isnan(part.line[:4]).any()
    assert np.isnan(part.line[6:]).all()


def test_values_that_are_not_finite_break_the_line_and_are_marked() -> None:
    values = [1.0, 1.0, math.nan, 1.0, math.inf, 1.0]
    part = columns(series(values), 0, 5, 6)
    assert part.bad.tolist() == [False, False, True, False, True, False]
    assert np.isnan(part.line).tolist() == part.bad.tolist()
    assert np.isnan(part.low).tolist() == part.bad.tolist()


def test_all_values_not_finite() -> None:
    part = columns(series([math.nan] * 20), 0, 19, 5)
    assert part.bad.all()
    assert part.extent() is None


@pytest.mark.parametrize(("begin", "end", "count"), [(0, 10, 0), (5, 5, 10), (10, 0, 10)])
def test_empty_windows(begin: float, end: float, count: int) -> None:
    assert np.isnan(columns(series([1.0, 2.0]), begin, end, count).line).all()


def test_no_points() -> None:
    part = columns(Series().view(), 0, 10, 5)
    assert np.isnan(part.line).all()
    assert part.extent() is None


def test_a_lone_spike_does_not_set_the_axis() -> None:
    values = [1.0 + 0.01 * (i % 7) for i in range(10_000)]
    values[5000] = 1e6
    low, high = columns(series(values), 0, 9999, 400, smooth=False).extent()
    line_high = np.nanmax(columns(series(values), 0, 9999, 400, smooth=False).line)
    assert low == pytest.approx(1.0, abs=0.01)
    assert high == line_high  # all of the line is shown, the band above it may be cut


def test_extent_on_a_log_axis_takes_positive_values_only() -> None:
    part = columns(series([-1.0, 0.0, 0.1, 10.0]), 0, 3, 4, smooth=False)
    low, high = part.extent(positive=True)
    assert 0.1 <= low < high <= 10.0
