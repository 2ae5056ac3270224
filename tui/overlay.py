"""Several curves in one plot of characters, for a terminal without the app."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tui.state.axes import decimals, ticks
from tui.state.decimate import columns
from tui.state.series import Series, SeriesView
from tui.widgets.glyphs import Mode
from tui.widgets.plot import DOTS, fill, pack, rows

COLORS = ("36", "33", "35", "32", "34", "31")
MARKS = "*+ox#%"


def view(steps: Sequence[float], values: Sequence[float]) -> SeriesView:
    """A series of points."""
    series = Series()
    series.extend(steps, values)
    return series.view()


def draw(curves: Sequence[SeriesView], width: int, height: int, *, mode: Mode, color: bool) -> list[str]:
    """The curves over one another, with both axes; the later ones lie on top. [] where there is nothing to draw."""
    ends = [view.last_step for view in curves if view.last_step is not None]
    if not ends:
        return []
    begin, end = 0.0, max(ends)
    digits = 8
    across, down = DOTS[mode]
    room = max(10, width - digits - 2)
    lines = [columns(view, begin, end, room * across) for view in curves]
    extents = [extent for line in lines if (extent := line.extent()) is not None]
    if not extents:
        return []
    low, high = min(a for a, _b in extents), max(b for _a, b in extents)
    margin = (high - low) * 0.04 or 0.5
    low, high = low - margin, high + margin
    grid: list[list[tuple[str, int | None]]] = [[(" ", None)] * room for _line in range(height)]
    for number, line in enumerate(lines):
        places = rows(line.line, low, high, height * down)
        codes, any_dot = pack(fill(places, places, height * down), mode, MARKS[number % len(MARKS)])
        for y, x in zip(*np.nonzero(any_dot), strict=True):
            grid[y][x] = (chr(codes[y, x]), number)
    marks = ticks(low, high, max(2, height // 4))
    shown = {round((high - value) / (high - low) * (height - 1)): value for value in marks}
    places_after = decimals(marks)
    result = []
    for y, cells in enumerate(grid):
        label = f"{shown[y]:.{places_after}f}" if y in shown else ""
        result.append(f"{label:>{digits}} │" + _colored(cells, color))
    result.append(" " * digits + " └" + "─" * room)
    result.append(" " * (digits + 2) + "0" + f"{end:.0f}".rjust(room - 1))
    return result


def _colored(cells: Sequence[tuple[str, int | None]], color: bool) -> str:
    text, before = [], None
    for character, number in cells:
        if color and number != before:
            text.append("\x1b[0m" if number is None else f"\x1b[{COLORS[number % len(COLORS)]}m")
            before = number
        text.append(character)
    if color and before is not None:
        text.append("\x1b[0m")
    return "".join(text).rstrip() if not color else "".join(text)


def legend(names: Sequence[str], *, mode: Mode, color: bool) -> str:
    """Which curve is whose."""
    parts: list[Any] = []
    for number, name in enumerate(names):
        mark = MARKS[number % len(MARKS)] if mode == "ascii" or not color else "─"
        parts.append(f"\x1b[{COLORS[number % len(COLORS)]}m{mark}\x1b[0m {name}" if color else f"{mark} {name}")
    return "   ".join(parts)
