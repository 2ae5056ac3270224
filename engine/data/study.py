"""Data under the eye: any row at once, what a check finds in them, how long they are. What the data screen shows.

All methods may take their time and are called from threads; none of them draws.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from engine.data import drops, examine, index, preview, reader, sources, tokens
from engine.data.examine import Outcome
from engine.data.tally import Tally
from engine.data.worker import Options
from engine.errors import UsageError
from engine.text import _

KEPT = 10_000  # rows of each finding that can be gone through


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
        self._child: examine.Child | None = None

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
        """Check all rows, in another process; `tell` hears how many are done.

        Raises:
            UsageError: a file or the model cannot be read.
            FtuiError: the process was killed, or `close` was called.
        """
        model = str(self.model.folder) if self.model is not None else None
        most = self.model.max_length if self.model is not None else None
        options = Options(self.subject.columns, model, self.subject.max_length, self.dropped, KEPT)
        with self._lock:
            if self._closed:
                raise examine.stopped()
            self._child = examine.Child(examine.Work([str(file) for file in self.files], options, most))
        return self._child.outcome(tell)

    def close(self) -> None:
        """Let scratch files go; an index on its way stops."""
        self._closed = True
        with self._lock:
            if self._child is not None:
                self._child.end()
            for found in self._indexes:
                found.close()
