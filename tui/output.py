"""What a command prints: results on stdout, remarks where they do not get in the way, JSON when it was asked for."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Sequence
from typing import IO, Any

from engine.errors import FtuiError
from engine.text import _, printable

LABEL = 11  # cells of a labeled line's label
KEPT_CELLS = 32
STYLES = {"error": "31", "warning": "33", "ok": "32", "dim": "2", "bold": "1", "accent": "36"}


def width(text: str) -> int:
    """Terminal cells that a text takes (wide characters take two, combining ones none)."""
    if text.isascii():
        return len(text)
    import unicodedata

    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def shortened(text: str, cells: int) -> str:
    """The text in so many terminal cells; what is cut off shows as …"""
    if width(text) <= cells:
        return text
    while text and width(text) > cells - 1:
        text = text[:-1]
    return text.rstrip() + "…"


class Output:
    """One command's output."""

    def __init__(self, as_json: bool = False) -> None:
        self.as_json = as_json

    def json(self, document: Any) -> None:
        """Print the one JSON document of a command (or one line of a stream)."""
        import orjson

        sys.stdout.buffer.write(orjson.dumps(document, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_APPEND_NEWLINE))
        sys.stdout.buffer.flush()

    def line(self, text: str = "", style: str | None = None) -> None:
        """A line of the result, for people: stdout, or stderr beside JSON."""
        stream = sys.stderr if self.as_json else sys.stdout
        print(self.styled(text, style, stream), file=stream, flush=True)

    def note(self, text: str, style: str | None = None) -> None:
        """A remark or progress: stderr when stdout is not a terminal, so that a pipe gets the result alone."""
        stream = sys.stdout if sys.stdout.isatty() and not self.as_json else sys.stderr
        with contextlib.suppress(OSError):  # a remark that nobody can read is no failure
            print(self.styled(text, style, stream), file=stream, flush=True)

    def progress(self, text: str) -> None:
        """Alias of `note` for steps on the way to a result."""
        self.note(text)

    def error(self, error: FtuiError) -> None:
        """One clear error: what, where, what to do. Where it cannot be written, the exit code has to do."""
        with contextlib.suppress(OSError):
            if self.as_json:
                self.json({"error": error.to_json()})
        stream = sys.stderr
        lines = [self.styled(_("error: {what}").format(what=error.what), "error", stream)]
        if error.where:
            lines.append(self.styled(_("  at   {where}").format(where=error.where), None, stream))
        if error.fix:
            lines.append(self.styled(_("  fix  {fix}").format(fix=error.fix), None, stream))
        with contextlib.suppress(OSError):
            print("\n".join(lines), file=stream, flush=True)

    def field(self, label: str, text: str, style: str | None = None) -> None:
        """A labeled line; one that is too long for the terminal goes on below itself, broken at words."""
        lines = text.splitlines() or [""]
        if sys.stdout.isatty() and not self.as_json:
            import textwrap

            room = max(20, shutil.get_terminal_size((200, 24)).columns - LABEL)
            wrap = textwrap.TextWrapper(room, break_on_hyphens=False, break_long_words=False)
            lines = [part for line in lines for part in wrap.wrap(line) or [""]]
        for number, line in enumerate(lines):
            before = label + " " * max(1, LABEL - width(label)) if number == 0 else " " * LABEL
            self.line(before + line, style)

    def table(
        self,
        headers: Sequence[str],
        rows: Sequence[Sequence[str]],
        right: frozenset[int] = frozenset(),
        kept: int | None = None,
    ) -> None:
        """Columns in the order of importance; the last ones are left out where the terminal is too narrow.

        Args:
            headers: the columns' names.
            rows: their cells.
            right: columns that are aligned to the right.
            kept: a column that outlives the others: it is shortened first, down to KEPT_CELLS; without a text in
                it, it is the first to go.
        """
        cells = [list(headers), *[list(row) for row in rows]]
        widths = [max(width(row[i]) for row in cells) for i in range(len(headers))]
        room = shutil.get_terminal_size((200, 24)).columns if sys.stdout.isatty() else 10**6
        shown = list(range(len(headers)))
        if kept is not None and not any(row[kept] for row in cells[1:]):
            shown.remove(kept)
            kept = None

        def excess() -> int:
            return sum(widths[i] for i in shown) + 2 * (len(shown) - 1) - room

        least = 0 if kept is None else min(widths[kept], KEPT_CELLS)
        while len(shown) > (2 if kept is None else 3) and excess() > (0 if kept is None else widths[kept] - least):
            shown.remove(next(i for i in reversed(shown) if i != kept))
        if kept is not None and (over := excess()) > 0:
            widths[kept] = max(1, widths[kept] - over)
        for number, row in enumerate(cells):
            parts = []
            for i in shown:
                text = shortened(row[i], widths[i])
                space = " " * (widths[i] - width(text))
                parts.append(space + text if i in right else text + space)
            self.line("  ".join(parts).rstrip(), "dim" if number == 0 else None)

    @staticmethod
    def styled(text: str, style: str | None, stream: IO[str]) -> str:
        """The text with a color where the stream is a terminal that wants one."""
        if stream.isatty():
            text = printable(text)
        plain = not stream.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
        if style is None or plain:
            return text
        return f"\x1b[{STYLES[style]}m{text}\x1b[0m"
