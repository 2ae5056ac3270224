"""Which words of two texts differ: for the page and for the reading screen."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

from engine.text import language

_PIECES = re.compile(r"\s+|\w+|[^\w\s]")


def marked(one: str, other: str) -> tuple[list[tuple[str, bool]], list[tuple[str, bool]]]:
    """Both texts in pieces, each with whether the other lacks it there."""
    a, b = _PIECES.findall(one), _PIECES.findall(other)
    left: list[tuple[str, bool]] = []
    right: list[tuple[str, bool]] = []
    for kind, a1, a2, b1, b2 in difflib.SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        _add(left, a[a1:a2], kind != "equal")
        _add(right, b[b1:b2], kind != "equal")
    return left, right


def _add(parts: list[tuple[str, bool]], pieces: Sequence[str], differs: bool) -> None:
    if pieces:
        parts.append(("".join(pieces), differs))


def html_language() -> str:
    """The language tag of what is written."""
    return language().replace("_", "-")
