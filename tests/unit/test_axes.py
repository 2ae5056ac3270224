"""Axes: round numbers, and no movement without need."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tui.state.axes import StepAxis, ValueAxis, decimals, nice_ceiling, nice_step, ticks

POSITIVE = st.floats(1e-6, 1e9)


@given(POSITIVE, st.integers(1, 12))
def test_a_nice_step_is_round_and_small_enough(span: float, parts: int) -> None:
    step = nice_step(span, parts)
    mantissa = step / 10 ** math.floor(math.log10(step) + 1e-9)
    assert min(abs(mantissa - nice) for nice in (1, 2, 5, 10)) < 1e-6
    assert span / step <= parts * (1 + 1e-6)


@given(POSITIVE)
def test_a_nice_ceiling_is_near(value: float) -> None:
    assert value * (1 - 1e-9) <= nice_ceiling(value) <= value * 1.34


def test_ticks_are_round_numbers_inside_the_range() -> None:
    assert ticks(0.9, 2.6, 4) == [1.0, 1.5, 2.0, 2.5]
    assert ticks(0, 1600, 8) == [0, 200, 400, 600, 800, 1000, 1200, 1400, 1600]
    assert ticks(0.001, 100, 6, log=True) == pytest.approx([0.001, 0.01, 0.1, 1, 10, 100])
    assert len(ticks(1.35, 2.75, 2)) >= 2


def test_decimals_tell_ticks_apart() -> None:
    assert decimals([1.0, 1.5]) == 1
    assert decimals([1.00, 1.05]) == 2
    assert decimals([100, 200]) == 0
    assert decimals([0.001, 0.01, 0.1]) == 3


@given(st.floats(0.01, 100), st.floats(0.01, 100), st.booleans())
def test_the_value_axis_shows_the_data(a: float, b: float, log: bool) -> None:
    assume(abs(a - b) > 1e-3)
    low, high = ValueAxis().fit((min(a, b), max(a, b)), 5, log=log)
    assert low <= min(a, b) + 1e-9
    assert high >= max(a, b) - 1e-9
    assert low < high


def test_the_value_axis_stands_still_while_the_data_fits() -> None:
    axis = ValueAxis()
    seen = {axis.fit((1.0 - i * 0.0005, 2.6 + 0.05 * math.sin(i)), 5) for i in range(100)}
    assert len(seen) == 1


def test_a_falling_loss_moves_the_value_axis_seldom() -> None:
    axis = ValueAxis()
    seen = [axis.fit((0.8 + 2 * math.exp(-i / 300), 2.9), 5) for i in range(2000)]
    moves = sum(a != b for a, b in itertools.pairwise(seen))
    assert 1 <= moves <= 25  # of 2,000 updates


def test_the_value_axis_shrinks_when_the_data_fills_little_of_it_and_does_not_flutter() -> None:
    axis = ValueAxis()
    axis.fit((1.0, 12.0), 5)
    shrunk = axis.fit((1.0, 2.0), 5)
    assert shrunk[1] <= 2.5
    assert {axis.fit((1.0, 2.0 + 0.01 * (i % 2)), 5) for i in range(20)} <= {shrunk, axis.fit((1.0, 2.01), 5)}


@pytest.mark.parametrize("value", [0.0, 1.0, -3.0, 1e-9, 1e9])
def test_one_value_has_room_around_it(value: float) -> None:
    low, high = ValueAxis().fit((value, value), 4)
    assert low < value < high or (low <= value <= high and high > low)


def test_the_step_axis_grows_in_steps() -> None:
    axis = StepAxis()
    ends = {axis.update(float(step), None).end for step in range(1, 100_001)}
    assert len(ends) <= 45  # ten a decade


def test_the_step_axis_ends_with_the_run() -> None:
    axis = StepAxis()
    assert axis.update(1240, 4800).end == 1600
    assert axis.update(4700, 4800).end == 4800
    assert axis.update(4800, 4800).end == 4800
    assert axis.update(5000, 4800).end >= 5000


def test_zoom_at_the_newest_step_follows_the_run_in_jumps() -> None:
    axis = StepAxis()
    axis.update(1000, 10_000)
    axis.zoom(1)
    width = axis.window.width
    seen = {axis.update(float(step), 10_000) for step in range(1000, 3000)}
    assert axis.window.width == width
    assert axis.window.begin <= 2999 <= axis.window.end
    assert len(seen) < 25


def test_zoom_around_a_step_keeps_it_and_stands_still() -> None:
    axis = StepAxis()
    axis.update(1000, 10_000)
    axis.zoom(1, around=300)
    axis.zoom(1, around=300)
    window = axis.window
    assert window.begin <= 300 <= window.end
    assert axis.update(5000, 10_000) == window
    axis.reveal(2000)
    assert axis.window.begin <= 2000 <= axis.window.end
    assert axis.window.width == window.width
    axis.fit()
    assert axis.update(5000, 10_000).begin == 0
    assert not axis.zoomed


def test_zooming_out_ends_at_the_whole_run_and_in_at_a_few_steps() -> None:
    axis = StepAxis()
    axis.update(1000, None)
    for _ in range(40):
        axis.zoom(1, around=500)
    assert 1 <= axis.window.width <= 10
    for _ in range(40):
        axis.zoom(-1, around=500)
    assert not axis.zoomed
