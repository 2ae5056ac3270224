"""The checkpoints of a run as a table: a grid of cells with a cursor, so that a changed age sends a few bytes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.message import Message

from engine.text import _, gigabytes
from tui.keys import bindings
from tui.state.checkpoints import CheckpointRow, CheckpointsSnapshot
from tui.widgets.cells import Cells, CellWidget, Ink
from tui.widgets.figures import UNKNOWN, loss, whole
from tui.widgets.run_table import age

clock = time.time
GAP = 2
MARK = 3
WHY_MIN = 14
TONES = {"good": Ink.GOOD, "warning": Ink.WARNING, "error": Ink.ERROR, "muted": Ink.MUTED}
STATE_INK = {
    "sealed": Ink.GOOD,
    "verified": Ink.GOOD,
    "writing": Ink.ACCENT,
    "damaged": Ink.ERROR,
    "partial": Ink.WARNING,
    "not_exact": Ink.WARNING,
}


def state_word(state: str) -> str:
    """A checkpoint's state in the user's language."""
    return {
        "sealed": _("sealed"),
        "verified": _("verified"),
        "writing": _("writing"),
        "leftover": _("leftover"),
        "damaged": _("damaged"),
        "partial": _("weights only"),
        "not_exact": _("not exact"),
        "foreign": _("foreign"),
    }.get(state, state)


@dataclass(frozen=True)
class _Column:
    id: str
    title: Callable[[], str]
    width: int
    rank: int  # the highest goes first where the terminal is narrow


COLUMNS = (
    _Column("step", lambda: _("step"), 9, 0),
    _Column("loss", lambda: _("loss"), 7, 4),
    _Column("eval", lambda: _("eval"), 7, 2),
    _Column("size", lambda: _("size"), 9, 3),
    _Column("state", lambda: _("state"), 12, 1),
    _Column("age", lambda: _("age"), 7, 6),
)
EXTRA = 18  # cells of a column that another part adds


class CheckpointTable(CellWidget, can_focus=True):
    """Newest first; the cursor stays on its checkpoint when others come and go."""

    BINDINGS: ClassVar = bindings("list")
    DEFAULT_CSS = """
    CheckpointTable { height: 1fr; }
    CheckpointTable:focus { background: $background; }
    """

    class Moved(Message):
        """The cursor is on another checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self._snapshot = CheckpointsSnapshot()
        self._verdicts: dict[str, str] = {}
        self._cursor = 0
        self._top = 0

    @property
    def selected(self) -> CheckpointRow | None:
        """The checkpoint under the cursor."""
        rows = self._snapshot.rows
        return rows[min(self._cursor, len(rows) - 1)] if rows else None

    def show(self, snapshot: CheckpointsSnapshot, verdicts: dict[str, str]) -> None:
        """Draw these; `verdicts` are the states that a verification found, by name."""
        kept = self.selected.name if self.selected else None
        self._snapshot, self._verdicts = snapshot, dict(verdicts)
        names = [row.name for row in snapshot.rows]
        if kept in names:
            self._cursor = names.index(kept)
        self._cursor = max(0, min(self._cursor, len(names) - 1))
        self.repaint()

    def _columns(self, width: int) -> tuple[list[_Column], list[str], int]:
        """The columns that fit, the added ones that do, and the room for the reason."""
        columns, extra = list(COLUMNS), list(self._snapshot.columns)

        def room() -> int:
            return width - MARK - sum(c.width + GAP for c in columns) - (EXTRA + GAP) * len(extra)

        while room() < WHY_MIN and len(columns) > 2:
            least = max(columns, key=lambda column: column.rank)
            if extra and least.rank < 3:  # what is backed up is worth more than a size
                extra.pop()
            else:
                columns.remove(least)
        return columns, extra, max(0, room())

    def paint(self, cells: Cells) -> None:
        """Titles, then a line for each checkpoint that there is room for."""
        snapshot = self._snapshot
        columns, extra, room = self._columns(cells.width)
        x = MARK
        for column in columns:
            end = x + column.width
            if column.id == "state":
                cells.put(x, 0, column.title(), Ink.MUTED)
            else:
                cells.put_right(end, 0, column.title(), Ink.MUTED)
            x = end + GAP
        for title in extra:
            cells.put_text(x, 0, title, Ink.MUTED, end=x + EXTRA)
            x += EXTRA + GAP
        if room >= WHY_MIN:
            cells.put(x, 0, _("because"), Ink.MUTED)
        if not snapshot.rows:
            text = snapshot.problem or (_("no checkpoint was saved yet") if snapshot.read else "")
            cells.put_text(MARK, 2, text, Ink.ERROR if snapshot.problem else Ink.MUTED)
            return
        visible = max(1, cells.height - 1)
        self._top = max(min(self._top, self._cursor), self._cursor - visible + 1, 0)
        now = clock()
        for y, row in enumerate(snapshot.rows[self._top : self._top + visible], 1):
            self._row(cells, y, row, columns, extra, room, now)

    def _row(
        self, cells: Cells, y: int, row: CheckpointRow, columns: list[_Column], extra: list[str], room: int, now: float
    ) -> None:
        at_cursor = row is self.selected
        if at_cursor:
            cells.put(1, y, ">" if self.glyphs.mode == "ascii" else "▸", Ink.ACCENT)
        state = self._verdicts.get(row.name, row.state)
        base = Ink.STRONG if at_cursor else Ink.PLAIN
        texts = {
            "step": (whole(row.step), base),
            "loss": (loss(row.loss), base),
            "eval": (loss(row.eval_loss), Ink.GOOD if row.best else base),
            "size": (gigabytes(row.bytes) if row.bytes else UNKNOWN, base),
            "state": (state_word(state), STATE_INK.get(state, Ink.MUTED)),
            "age": (UNKNOWN if row.time is None else age(now - row.time), Ink.MUTED),
        }
        x = MARK
        for column in columns:
            text, ink = texts[column.id]
            if column.id == "state":
                cells.put_text(x, y, text, ink, end=x + column.width)
            else:
                cells.put_right(x + column.width, y, text, ink)
            x += column.width + GAP
        for title in extra:
            cell = row.extra.get(title)
            text, ink = (cell.text, TONES.get(cell.tone, Ink.PLAIN)) if cell else (UNKNOWN, Ink.MUTED)
            cells.put_text(x, y, text, ink, end=x + EXTRA)
            x += EXTRA + GAP
        if room >= WHY_MIN:
            cells.put_text(x, y, because(row), Ink.WARNING if row.goes else Ink.MUTED)

    def on_focus(self) -> None:
        """Draw the cursor."""
        self.repaint()

    def action_move(self, by: int) -> None:
        """Move the cursor by some rows."""
        self._move_to(self._cursor + by)

    def action_page(self, by: int) -> None:
        """Move the cursor by pages."""
        self._move_to(self._cursor + by * max(1, self.size.height - 2))

    def action_edge(self, side: int) -> None:
        """The first or the last row."""
        self._move_to(0 if side < 0 else len(self._snapshot.rows) - 1)

    def _move_to(self, index: int) -> None:
        index = max(0, min(index, len(self._snapshot.rows) - 1))
        if index != self._cursor:
            self._cursor = index
            self.repaint()
            self.post_message(self.Moved())

    def on_click(self, event: events.Click) -> None:
        """Select the row that was clicked."""
        if event.y >= 1:
            self._move_to(self._top + event.y - 1)


def because(row: CheckpointRow) -> str:
    """Why it stays or goes, and what else is to be known of it."""
    parts = []
    if row.problem and row.state in ("damaged", "partial", "foreign"):
        parts.append(row.problem)
    elif row.goes:
        parts.append(_("goes: {reason}").format(reason=row.reason))
    else:
        parts.append(row.reason)
    if row.best and _("the best") not in parts:
        parts.insert(0, _("the best"))
    if row.drilled is not None:
        parts.append(_("drilled") if row.drilled else _("drill failed"))
    return ", ".join(parts)
