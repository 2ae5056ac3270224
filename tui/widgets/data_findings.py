"""The findings of a check as a list: how many rows, of what kind; the one under the cursor can filter the rows."""

from __future__ import annotations

from textual import events
from textual.message import Message

from engine.data.examine import Found
from engine.text import _, number
from tui.widgets.cells import Cells, CellWidget, Ink

INKS = {"error": Ink.ERROR, "warning": Ink.WARNING, "note": Ink.MUTED}


class DataFindings(CellWidget, can_focus=False):
    """One line a finding; the first line stands for all rows."""

    class Chosen(Message):
        """A line was clicked."""

    def __init__(self) -> None:
        super().__init__()
        self._found: tuple[Found, ...] | None = None
        self._said = ""
        self._cursor = 0
        self._top = 0
        self._rows = 0
        self.filter: Found | None = None

    def show(self, found: tuple[Found, ...] | None, rows: int, said: str = "") -> None:
        """Show these findings; None: what is said while there are none yet."""
        self._found, self._rows, self._said = found, rows, said
        self._cursor = min(self._cursor, len(found or ()))
        self.repaint()

    @property
    def selected(self) -> Found | None:
        """The finding under the cursor; None for all rows."""
        return None if not self._found or not self._cursor else self._found[self._cursor - 1]

    def move(self, by: int) -> None:
        """The cursor up or down."""
        self._cursor = min(max(0, self._cursor + by), len(self._found or ()))
        self.repaint()

    def choose(self) -> Found | None:
        """Filter by the line under the cursor; once more shows all rows again."""
        self.filter = None if self.filter is self.selected else self.selected
        if self.filter is None:
            self._cursor = 0
        self.repaint()
        return self.filter

    def on_click(self, event: events.Click) -> None:
        """A click chooses."""
        line = event.y - 1 + self._top
        if self._found is not None and 0 <= line <= len(self._found):
            self._cursor = line
            self.post_message(self.Chosen())

    def paint(self, cells: Cells) -> None:
        """A heading, then the lines around the cursor."""
        x = cells.put(1, 0, _("FINDINGS"), Ink.STRONG) + 2
        if self._found is None:
            cells.put_text(x, 0, self._said, Ink.MUTED)
            return
        if not self._found:
            cells.put(1, 1, _("nothing to say"), Ink.GOOD)
            return
        room = max(1, cells.height - 1)
        self._top = min(max(0, self._cursor - room + 1), max(0, self._top), max(0, len(self._found) + 1 - room))
        self._top = max(self._top, self._cursor - room + 1)
        for y, line in enumerate(range(self._top, min(len(self._found) + 1, self._top + room)), 1):
            self._line(cells, y, line)

    def _line(self, cells: Cells, y: int, line: int) -> None:
        assert self._found is not None
        found = self._found[line - 1] if line else None
        is_filter = self.filter is found
        text, count = (found.name, found.count) if found else (_("all rows"), self._rows)
        ink = INKS[found.level] if found else Ink.PLAIN
        if line == self._cursor:
            cells.put(0, y, ">", Ink.ACCENT)
        begin = cells.put_right(cells.width - 1, y, number(count), Ink.STRONG if is_filter else ink)
        sign = {"error": self.glyphs.cross, "warning": "!", "note": self.glyphs.dot}[found.level] if found else " "
        x = cells.put(1, y, sign, ink) + 1
        cells.put_text(x, y, text.replace("_", " "), Ink.STRONG if is_filter else Ink.PLAIN, end=begin - 1)
