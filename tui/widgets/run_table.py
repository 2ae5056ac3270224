"""The list of runs: a line-API widget, because a changed row must cost one line of output and not a table's."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from engine.text import _, duration, money, number
from tui.keys import bindings

if TYPE_CHECKING:
    from tui.sources.run_listing import Price, RunRow

clock = time.time
GAP = 2
MARK = 3  # the cursor's column
EDGE = 1
NAME_MIN = 14
NAME_MAX = 40

SYMBOLS = {
    "queued": "◌",
    "starting": "◌",
    "running": "●",
    "saving": "●",
    "stopped": "■",
    "done": "✓",
    "failed": "✗",
    "lost": "✗",
}
ASCII_SYMBOLS = {
    "queued": ".",
    "starting": ".",
    "running": "*",
    "saving": "*",
    "stopped": "=",
    "done": "+",
    "failed": "x",
    "lost": "x",
}
STYLE_OF_STATE = {
    "queued": "muted",
    "starting": "accent",
    "running": "accent",
    "saving": "accent",
    "stopped": "warning",
    "done": "success",
    "failed": "error",
    "lost": "error",
}


def state_word(state: str) -> str:
    """A state in the user's language."""
    words = {
        "queued": _("queued"),
        "starting": _("starting"),
        "running": _("running"),
        "saving": _("saving"),
        "stopped": _("stopped"),
        "done": _("done"),
        "failed": _("failed"),
        "lost": _("lost"),
    }
    return words.get(state, state)


def steps(row: RunRow) -> str:
    """`1,240/4,800`."""
    return f"{number(row.step)}/{number(row.max_steps)}" if row.max_steps else "-"


def age(seconds: float) -> str:
    """How long ago, in one unit: it must not tick each second."""
    if seconds < 60:
        return _("now")
    if seconds < 3600:
        return _("{m} min").format(m=int(seconds // 60))
    if seconds < 48 * 3600:
        return _("{h} h").format(h=int(seconds // 3600))
    return _("{d} d").format(d=int(seconds // 86400))


def _eta(row: RunRow) -> str:
    return duration(row.eta_s) if row.live and row.eta_s is not None else "-"


def _loss(value: float | None) -> str:
    return "-" if value is None else number(value, 3)


@dataclass(frozen=True)
class Column:
    """One column. The highest `rank` is dropped first where the terminal is narrow."""

    id: str
    title: Callable[[], str]
    width: int
    rank: int
    right: bool = True


COLUMNS = (
    Column("what", lambda: _("method · device"), 20, 7, right=False),
    Column("state", lambda: _("state"), 11, 0, right=False),
    Column("step", lambda: _("step"), 13, 1),
    Column("loss", lambda: _("loss"), 7, 2),
    Column("eval", lambda: _("eval"), 7, 4),
    Column("eta", lambda: _("ETA"), 9, 3),
    Column("age", lambda: _("age"), 7, 6),
    Column("cost", lambda: _("cost"), 10, 5),
)
REPLACED_BY_ERROR = ("step", "loss", "eval", "eta")


def fit(width: int, *, cost: bool) -> tuple[int, list[Column]]:
    """The name's width and the columns that fit beside it."""
    columns = [column for column in COLUMNS if cost or column.id != "cost"]
    while True:
        room = width - MARK - EDGE - sum(column.width + GAP for column in columns)
        if room >= NAME_MIN or len(columns) <= 1:
            return max(4, min(NAME_MAX, room)), columns
        columns.remove(max(columns, key=lambda column: column.rank))


class RunTable(ScrollView, can_focus=True):
    """Rows with a cursor that stays on its run when the list changes around it."""

    BINDINGS: ClassVar = bindings("list")
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "run-table--header",
        "run-table--cursor",
        "run-table--muted",
        "run-table--accent",
        "run-table--success",
        "run-table--warning",
        "run-table--error",
    }
    DEFAULT_CSS = """
    RunTable {
        height: 1fr;
        background: $background;
        scrollbar-size-vertical: 1;
    }
    RunTable .run-table--header { color: $muted; }
    RunTable .run-table--cursor { background: $row-cursor; }
    RunTable:ansi .run-table--cursor { background: ansi_default; text-style: reverse; }
    RunTable .run-table--muted { color: $muted; }
    RunTable .run-table--accent { color: $accent; }
    RunTable .run-table--success { color: $success; }
    RunTable .run-table--warning { color: $warning; }
    RunTable .run-table--error { color: $error; }
    """

    class Moved(Message):
        """The cursor is on another run, or that run changed."""

    class Opened(Message):
        """A run was chosen with the mouse."""

    def __init__(self, *, ascii_only: bool = False, price: Price | None = None, id: str | None = None) -> None:
        super().__init__(id=id)
        self.rows: tuple[RunRow, ...] = ()
        self.price = price
        self._symbols = ASCII_SYMBOLS if ascii_only else SYMBOLS
        self._pointer = ">" if ascii_only else "▸"
        self._cursor = 0
        self._drawn: list[tuple[RunRow, tuple[str, ...]]] = []

    @property
    def selected(self) -> RunRow | None:
        """The run under the cursor."""
        return self.rows[self._cursor] if self.rows else None

    def show(self, rows: tuple[RunRow, ...]) -> None:
        """Take a new list; only lines whose text changed are drawn again."""
        selected = self.selected
        before = self._drawn
        self.rows = rows
        self._drawn = [(row, self._volatile(row)) for row in rows]
        names = [row.name for row in rows]
        if selected is not None and selected.name in names:
            self._cursor = names.index(selected.name)
        else:
            self._cursor = min(self._cursor, max(0, len(rows) - 1))
        if [row.name for row, _text in before] != names:
            self.virtual_size = Size(self.size.width, len(rows) + 1)
            self.refresh()
            self._follow_cursor()
        else:
            for index, (old, new) in enumerate(zip(before, self._drawn, strict=True)):
                if old != new:
                    self._refresh_row(index)
        if selected != self.selected:
            self.post_message(self.Moved())

    def _volatile(self, row: RunRow) -> tuple[str, ...]:
        """What a row shows that depends on the clock."""
        now = clock()
        return (age(now - row.created), self._cost(row, now))

    def _cost(self, row: RunRow, now: float) -> str:
        return "" if self.price is None else money(self.price.of(row.hours(now)), self.price.currency)

    # Drawing

    def render_line(self, y: int) -> Strip:
        """The header stays on the first line; rows scroll below it."""
        width = self.size.width
        base = self.rich_style
        name_width, columns = fit(width, cost=self.price is not None)
        if y == 0:
            return self._header(name_width, columns, base + self._style("header")).adjust_cell_length(width, base)
        index = y - 1 + self.scroll_offset.y
        if index >= len(self.rows):
            return Strip.blank(width, base)
        if index == self._cursor and self.has_focus:
            base += self._style("cursor")
        return self._row(index, name_width, columns, base).adjust_cell_length(width, base)

    def _style(self, name: str) -> Style:
        return self.get_component_rich_style(f"run-table--{name}", partial=True)

    def _header(self, name_width: int, columns: list[Column], style: Style) -> Strip:
        text = " " * MARK + _cell(_("run"), name_width)
        for column in columns:
            text += " " * GAP + _cell(column.title(), column.width, right=column.right)
        return Strip([Segment(text, style)])

    def _row(self, index: int, name_width: int, columns: list[Column], base: Style) -> Strip:
        row, (age_text, cost) = self._drawn[index]
        muted, tone = base + self._style("muted"), base + self._style(STYLE_OF_STATE.get(row.state, "muted"))
        pointer = self._pointer if index == self._cursor else " "
        segments = [
            Segment(f" {pointer} ", base + self._style("accent")),
            Segment(_cell(row.name, name_width), base + Style(bold=row.live)),
        ]
        cells = {
            "what": (row.what, muted),
            "state": (f"{self._symbols.get(row.state, '?')} {state_word(row.state)}", tone),
            "step": (steps(row), base),
            "loss": (_loss(row.loss), base),
            "eval": (_loss(row.eval_loss), base),
            "eta": (_eta(row), base if row.live else muted),
            "age": (age_text, muted),
            "cost": (cost, muted),
        }
        replaced = [c for c in columns if c.id in REPLACED_BY_ERROR] if row.error else []
        for column in columns:
            if column not in replaced:
                text, style = cells[column.id]
                segments.append(Segment(" " * GAP + _cell(text, column.width, right=column.right), style))
            elif column is replaced[0]:
                room = sum(c.width + GAP for c in replaced) - GAP
                segments.append(Segment(" " * GAP + _cell(_first_line(row), room), base))
        return Strip(segments)

    # Cursor

    def action_move(self, by: int) -> None:
        """Move the cursor by some rows."""
        self._move_to(self._cursor + by)

    def action_page(self, by: int) -> None:
        """Move the cursor by pages."""
        self._move_to(self._cursor + by * max(1, self.size.height - 2))

    def action_edge(self, side: int) -> None:
        """Move the cursor to the first or the last row."""
        self._move_to(0 if side < 0 else len(self.rows) - 1)

    def select(self, name: str) -> None:
        """Put the cursor on a run, where it is listed."""
        for index, row in enumerate(self.rows):
            if row.name == name:
                self._move_to(index)

    def _move_to(self, index: int) -> None:
        index = max(0, min(index, len(self.rows) - 1))
        if not self.rows or index == self._cursor:
            return
        before, self._cursor = self._cursor, index
        self._refresh_row(before)
        self._refresh_row(index)
        self._follow_cursor()
        self.post_message(self.Moved())

    def _follow_cursor(self) -> None:
        visible = max(1, self.size.height - 1)
        top = self.scroll_offset.y
        if self._cursor < top:
            self.scroll_to(y=self._cursor, animate=False)
        elif self._cursor >= top + visible:
            self.scroll_to(y=self._cursor - visible + 1, animate=False)

    def _refresh_row(self, index: int) -> None:
        self.refresh(Region(0, 1 + index - self.scroll_offset.y, self.size.width, 1))

    def on_resize(self, event: events.Resize) -> None:
        """Fit the columns again."""
        self.virtual_size = Size(event.size.width, len(self.rows) + 1)
        self.refresh()
        self._follow_cursor()

    def on_focus(self) -> None:
        """Draw the cursor's line."""
        self._refresh_row(self._cursor)

    def on_blur(self) -> None:
        """Take the cursor's line away."""
        self._refresh_row(self._cursor)

    def on_click(self, event: events.Click) -> None:
        """One click selects, two open."""
        index = event.y - 1 + self.scroll_offset.y
        if event.y < 1 or index >= len(self.rows):
            return
        self._move_to(index)
        if event.chain >= 2:
            self.post_message(self.Opened())


def _first_line(row: RunRow) -> str:
    text = row.error.splitlines()[0]
    return _("at {steps}: {error}").format(steps=number(row.step), error=text) if row.step else text


def _cell(text: str, width: int, *, right: bool = False) -> str:
    """The text in exactly `width` cells."""
    length = cell_len(text)
    if length > width:
        return set_cell_size(text, width - 1) + "…"
    space = " " * (width - length)
    return space + text if right else text + space
