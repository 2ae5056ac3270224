"""Widgets that paint into a grid of cells and send only the cells that changed.

Over a slow link each byte counts: Textual repaints a whole widget on refresh, so a clock that moves one digit would
send its whole row. Here the new grid is compared with the old one and only the changed span of each row is refreshed.
"""

from __future__ import annotations

import enum
import itertools
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region, Size
from textual.strip import Strip
from textual.widget import Widget

from tui.widgets.glyphs import BRAILLE, Glyphs, choose

_JOIN = 12  # changes no further apart are sent as one: moving the cursor costs about as many bytes
_SPACE = 32
_CONTINUED = 0  # second column of a wide character


class Ink(enum.IntEnum):
    """What a cell is drawn with; the theme says how (the component classes `cells--…`)."""

    PLAIN = 0
    MUTED = 1
    STRONG = 2
    ACCENT = 3
    GOOD = 4
    WARNING = 5
    ERROR = 6
    LINE = 7
    BAND = 8
    EVAL = 9
    CURSOR = 10
    TRACK = 11
    WEIGHTS = 12  # the parts of a plan's memory
    GRADIENTS = 13
    OPTIMIZER = 14
    ACTIVATIONS = 15
    LOGITS = 16
    TRANSIENTS = 17
    OVERHEAD = 18
    CUT = 19  # text that training does not see


class Cells:
    """A grid of characters and inks; whatever does not fit is cut off, nothing wraps."""

    def __init__(self, width: int, height: int) -> None:
        self.width = max(0, width)
        self.height = max(0, height)
        self.codes: NDArray[np.uint32] = np.full((self.height, self.width), _SPACE, dtype=np.uint32)
        self.inks: NDArray[np.uint8] = np.zeros((self.height, self.width), dtype=np.uint8)

    def put(self, x: int, y: int, text: str, ink: Ink = Ink.PLAIN, *, end: int | None = None) -> int:
        """Write `text` from column `x`, not past column `end`; returns the column after it."""
        end = self.width if end is None else min(end, self.width)
        if not 0 <= y < self.height or x >= end:
            return x
        row, inks = self.codes[y], self.inks[y]
        if text.isascii() and text.isprintable() and x >= 0:
            text = text[: end - x]
            stop = x + len(text)
            row[x:stop] = np.frombuffer(text.encode("ascii"), dtype=np.uint8)
            inks[x:stop] = ink
            return stop
        for character in text:
            width = cell_len(character)
            if not width or not character.isprintable():
                continue
            if x + width > end:
                break
            if x >= 0:
                row[x] = ord(character)
                row[x + 1 : x + width] = _CONTINUED
                inks[x : x + width] = ink
            x += width
        return x

    def put_text(self, x: int, y: int, text: str, ink: Ink = Ink.PLAIN, *, end: int | None = None) -> int:
        """Write a text that may be longer than its room: it ends in a mark then."""
        end = self.width if end is None else min(end, self.width)
        if x + cell_len(text) <= end or x >= end:
            return self.put(x, y, text, ink, end=end)
        return self.put(self.put(x, y, text, ink, end=end - 1), y, "…", ink, end=end)

    def put_right(self, end: int, y: int, text: str, ink: Ink = Ink.PLAIN) -> int:
        """Write `text` so that it ends before column `end`; returns the column where it begins.

        What does not fit is left out: half a number would be another number.
        """
        begin = end - cell_len(text)
        if begin >= 0:
            self.put(begin, y, text, ink, end=end)
        return begin

    def changes(self, old: Cells) -> list[Region]:
        """The changed spans of each row, compared with a grid of the same size."""
        different = (self.codes != old.codes) | (self.inks != old.inks)
        regions = []
        for y in np.flatnonzero(different.any(axis=1)).tolist():
            columns = np.flatnonzero(different[y])
            for span in np.split(columns, np.flatnonzero(np.diff(columns) > _JOIN) + 1):
                regions.append(Region(int(span[0]), y, int(span[-1] - span[0]) + 1, 1))
        return regions

    def strip(self, y: int, styles: list[Style]) -> Strip:
        """One row as a strip."""
        if not 0 <= y < self.height or not self.width:
            return Strip.blank(self.width, styles[0])
        codes, inks = self.codes[y], self.inks[y]
        bounds = [0, *(np.flatnonzero(np.diff(inks)) + 1).tolist(), self.width]
        text = codes.tobytes().decode("utf-32-le")
        wide = not codes.all()
        segments = []
        for begin, end in itertools.pairwise(bounds):
            part = text[begin:end]
            segments.append(Segment(part.replace("\0", "") if wide else part, styles[inks[begin]]))
        return Strip(segments, self.width)

    def text(self) -> list[str]:
        """The rows as text, without trailing spaces (for copying and for tests)."""
        rows = (row.tobytes().decode("utf-32-le").replace("\0", "").rstrip() for row in self.codes)
        return list(rows)


class CellWidget(Widget):
    """Base of our widgets: `paint` draws the present state; `repaint` shows what that changed."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {f"cells--{ink.name.lower()}" for ink in Ink}
    DEFAULT_CSS = """
    CellWidget {
        & > .cells--muted { color: $muted; }
        & > .cells--strong { text-style: bold; }
        & > .cells--accent { color: $accent; }
        & > .cells--good { color: $success; }
        & > .cells--warning { color: $warning; }
        & > .cells--error { color: $error; text-style: bold; }
        & > .cells--line { color: $primary-lighten-1; }
        & > .cells--band { color: $primary 45%; }
        & > .cells--eval { color: $warning; }
        & > .cells--cursor { color: $text; }
        & > .cells--track { color: $foreground 20%; }
        & > .cells--weights { color: $part-weights; }
        & > .cells--gradients { color: $part-gradients; }
        & > .cells--optimizer { color: $part-optimizer; }
        & > .cells--activations { color: $part-activations; }
        & > .cells--logits { color: $part-logits; }
        & > .cells--transients { color: $part-transients; }
        & > .cells--overhead { color: $part-overhead; }
        & > .cells--cut { color: $error; text-style: strike; }

        /* The terminal's own 16 colors do not blend: other colors say what shades say elsewhere. */
        &:ansi > .cells--muted { text-style: dim; }
        &:ansi > .cells--line { color: ansi_cyan; text-style: bold; }
        &:ansi > .cells--band { color: ansi_blue; }
        &:ansi > .cells--track { color: ansi_bright_black; }
    }
    """

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._cells: Cells | None = None
        self._styles_by_ink: list[Style] | None = None
        self.glyphs: Glyphs = BRAILLE

    def paint(self, cells: Cells) -> None:
        """Draw the widget's state into an empty grid."""
        raise NotImplementedError

    def repaint(self) -> None:
        """Draw again and refresh the cells that changed."""
        size = self.content_size
        if not self.is_attached or not size:
            return
        old, new = self._cells, self._painted(size)
        self._cells = new
        if old is None or (old.width, old.height) != (new.width, new.height):
            self.refresh()
            return
        regions = new.changes(old)
        if regions:
            self.refresh(*regions)

    def _painted(self, size: Size) -> Cells:
        cells = Cells(size.width, size.height)
        self.paint(cells)
        if self.glyphs.mode == "ascii":  # texts may use the middle dot
            cells.codes[cells.codes == ord("·")] = ord("-")
            cells.codes[cells.codes == ord("…")] = ord("~")
        return cells

    def render_line(self, y: int) -> Strip:
        """One row of the grid (Textual's line API)."""
        size = self.content_size
        cells = self._cells
        if cells is None or (cells.width, cells.height) != (size.width, size.height):
            cells = self._cells = self._painted(size)
        if self._styles_by_ink is None:
            self._styles_by_ink = [self.rich_style] + [
                self.get_component_rich_style(f"cells--{ink.name.lower()}") for ink in list(Ink)[1:]
            ]
        return cells.strip(y, self._styles_by_ink)

    def notify_style_update(self) -> None:
        """Forget the styles when the theme or the classes change."""
        super().notify_style_update()
        self._styles_by_ink = None

    def on_mount(self) -> None:
        self.glyphs = choose(ascii_only=bool(getattr(self.app, "ascii_only", False)))

    def lines(self) -> list[str]:
        """What is shown, as text."""
        return self._cells.text() if self._cells is not None else []
