"""Counting findings in bounded memory, so that a file of a million bad rows makes a short report."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from engine.data import privacy
from engine.data.kinds import lookup
from engine.findings import MAX_LINES, Finding

MAX_VALUES = 8  # different examples kept per kind
VALUE_WIDTH = 60
MASKED = ("pii", "secret")  # their values were masked where they were found
MAX_FINDINGS = 300  # a folder of thousands of bad files must not make a report of thousands of findings


@dataclass(slots=True)
class Entry:
    """One kind's lines and examples so far."""

    count: int = 0
    lines: list[int] = field(default_factory=list)
    values: dict[str, int] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)
    last: int | None = None  # the line counted last: a row counts once


def shown(value: str) -> str:
    """A value fit to be printed: short, and without a character that a terminal would obey."""
    short = value if len(value) <= VALUE_WIDTH else value[: VALUE_WIDTH - 1] + "…"
    if short.isprintable():
        return short
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode("ascii") for c in short)


def redacted(value: str) -> str:
    """A value without what is personal or secret in it: names of roles and columns come from the data, too."""
    for _kind, subtype, start, end in reversed(privacy.find(value)):
        value = value[:start] + privacy.masked(subtype, value[start:end]) + value[end:]
    return value


class Tally:
    """Findings of one file, by kind and subtype. A row counts once for each."""

    def __init__(self, keep: int = MAX_LINES) -> None:
        self.keep = keep  # line numbers of each finding
        self.entries: dict[tuple[str, str], Entry] = {}

    def add(self, kind: str, line: int | None, value: str = "", subtype: str = "", **extra: Any) -> None:
        """Count one row for a kind.

        Args:
            kind: a name of `kinds.catalogue`.
            line: where; None for something about the whole file.
            value: what was seen, harmless to print once `shown`: never personal data.
            subtype: a name of a fixed list (it makes a finding of its own).
            extra: further fields of the finding; the first that were given stay.
        """
        entry = self.entries.get((kind, subtype))
        if entry is None:
            entry = self.entries[kind, subtype] = Entry(extra=extra)
        if value:
            value = shown(value)
            if value in entry.values:
                entry.values[value] += 1
            elif len(entry.values) < MAX_VALUES:
                entry.values[value] = 1
        if line is None:
            entry.count += 1
        elif entry.last != line:
            entry.last = line
            entry.count += 1
            if len(entry.lines) < self.keep:
                entry.lines.append(line)

    def merge(self, other: Tally) -> None:
        """Add the findings of the rows that follow."""
        for key, theirs in other.entries.items():
            mine = self.entries.setdefault(key, Entry(extra=theirs.extra))
            mine.count += theirs.count
            mine.lines += theirs.lines[: self.keep - len(mine.lines)]
            for value, count in theirs.values.items():
                if value in mine.values or len(mine.values) < MAX_VALUES:
                    mine.values[value] = mine.values.get(value, 0) + count

    def findings(self, file: str) -> list[Finding]:
        """The findings in the user's words, errors first."""
        found = []
        for (kind, subtype), entry in self.entries.items():
            text = lookup(kind, subtype)
            values = entry.values if kind in MASKED else map(redacted, entry.values)
            words = {"values": ", ".join(values), "subtype": subtype, "n": entry.count, **entry.extra}
            found.append(
                Finding(
                    kind,
                    text.level,
                    text.detail.format(**words),
                    text.fix.format(**words),
                    entry.lines[:MAX_LINES],
                    entry.count,
                    subtype=subtype or None,
                    extra={"file": file, **entry.extra},
                )
            )
        return found
