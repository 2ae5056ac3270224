"""The loss over the steps: a dim band of extremes, the bright moving average, the evaluations on top."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from textual import events

from engine.text import _
from tui.state.axes import StepAxis, ValueAxis, Window, decimals, ticks
from tui.state.decimate import Columns, columns
from tui.state.series import EMPTY, SeriesView
from tui.widgets.cells import Cells, CellWidget, Ink
from tui.widgets.figures import figure, loss, whole
from tui.widgets.plot import DOTS, fill, pack, rows

_ROWS_PER_TICK = 3
_MOST_TICKS = 6
_CELLS_PER_TICK = 12
_HEIGHT_WITH_STEPS = 5


@dataclass(frozen=True)
class _Area:
    """Where the plot lies inside the widget."""

    left: int
    top: int
    width: int
    height: int

    @property
    def right(self) -> int:
        return self.left + self.width

    @property
    def bottom(self) -> int:
        return self.top + self.height


class LossChart(CellWidget):
    """Draws two series; keys zoom, scale and inspect it."""

    DEFAULT_CSS = """
    LossChart { height: 1fr; min-height: 4; }
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._train: SeriesView = EMPTY
        self._evaluation: SeriesView = EMPTY
        self._best: tuple[float, float] | None = None
        self._max_steps: int | None = None
        self._waiting = ""
        self._log = False
        self._cursor: float | None = None
        self._values = ValueAxis()
        self._steps = StepAxis()
        self._area: _Area | None = None

    # What is shown

    def show(
        self,
        train: SeriesView,
        evaluation: SeriesView,
        *,
        best: tuple[float, float] | None = None,
        max_steps: int | None = None,
        waiting: str = "",
    ) -> None:
        """Draw these series; `best` is the lowest evaluation and its step, `waiting` stands in an empty chart."""
        self._train, self._evaluation, self._best = train, evaluation, best
        self._max_steps, self._waiting = max_steps, waiting
        self.repaint()

    @property
    def log_y(self) -> bool:
        """Whether the value axis is logarithmic."""
        return self._log

    @property
    def window(self) -> Window:
        """The steps shown."""
        return self._steps.window

    @property
    def cursor(self) -> float | None:
        """The inspected step."""
        return self._cursor

    def toggle_log(self) -> None:
        """Switch the value axis between linear and logarithmic."""
        self._log = not self._log
        self.repaint()

    def zoom(self, direction: int) -> None:
        """Show half (1) or twice (-1) as many steps, around the cursor or at the newest step."""
        self._steps.zoom(direction, self._cursor)
        self.repaint()

    def fit(self) -> None:
        """Show the whole run, without the cursor."""
        self._steps.fit()
        self._cursor = None
        self.repaint()

    def clear_cursor(self) -> bool:
        """Take the cursor away; whether there was one."""
        if self._cursor is None:
            return False
        self._cursor = None
        self.repaint()
        return True

    def move_cursor(self, cells: int) -> None:
        """Inspect the point so many columns further on; a zoomed window goes with it."""
        series = self._inspected()
        count = len(series)
        if not count:
            return
        if self._cursor is None:
            index = series.nearest(min(self.window.end, float(series.steps[-1]))) or 0
        else:
            now = series.nearest(self._cursor) or 0
            per_cell = self.window.width / max(1, self._area.width if self._area else 1)
            index = series.nearest(float(series.steps[now]) + cells * per_cell) or 0
            if index == now:
                index = min(max(now + (1 if cells > 0 else -1), 0), count - 1)
        self._cursor = float(series.steps[index])
        self._steps.reveal(self._cursor)
        self.repaint()

    def _inspected(self) -> SeriesView:
        return self._train if len(self._train) else self._evaluation

    def on_click(self, event: events.Click) -> None:
        """Inspect the clicked step."""
        area, series = self._area, self._inspected()
        if area is None or not len(series) or not area.left <= event.x < area.right:
            return
        step = self.window.begin + (event.x - area.left + 0.5) / area.width * self.window.width
        index = series.nearest(step)
        self._cursor = float(series.steps[index]) if index is not None else None
        self.repaint()

    # Drawing

    def paint(self, cells: Cells) -> None:
        """Legend, axes, band, line, evaluations, cursor."""
        newest = max((s for s in (self._train.last_step, self._evaluation.last_step) if s is not None), default=None)
        window = self._steps.update(newest, self._max_steps)
        if newest is None:
            self._area = None
            self._paint_waiting(cells)
            return
        scale = cells.height >= _HEIGHT_WITH_STEPS  # a lower chart has no axis of steps
        height = cells.height - 3 if scale else cells.height - 1
        if height < 1 or cells.width < 16:
            self._area = None
            self._paint_legend(cells, window)
            return
        parts = min(max(2, height // _ROWS_PER_TICK), _MOST_TICKS)
        # The width of the labels decides the width of the plot, which decides the columns: labels first.
        low, high = self._value_range(window, parts)
        labels = ticks(low, high, parts, log=self._log)
        digits = decimals(labels)
        left = max(5, *(len(figure(label, digits)) for label in labels)) + 2 if labels else 7
        area = self._area = _Area(left, 1, cells.width - left, height)
        self._paint_values(cells, area, low, high, labels, digits)
        if scale:
            self._paint_steps(cells, area, window)
        self._paint_curves(cells, area, window, low, high)
        self._paint_cursor(cells, area, window)
        self._paint_legend(cells, window)

    def _paint_waiting(self, cells: Cells) -> None:
        text = self._waiting or _("no step was logged yet")
        cells.put(max(1, (cells.width - len(text)) // 2), cells.height // 2, text, Ink.MUTED)

    def _value_range(self, window: Window, parts: int) -> tuple[float, float]:
        """The value axis, from about as many columns as the plot will have."""
        count = max(8, self.content_size.width) * 2
        ends = []
        for series, smooth in ((self._train, True), (self._evaluation, False)):
            part = columns(series, window.begin, window.end, count, smooth=smooth)
            extent = part.extent(positive=self._log)
            if extent is not None:
                ends.append(extent)
        extent = (min(e[0] for e in ends), max(e[1] for e in ends)) if ends else None
        low, high = self._values.fit(extent, parts, log=self._log)
        return (low, high) if low > 0 or not self._log else (0.1, 1.0)

    def _row(self, value: float, low: float, high: float, area: _Area) -> int:
        dots = area.height * DOTS[self.glyphs.mode][1]
        row = rows(np.array([value]), low, high, dots, log=self._log)[0]
        return area.top + int(round(row) // DOTS[self.glyphs.mode][1])

    def _paint_values(
        self, cells: Cells, area: _Area, low: float, high: float, labels: list[float], digits: int
    ) -> None:
        glyphs = self.glyphs
        edge = area.left - 1
        for y in range(area.top, area.bottom):
            cells.put(edge, y, glyphs.axis, Ink.TRACK)
        for label in labels:
            y = self._row(label, low, high, area)
            cells.put_right(edge - 1, y, figure(label, digits), Ink.MUTED)
            cells.put(edge, y, glyphs.tick, Ink.TRACK)

    def _paint_steps(self, cells: Cells, area: _Area, window: Window) -> None:
        glyphs = self.glyphs
        edge = area.left - 1
        cells.put(edge, area.bottom, glyphs.corner + glyphs.dash * area.width, Ink.TRACK)
        free = 0
        for step in ticks(window.begin, window.end, max(2, area.width // _CELLS_PER_TICK)):
            x = area.left + min(area.width - 1, int((step - window.begin) / window.width * area.width))
            text = whole(step)
            begin = min(max(x - len(text) // 2, free), cells.width - len(text))
            if begin < free:
                continue
            cells.put(x, area.bottom, glyphs.x_tick, Ink.TRACK)
            free = cells.put(begin, area.bottom + 1, text, Ink.MUTED) + 2

    def _paint_curves(self, cells: Cells, area: _Area, window: Window, low: float, high: float) -> None:
        mode = self.glyphs.mode
        across, down = DOTS[mode]
        count, dots = area.width * across, area.height * down
        codes = cells.codes[area.top : area.bottom, area.left : area.right]
        inks = cells.inks[area.top : area.bottom, area.left : area.right]
        train = columns(self._train, window.begin, window.end, count)
        tested = columns(self._evaluation, window.begin, window.end, count, smooth=False).line
        if mode == "ascii":  # a line as coarse as this one would hide the other
            places = (self._evaluation.steps - window.begin) / window.width * count
            tested[~np.isin(np.arange(count), np.minimum(places.astype(int), count - 1))] = np.nan
        layers = [
            (train.high, train.low, Ink.BAND, "."),
            (train.line, train.line, Ink.LINE, "*"),
            (tested, tested, Ink.EVAL, "o"),
        ]
        for top, bottom, ink, character in layers:
            filled = fill(rows(top, low, high, dots, log=self._log), rows(bottom, low, high, dots, log=self._log), dots)
            packed, where = pack(filled, mode, character)
            codes[where] = packed[where]
            inks[where] = ink
        self._mark_gaps(cells, area, train, across)

    def _mark_gaps(self, cells: Cells, area: _Area, train: Columns, across: int) -> None:
        """A cross at the top where the loss was not a finite number."""
        for x in np.flatnonzero(train.bad.reshape(-1, across).any(axis=1)).tolist():
            cells.put(area.left + x, area.top, self.glyphs.cross, Ink.ERROR)

    def _paint_cursor(self, cells: Cells, area: _Area, window: Window) -> None:
        if self._cursor is None or not window.begin <= self._cursor <= window.end:
            return
        x = area.left + min(area.width - 1, int((self._cursor - window.begin) / window.width * area.width))
        column = cells.inks[area.top : area.bottom, x]
        free = (column != Ink.LINE) & (column != Ink.EVAL) & (column != Ink.ERROR)
        cells.codes[area.top : area.bottom, x][free] = ord(self.glyphs.cursor)
        column[free] = Ink.CURSOR

    def _paint_legend(self, cells: Cells, window: Window) -> None:
        """One line: the newest values on the left, scale, window and cursor on the right."""
        right = cells.width - 1
        if self._cursor is not None:
            right = cells.put_right(right, 0, self._cursor_text(self._cursor), Ink.STRONG) - 3
        if self._log:
            right = cells.put_right(right, 0, _("log-y"), Ink.ACCENT) - 3
        if self._steps.zoomed:
            text = _("steps {begin} to {end}").format(begin=whole(window.begin), end=whole(window.end))
            right = cells.put_right(right, 0, text, Ink.MUTED) - 3
        newest = float(self._train.values[-1]) if len(self._train) else None
        pieces: list[list[tuple[str, Ink]]] = [[(_("LOSS"), Ink.MUTED)]]
        if newest is not None:
            bad = not math.isfinite(newest)
            pieces.append(
                [(self.glyphs.line + " ", Ink.LINE), (_("train") + " ", Ink.MUTED), (loss(newest), _ink(bad))]
            )
        if len(self._evaluation):
            value = float(self._evaluation.values[-1])
            bad = not math.isfinite(value)
            pieces.append(
                [(self.glyphs.tested + " ", Ink.EVAL), (_("eval") + " ", Ink.MUTED), (loss(value), _ink(bad))]
            )
        if self._best is not None:
            text = _("best {loss} at {step}").format(loss=loss(self._best[0]), step=whole(self._best[1]))
            pieces.append([(text, Ink.MUTED)])
        x = 1
        for piece in pieces:
            if x + sum(len(text) for text, _ink_ in piece) > right:
                break
            for text, ink in piece:
                x = cells.put(x, 0, text, ink)
            x += 3

    def _cursor_text(self, step: float) -> str:
        text = _("step {step}").format(step=whole(step))
        index = self._train.nearest(step)
        if index is not None and self._train.steps[index] == step:
            value, average = float(self._train.values[index]), float(self._train.ema[index])
            text += "  " + _("train {loss} (mean {mean})").format(loss=loss(value), mean=loss(average))
        index = int(np.searchsorted(self._evaluation.steps, step, side="right")) - 1
        if index >= 0:
            text += "  " + _("eval {loss}").format(loss=loss(float(self._evaluation.values[index])))
        return text


def _ink(bad: bool) -> Ink:
    return Ink.ERROR if bad else Ink.PLAIN
