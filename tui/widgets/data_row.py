"""One row of training data as the model sees it: what is trained, what is only read, what is cut off."""

from __future__ import annotations

import os
import re

from rich.cells import cell_len

from engine.data.study import Picture
from engine.text import _, number
from tui.widgets.cells import Cells, CellWidget, Ink

WORD = re.compile(r"\n|[^\S\n]+|[^\s]+")
INKS = {"trained": Ink.ACCENT, "context": Ink.PLAIN, "special": Ink.MUTED, "cut": Ink.CUT}
MARKS = {"trained": ("«", "»"), "cut": ("~~", "~~")}  # where there are no colors
ASCII_MARKS = {"trained": ("<<", ">>"), "cut": ("~~", "~~")}
GUTTER = 2
Line = list[tuple[str, Ink]]


class DataRow(CellWidget, can_focus=False):
    """The text of a row, wrapped; `scroll` moves it. A sign before each line says what is on it, colors or not."""

    def __init__(self) -> None:
        super().__init__()
        self._picture: Picture | None = None
        self._said = ""
        self._lines: list[tuple[str, Line]] = []
        self._wrapped = (-1, False)
        self._top = 0
        self.marks = bool(os.environ.get("NO_COLOR"))

    def show(self, picture: Picture | None, said: str = "") -> None:
        """Show a row from its beginning; the same row again stays where it is. None: what is said instead."""
        same = picture is not None and self._picture is not None and picture.number == self._picture.number
        self._picture, self._said, self._wrapped = picture, said, (-1, False)
        self._top = self._top if same else 0
        self.repaint()

    def toggle_marks(self) -> None:
        """Marks around what is trained and cut, for those who see no colors."""
        self.marks = not self.marks
        self.repaint()

    def scroll(self, by: int) -> None:
        """Up or down by so many lines."""
        most = max(0, len(self._lines) - self.content_size.height)
        top = min(max(0, self._top + by), most)
        if top != self._top:
            self._top = top
            self.repaint()

    @property
    def page(self) -> int:
        """Lines of a page."""
        return max(1, self.content_size.height - 1)

    def paint(self, cells: Cells) -> None:
        """The lines in view, and how much there is below."""
        if self._picture is None:
            cells.put(GUTTER, 0, self._said, Ink.MUTED)
            return
        if self._wrapped != (cells.width, self.marks):
            self._lines = self._wrap(cells.width - GUTTER)
            self._wrapped = (cells.width, self.marks)
            self._top = min(self._top, max(0, len(self._lines) - cells.height))
        rest = len(self._lines) - self._top - cells.height
        for y, (sign, line) in enumerate(self._lines[self._top : self._top + cells.height]):
            cells.put(0, y, sign, Ink.CUT if sign == "x" else Ink.ACCENT)
            x = GUTTER
            for text, ink in line:
                x = cells.put(x, y, text, Ink.MUTED if self._picture.dropped else ink)
        if rest > 0:
            text = f" {_('{n} more lines').format(n=number(rest))} "
            cells.put_right(cells.width, cells.height - 1, text, Ink.MUTED)

    def _wrap(self, width: int) -> list[tuple[str, Line]]:
        """The lines of the row with the sign of each."""
        assert self._picture is not None
        width = max(8, width)
        ascii_only = self.glyphs.mode == "ascii"
        bar = "|" if ascii_only else "▎"
        marks = {} if not self.marks else ASCII_MARKS if ascii_only else MARKS
        lines: list[tuple[str, Line]] = []
        line: Line = []
        used, sign = 0, " "

        def end() -> None:
            nonlocal line, used, sign
            lines.append((sign, line))
            line, used, sign = [], 0, " "

        def put(text: str, ink: Ink, state: str) -> None:
            nonlocal used, sign
            if line and line[-1][1] == ink:
                line[-1] = (line[-1][0] + text, ink)
            else:
                line.append((text, ink))
            used += cell_len(text)
            if state == "cut":
                sign = "x"
            elif state == "trained" and sign == " ":
                sign = bar

        for text, state in self._picture.shown.parts:
            ink = INKS.get(state, Ink.PLAIN)
            before, after = marks.get(state, ("", ""))
            body = text.rstrip("\n")
            for found in WORD.findall(before + body + after + text[len(body) :]):
                word = found
                if word == "\n":
                    end()
                    continue
                if used + cell_len(word) > width and used and not word.isspace():
                    end()
                while cell_len(word) > width - used:
                    if word.isspace():
                        word = ""
                        break
                    head = _fitting(word, width - used)
                    put(head, ink, state)
                    word = word[len(head) :]
                    end()
                if word:
                    put(word, ink, state)
        if line:
            end()
        return lines

    def lines_of_row(self) -> list[str]:
        """The whole text as it is wrapped, for copying."""
        return ["".join(text for text, _ink in line) for _sign, line in self._lines]


def _fitting(word: str, width: int) -> str:
    """The beginning of a word that is no wider; one sign at least."""
    used = 0
    for at, sign in enumerate(word):
        used += cell_len(sign)
        if used > width:
            return word[: max(1, at)]
    return word
