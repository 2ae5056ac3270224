"""Series: growth, resumes that go back, averages, views that never change."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tui.state.series import EMA_POINTS, Series


def filled(count: int, start: int = 1) -> Series:
    series = Series()
    series.extend(range(start, start + count), [float(i) for i in range(count)])
    return series


def test_it_grows_beyond_its_first_array() -> None:
    series = filled(5000)
    series.extend([5001], [1.5])
    view = series.view()
    assert len(view) == 5001
    assert view.steps[0] == 1
    assert view.last_step == 5001
    assert view.values[-1] == 1.5
    assert np.array_equal(view.values[:5000], np.arange(5000))


def test_a_resume_repeats_steps_and_the_newest_wins() -> None:
    series = Series()
    series.extend([1, 2, 3, 4, 5], [5, 4, 3, 2, 1])
    series.extend([4, 5, 6], [20, 10, 0])
    assert series.view().steps.tolist() == [1, 2, 3, 4, 5, 6]
    assert series.view().values.tolist() == [5, 4, 3, 20, 10, 0]


def test_a_resume_inside_one_batch() -> None:
    series = Series()
    series.extend([1, 2, 3, 2, 3, 4, 1], [1, 2, 3, 20, 30, 40, 100])
    assert series.view().steps.tolist() == [1]
    assert series.view().values.tolist() == [100]


def test_truncate_forgets_what_lies_after_the_step() -> None:
    series = filled(10)
    series.truncate(4)
    assert series.view().steps.tolist() == [1, 2, 3, 4]
    series.truncate(100)
    assert len(series) == 4
    series.truncate(0)
    assert len(series) == 0
    assert series.last is None


def test_a_view_keeps_its_points_when_the_run_goes_back() -> None:
    series = filled(10)
    before = series.view()
    kept = before.values.copy()
    series.extend([5, 6], [99.0, 98.0])
    series.extend(range(7, 30), [1.0] * 23)
    assert np.array_equal(before.values, kept)
    with pytest.raises(ValueError, match="read-only"):
        before.values[0] = 3.0


def test_the_average_follows_a_short_curve_closely_and_smooths_a_long_one() -> None:
    series = Series()
    series.extend([1, 2], [3.0, 1.0])
    assert series.view().ema.tolist() == pytest.approx([3.0, 1.0], abs=0.11)
    falling = [5.0 - 0.1 * i for i in range(40)]
    series.extend(range(3, 43), falling)
    assert series.view().ema[-1] == pytest.approx(falling[-1], abs=0.1 * 2.5)  # it lags two or three points
    series.extend(range(43, 600), [1.0 + (i % 2) for i in range(557)])
    late = series.view().ema[-100:]
    assert late.max() - late.min() < 0.25  # of a noise of 1


def test_the_average_looks_back_over_few_points() -> None:
    series = Series()
    series.extend(range(200), [3.0] * 200)
    series.extend(range(200, 200 + 3 * EMA_POINTS), [7.0] * (3 * EMA_POINTS))
    assert series.view().ema[-1] == pytest.approx(7.0, abs=0.02)


@given(
    st.lists(st.floats(-1e6, 1e6) | st.just(math.nan), max_size=60),
    st.lists(st.integers(1, 20), min_size=1, max_size=10),
)
def test_the_average_does_not_depend_on_how_the_points_arrive(values: list[float], cuts: list[int]) -> None:
    whole, pieces = Series(), Series()
    whole.extend(range(len(values)), values)
    begin = 0
    for cut in cuts:
        pieces.extend(range(begin, min(begin + cut, len(values))), values[begin : begin + cut])
        begin += cut
    pieces.extend(range(begin, len(values)), values[begin:])
    assert np.allclose(whole.view().ema, pieces.view().ema, equal_nan=True)


def test_a_value_that_is_not_finite_is_a_gap_and_the_average_goes_on() -> None:
    series = Series()
    series.extend([1, 2, 3, 4], [2.0, math.nan, math.inf, 2.0])
    ema = series.view().ema
    assert ema[0] == 2.0
    assert np.isnan(ema[1:3]).all()
    assert ema[3] == 2.0


def test_the_average_after_a_resume_is_that_of_a_run_that_was_never_broken() -> None:
    broken, straight = Series(), Series()
    values = [math.sin(i) for i in range(100)]
    broken.extend(range(100), values)
    broken.extend(range(60, 100), [9.0] * 40)
    broken.extend(range(60, 100), values[60:])
    straight.extend(range(100), values)
    assert np.allclose(broken.view().ema, straight.view().ema)


def test_nearest() -> None:
    view = filled(5, start=10).view()
    assert [view.nearest(step) for step in (0, 10, 11.4, 11.6, 99)] == [0, 0, 1, 2, 4]
    assert Series().view().nearest(3) is None
