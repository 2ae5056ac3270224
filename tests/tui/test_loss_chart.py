"""The loss chart as a widget: what it draws, what it refreshes, how its keys move it."""

from __future__ import annotations

import itertools
import math

import pytest
from textual.app import App, ComposeResult
from textual.geometry import Region

from tests.support.fake_run import losses
from tui import themes
from tui.state.series import EMPTY, Series, SeriesView
from tui.widgets.cells import Ink
from tui.widgets.loss_chart import LossChart


class ChartApp(App[None]):
    """Only the chart, over the whole terminal."""

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return themes.DEFAULTS

    def compose(self) -> ComposeResult:
        yield LossChart()

    @property
    def chart(self) -> LossChart:
        return self.query_one(LossChart)


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")


def view(values, start: int = 1) -> SeriesView:
    series = Series()
    series.extend(range(start, start + len(values)), [float(v) for v in values])
    return series.view()


def refreshed(chart: LossChart, monkeypatch: pytest.MonkeyPatch) -> list[Region]:
    """Where the chart asks to be drawn again from now on."""
    regions: list[Region] = []
    monkeypatch.setattr(chart, "refresh", lambda *given, **_options: regions.extend(given))
    return regions


async def test_a_known_curve_gives_known_cells() -> None:
    app = ChartApp()
    async with app.run_test(size=(40, 9)) as pilot:
        app.chart.show(view([2.0] * 10), EMPTY, max_steps=10)
        await pilot.pause()
        lines = app.chart.lines()
        assert lines == [
            " LOSS   ─ train 2.000",
            "      │",
            "  2.1 ┤",
            "      │",
            "  2.0 ┤   ⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉",
            "  1.9 ┤",
            "      │",
            "      └┬───────────────┬───────────────┬",
            "       0               5              10",
        ]


async def test_a_falling_curve_falls() -> None:
    app = ChartApp()
    async with app.run_test(size=(60, 20)) as pilot:
        app.chart.show(view([3.0 - i * 0.02 for i in range(100)]), EMPTY, max_steps=100)
        await pilot.pause()
        inks = app.chart._cells.inks
        tops = [int((inks[:, x] == Ink.LINE).argmax()) for x in range(10, 58)]
        assert tops == sorted(tops)
        assert tops[0] < 4
        assert tops[-1] > 12


async def test_band_line_and_evaluation_have_their_own_inks() -> None:
    app = ChartApp()
    async with app.run_test(size=(80, 24)) as pilot:
        app.chart.show(view(losses(2000)), view([2.0, 1.8, 1.7], start=500), best=(1.7, 502.0), max_steps=2000)
        await pilot.pause()
        inks = set(app.chart._cells.inks.flatten().tolist())
        assert {Ink.BAND, Ink.LINE, Ink.EVAL} <= inks
        assert "eval 1.700   best 1.700 at 502" in app.chart.lines()[0]


async def test_nothing_changed_nothing_is_refreshed(monkeypatch: pytest.MonkeyPatch) -> None:
    app = ChartApp()
    async with app.run_test(size=(120, 40)) as pilot:
        data = view(losses(5000))
        app.chart.show(data, EMPTY, max_steps=10_000)
        await pilot.pause()
        regions = refreshed(app.chart, monkeypatch)
        app.chart.show(data, EMPTY, max_steps=10_000)
        app.chart.repaint()
        assert regions == []


async def test_a_new_point_refreshes_only_what_it_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    app = ChartApp()
    async with app.run_test(size=(200, 50)) as pilot:
        values = losses(1300)
        app.chart.show(view(values[:1250]), EMPTY, max_steps=4800)
        await pilot.pause()
        regions = refreshed(app.chart, monkeypatch)
        for count in range(1251, 1300):
            app.chart.show(view(values[:count]), EMPTY, max_steps=4800)
        plot = [region for region in regions if region.y > 0]
        assert plot
        assert sum(region.area for region in regions) / 49 < 60  # of 10,000 cells
        newest = 7 + int(1300 / 1600 * 193)
        assert all(newest - 8 <= region.x <= newest + 2 for region in plot)


async def test_a_loss_that_is_not_a_number() -> None:
    app = ChartApp()
    async with app.run_test(size=(80, 20)) as pilot:
        values = [2.0] * 40 + [math.nan] * 20 + [2.0] * 30 + [math.inf]
        app.chart.show(view(values), EMPTY, max_steps=100)
        await pilot.pause()
        lines = app.chart.lines()
        assert "train inf" in lines[0]
        assert lines[1].count("✗") >= 10
        assert (app.chart._cells.inks[1] == Ink.ERROR).sum() == lines[1].count("✗")


async def test_only_losses_that_are_not_numbers() -> None:
    app = ChartApp()
    async with app.run_test(size=(80, 20)) as pilot:
        app.chart.show(view([math.nan] * 50), EMPTY, max_steps=50)
        await pilot.pause()
        app.chart.toggle_log()
        assert "NaN" in app.chart.lines()[0]


async def test_log_y_with_values_that_have_no_logarithm() -> None:
    app = ChartApp()
    async with app.run_test(size=(80, 20)) as pilot:
        app.chart.show(view([10.0 ** (-i / 20) for i in range(100)] + [0.0, -1.0]), EMPTY, max_steps=110)
        app.chart.toggle_log()
        await pilot.pause()
        lines = app.chart.lines()
        assert "log-y" in lines[0]
        inks = app.chart._cells.inks
        tops = [int((inks[:, x] == Ink.LINE).argmax()) for x in range(12, 60)]
        steps = [b - a for a, b in itertools.pairwise(tops)]
        assert max(steps) <= 1  # an exponential is a straight line here
        app.chart.show(view([-1.0, -2.0]), EMPTY)
        app.chart.show(view([0.0]), EMPTY)


async def test_the_cursor_walks_the_points_and_tells_their_values() -> None:
    app = ChartApp()
    async with app.run_test(size=(120, 24)) as pilot:
        chart = app.chart
        chart.move_cursor(-1)
        assert chart.cursor is None
        chart.show(view([3.0 - i * 0.001 for i in range(1000)]), view([2.5, 2.4], start=500), max_steps=1000)
        await pilot.pause()
        chart.move_cursor(-1)
        assert chart.cursor == 1000
        chart.move_cursor(-1)
        assert 985 <= chart.cursor < 1000
        chart.move_cursor(-10)
        assert chart.cursor < 915
        text = chart.lines()[0]
        assert f"step {chart.cursor:,.0f}" in text
        assert f"train {3.001 - chart.cursor * 0.001:.3f}" in text
        assert "eval 2.400" in text
        for _ in range(30):
            chart.move_cursor(-10)
        assert chart.cursor == 1
        chart.fit()
        assert chart.cursor is None


async def test_zoom_goes_to_the_cursor_and_the_window_follows_it() -> None:
    app = ChartApp()
    async with app.run_test(size=(120, 24)) as pilot:
        chart = app.chart
        chart.show(view(losses(1000)), EMPTY, max_steps=1000)
        await pilot.pause()
        chart.move_cursor(-1)
        chart.move_cursor(-50)
        for _ in range(3):
            chart.zoom(1)
        assert chart.window.width == pytest.approx(125)
        assert chart.window.begin <= chart.cursor <= chart.window.end
        assert "steps" in chart.lines()[0]
        for _ in range(30):
            chart.move_cursor(-10)
        assert chart.window.begin <= chart.cursor <= chart.window.end
        for _ in range(5):
            chart.zoom(-1)
        assert chart.window.width == 1000


async def test_single_steps_where_points_are_far_apart() -> None:
    app = ChartApp()
    async with app.run_test(size=(120, 24)) as pilot:
        series = Series()
        series.extend([100, 200, 300], [3.0, 2.0, 1.0])
        app.chart.show(series.view(), EMPTY, max_steps=300)
        await pilot.pause()
        seen = []
        for _ in range(4):
            app.chart.move_cursor(-1)
            seen.append(app.chart.cursor)
        assert seen == [300, 200, 100, 100]
        app.chart.move_cursor(1)
        assert app.chart.cursor == 200


async def test_a_click_inspects() -> None:
    app = ChartApp()
    async with app.run_test(size=(107, 24)) as pilot:
        app.chart.show(view([2.0] * 1000), EMPTY, max_steps=1000)
        await pilot.pause()
        await pilot.click(LossChart, offset=(57, 10))
        assert app.chart.cursor == pytest.approx(500, abs=15)


async def test_a_spike_does_not_flatten_the_curve() -> None:
    app = ChartApp()
    async with app.run_test(size=(120, 30)) as pilot:
        values = losses(4000)
        values[2000] = 500.0
        app.chart.show(view(values), EMPTY, max_steps=4000)
        await pilot.pause()
        labels = [line.split()[0] for line in app.chart.lines()[1:-2] if "┤" in line]
        assert max(map(float, labels)) < 200


@pytest.mark.parametrize("size", [(1, 1), (3, 2), (20, 5), (7, 30), (200, 4)])
async def test_tiny_charts(size: tuple[int, int]) -> None:
    app = ChartApp()
    async with app.run_test(size=size) as pilot:
        for data in (EMPTY, view([2.0]), view(losses(50))):
            app.chart.show(data, data, best=(1.0, 1.0), max_steps=50, waiting="waiting")
            app.chart.move_cursor(-1)
            app.chart.zoom(1)
            await pilot.pause()


async def test_ascii_and_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    for environment, allowed in (
        ({"TERM": "dumb"}, set("*.o|+-xLOSStraineval0123456789,. ")),
        ({"TERM": "linux"}, set("▀▄█│┤└─┬LOSStraineval0123456789,. ")),
    ):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        app = ChartApp()
        async with app.run_test(size=(60, 16)) as pilot:
            app.chart.show(view(losses(500)), view([2.0, 1.9], start=200), max_steps=500)
            await pilot.pause()
            assert set("".join(app.chart.lines())) <= allowed


async def test_resizing_draws_it_anew() -> None:
    app = ChartApp()
    async with app.run_test(size=(80, 24)) as pilot:
        app.chart.show(view(losses(500)), EMPTY, max_steps=500)
        for size in ((200, 50), (30, 8), (120, 40)):
            await pilot.resize_terminal(*size)
            await pilot.pause()
            assert len(app.chart.lines()) == size[1]
            assert any(0x2800 < ord(c) < 0x2900 for c in "".join(app.chart.lines()))


async def test_an_empty_chart_says_what_it_waits_for() -> None:
    app = ChartApp()
    async with app.run_test(size=(60, 12)) as pilot:
        app.chart.show(EMPTY, EMPTY, waiting="loading the model")
        await pilot.pause()
        assert "loading the model" in "\n".join(app.chart.lines())
