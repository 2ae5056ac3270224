"""Places in a text that do not overlap."""

from __future__ import annotations

import bisect


class Spans:
    """A set of places, each of which came before those that overlap it. A text may have many thousands."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def take(self, start: int, end: int) -> bool:
        """Add a place, unless it overlaps one that is there; whether it was added."""
        at = bisect.bisect_left(self._starts, start)
        if (at and self._ends[at - 1] > start) or (at < len(self._starts) and self._starts[at] < end):
            return False
        self._starts.insert(at, start)
        self._ends.insert(at, end)
        return True
