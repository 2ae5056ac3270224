"""The signs that a terminal can show: braille where it is good, blocks on the Linux console, ASCII where asked."""

from __future__ import annotations

import codecs
import locale
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tui.widgets.run_table import ASCII_SYMBOLS, SYMBOLS

Mode = Literal["braille", "block", "ascii"]


@dataclass(frozen=True)
class Glyphs:
    """One set of signs; every one is a single column wide."""

    mode: Mode
    cross: str = "✗"
    dot: str = "·"
    dash: str = "─"
    line: str = "─"  # what a curve looks like, for the legend
    tested: str = "─"
    axis: str = "│"
    tick: str = "┤"
    corner: str = "└"
    x_tick: str = "┬"
    cursor: str = "│"
    mark: str = "┃"
    full: str = "━"
    parts: str = "╸"  # the fractions of a full sign, smallest first
    track: str = "─"
    degree: str = "°"

    def state(self, state: str) -> str:
        """The sign of a run's state, as in the list of runs."""
        signs = {"ascii": ASCII_SYMBOLS, "block": _CONSOLE_SYMBOLS}.get(self.mode, SYMBOLS)
        return signs.get(state, "?")


_CONSOLE_SYMBOLS = {
    **ASCII_SYMBOLS,
    "running": "•",
    "saving": "•",
    "stopped": "■",
    "done": "√",
}
BRAILLE = Glyphs("braille")
# The console's font has the old PC character set: no braille, no eighths, no check marks.
BLOCK = Glyphs("block", cross="x", full="█", parts="▌", track="─")
ASCII = Glyphs(
    "ascii",
    cross="x",
    dot="-",
    dash="-",
    line="*",
    tested="o",
    axis="|",
    tick="+",
    corner="+",
    x_tick="+",
    cursor="|",
    mark="|",
    full="#",
    parts="",
    track=".",
    degree="C",
)


def choose(environ: Mapping[str, str] | None = None, *, ascii_only: bool = False) -> Glyphs:
    """The set for this terminal; `ascii_only` is the user's setting."""
    environ = os.environ if environ is None else environ
    term = environ.get("TERM", "")
    if ascii_only or term == "dumb" or not _utf8():
        return ASCII
    return BLOCK if term == "linux" else BRAILLE


def _utf8() -> bool:
    try:
        return codecs.lookup(locale.getencoding()).name == "utf-8"
    except LookupError:
        return False
