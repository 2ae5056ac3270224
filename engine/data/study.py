"""Data under the eye: any row at once, what a check finds in them, how long they are. What the data screen shows.

All methods may take their time and are called from threads; none of them draws.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.data import check, drops, index, preview, reader, sources, suggest, tokens
from engine.data.kinds import lookup
from engine.data.suggest import Advice
from engine.data.tally import Tally
from engine.data.worker import Options
from engine.errors import UsageError
from engine.text import _

KEPT = 10_000  # rows of each finding that can be gone through
BINS = tuple(1 << n for n in range(5, 21))
LEFT_OUT = ("duplicate", "near_duplicate", "train_eval_overlap", "dropped_row")


@dataclass(frozen=True)
class Subject:
    """What is looked at: the data, and how a recipe would read it."""

    names: tuple[str, ...]
    model: str | None = None
    max_length: int | None = None
    columns: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Picture:
    """One row as it is shown; `number` counts from 0 over all files."""

    number: int
    file: Path
    line: int
    value: Any
    shown: preview.Shown
    dropped: bool


@dataclass(frozen=True)
class Found:
    """One kind of finding over all files, with the rows where it was seen as (file, line)."""

    kind: str
    subtype: str
    level: str
    count: int
    detail: str
    rows: tuple[tuple[int, int], ...]

    @property
    def name(self) -> str:
        """Kind and subtype."""
        return f"{self.kind} {self.subtype}".strip()


@dataclass(frozen=True)
class Lengths:
    """How long the rows are. `bins` are (up to, rows); `unit` is tokens, or characters where no model counts."""

    values: NDArray[np.int32]
    is_tokens: bool
    bins: tuple[tuple[int, int], ...]
    p50: int = 0
    p90: int = 0
    p99: int = 0
    longest: int = 0
    trained_share: float | None = None

    def beyond(self, length: int) -> float:
        """The share of the rows that is longer."""
        return suggest.share_beyond(self.values, length)


@dataclass(frozen=True)
class Outcome:
    """What a check of all rows said."""

    rows: int
    usable: int
    found: tuple[Found, ...]
    lengths: Lengths
    advice: Advice | None
    left_out: dict[str, int]  # what preparing would leave out, by kind
    masked: int  # rows in which it would mask something

    @property
    def errors(self) -> int:
        """Kinds of errors."""
        return sum(found.level == "error" for found in self.found)


class Study:
    """The rows of some files.

    Args:
        subject: what is looked at.
        workspace: its root: where the cache and the list of dropped rows are.
    """

    def __init__(self, subject: Subject, workspace: Path) -> None:
        self.subject = subject
        self.workspace = workspace
        self.files: list[Path] = []
        self.model: tokens.Model | None = None
        self.dropped: frozenset[str] = frozenset()
        self._indexes: list[index.Index] = []
        self._firsts: list[int] = []
        self._lock = threading.Lock()
        self._closed = False

    def __len__(self) -> int:
        return self._firsts[-1] + len(self._indexes[-1]) if self._indexes else 0

    @property
    def indexed(self) -> bool:
        """Whether all files are."""
        return bool(self.files) and len(self._indexes) == len(self.files)

    def open(self) -> Picture:
        """Find the files; the first row, long before all are counted.

        Raises:
            UsageError: there is no such data, or no row in it.
        """
        self.files = sources.resolve(list(self.subject.names), self.workspace / "cache")
        self.dropped = drops.read(self.workspace)
        for file in self.files:
            tally = Tally()
            for line, value in reader.values(reader.blocks(file, tally)):
                return self.picture(0, file, line, value)
        raise UsageError(
            _("the file has no rows"), where=str(self.files[0]), fix=_("give a file with rows in it"), kind="empty_file"
        )

    def count(self) -> int:
        """Index all files; how many rows there are.

        Raises:
            UsageError: a file cannot be read, or changed meanwhile.
            FtuiError: there is no room to unpack one.
        """
        total = 0
        for file in self.files:
            try:
                found = index.build(file, self.workspace / "cache", progress=lambda _bytes, _rows: not self._closed)
            except UsageError as error:
                if len(self.files) == 1 or error.kind == "file_changed":
                    raise
                found = index.nothing(file)  # the check says what is wrong with it; the others have rows
            with self._lock:
                self._indexes.append(found)
                self._firsts.append(total)
            total += len(found)
        return total

    def load_model(self) -> None:
        """Load the model's tokenizer and template.

        Raises:
            UsageError: it is not on this machine.
        """
        if self.subject.model:
            folder = tokens.located(self.subject.model, self.workspace / "cache")
            self.model = tokens.load(str(folder))

    def row(self, number: int) -> Picture:
        """One row.

        Raises:
            UsageError: there is none, or its file changed.
        """
        with self._lock:
            place = int(np.searchsorted(self._firsts, number, side="right")) - 1
            while place and not len(self._indexes[place]):
                place -= 1
            line, value = self._indexes[place].row(number - self._firsts[place])
        return self.picture(number, self.files[place], line, value)

    def number_of(self, file: int, line: int) -> int:
        """The number of the row on a line of a file."""
        with self._lock:
            return self._firsts[file] + self._indexes[file].at_line(line)

    def picture(self, number: int, file: Path, line: int, value: Any) -> Picture:
        """A row that was read, as it is shown now."""
        subject = self.subject
        shown = preview.shown(f"{file.name}:{line}", line, value, self.model, subject.max_length, subject.columns)
        return Picture(number, file, line, value, shown, drops.key(value) in self.dropped)

    def toggle(self, picture: Picture) -> Picture:
        """Mark a row as dropped, or take that back; the row as it is then.

        Raises:
            FtuiError: it cannot be written down.
        """
        drops.mark(self.workspace, picture.value, file=picture.file, line=picture.line, dropped=not picture.dropped)
        self.dropped = drops.read(self.workspace)
        return self.picture(picture.number, picture.file, picture.line, picture.value)

    def examine(self, tell: Callable[[int], None] | None = None) -> Outcome:
        """Check all rows, in other processes; `tell` hears how many are done.

        Raises:
            UsageError: a file or the model cannot be read.
            FtuiError: a process was killed, or `close` was called.
        """
        model = str(self.model.folder) if self.model is not None else None

        def told(rows: int) -> bool:
            if tell is not None:
                tell(rows)
            return not self._closed

        options = Options(self.subject.columns, model, self.subject.max_length, self.dropped, KEPT)
        result = check.examine([str(file) for file in self.files], options, apart=True, tell=told)
        found = _found([file.tally for file in result.train])
        counts = {kind: sum(f.count for f in found if f.kind == kind) for kind in LEFT_OUT}
        lengths = _lengths(result, is_tokens=model is not None)
        advice = None
        if model is not None and self.model is not None:
            advice = suggest.advise(lengths.values, self.model.max_length)
        dropped = counts.pop("dropped_row")
        unusable = result.report.rows - result.report.usable - dropped
        left_out = {"unusable": unusable, **counts, "dropped": dropped}
        return Outcome(
            result.report.rows, result.report.usable, found, lengths, advice,
            {kind: count for kind, count in left_out.items() if count > 0},
            sum(f.count for f in found if f.kind in ("pii", "secret") and f.subtype != "name"),
        )  # fmt: skip

    def close(self) -> None:
        """Let scratch files go; an index on its way stops."""
        self._closed = True
        with self._lock:
            for found in self._indexes:
                found.close()


def _found(tallies: Sequence[Tally]) -> tuple[Found, ...]:
    """The findings of all files by kind, errors first, then the most frequent."""
    rows: dict[tuple[str, str], list[tuple[int, int]]] = {}
    counts: dict[tuple[str, str], int] = {}
    details: dict[tuple[str, str], str] = {}
    for file, tally in enumerate(tallies):
        for finding in tally.findings(""):
            key = (finding.kind, finding.subtype or "")
            rows.setdefault(key, []).extend((file, line) for line in tally.entries[key].lines)
            counts[key] = counts.get(key, 0) + finding.count
            details.setdefault(key, finding.detail)
    found = [
        Found(kind, subtype, lookup(kind, subtype).level, counts[kind, subtype], details[kind, subtype], tuple(lines))
        for (kind, subtype), lines in rows.items()
    ]
    order = ("error", "warning", "note")
    return tuple(sorted(found, key=lambda f: (order.index(f.level), -f.count, f.name)))


def _lengths(result: check.Examined, *, is_tokens: bool) -> Lengths:
    parts = [part for file in result.train for part in (file.lengths if is_tokens else file.sizes)]
    values = np.concatenate([np.zeros(0, np.int32), *parts])
    if not len(values):
        return Lengths(values, is_tokens, ())
    edges = [edge for edge in BINS if edge < 2 * int(values.max())]
    edges = [edge for at, edge in enumerate(edges) if at + 1 >= len(edges) or int((values <= edge).sum()) > 0]
    edges = edges or [BINS[0]]
    if edges[-1] < int(values.max()):
        edges.append(int(values.max()))
    upto = [int((values <= edge).sum()) for edge in edges]
    bins = tuple((edge, count - before) for edge, count, before in zip(edges, upto, [0, *upto], strict=False))
    p50, p90, p99 = (int(np.percentile(values, share, method="inverted_cdf")) for share in (50, 90, 99))
    kept = sum(file.kept for file in result.train)
    trained = sum(file.trained for file in result.train) / kept if is_tokens and kept else None
    return Lengths(values, is_tokens, bins, p50, p90, p99, int(values.max()), trained)
