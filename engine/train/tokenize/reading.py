"""All rows of some files in tokens, on the scratch disk; and the rows themselves, read again, where they are wanted."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.data import reader, training
from engine.data.tally import Tally
from engine.errors import UsageError
from engine.text import _
from engine.train import rows
from engine.train.tokenize.blocks import Part, Pool
from engine.train.tokenize.encode import IGNORED
from engine.train.tokenize.packing import Numbers
from engine.train.tokenize.store import Scratch

TELL_EVERY_S = 5.0
Told = Callable[[int, float], None]  # rows so far, and the share of the bytes that are read


@dataclass
class Source:
    """The rows of some files: their tokens in a scratch, and where each row is from."""

    files: Sequence[Path]
    scratch: Scratch
    truncated: int = 0
    dropped: int = 0  # rows of which max_length left nothing to train
    places: array[int] = field(default_factory=lambda: array("q"))  # which row of its file each is
    keys: array[int] = field(default_factory=lambda: array("Q"))
    ends: list[int] = field(default_factory=list)  # rows up to the end of each file

    def __len__(self) -> int:
        return len(self.places)

    def key_numbers(self) -> NDArray[np.uint64]:
        """A hash of each row's content."""
        return np.frombuffer(self.keys, np.uint64) if self.keys else np.zeros(0, np.uint64)

    def rows_again(
        self, chosen: NDArray[np.int64], text_field: str, task: str, how: training.How
    ) -> Iterator[dict[str, Any]]:
        """The columns of some rows, read anew from their files: all rows would not fit into memory."""
        first = 0
        for path, end in zip(self.files, self.ends, strict=True):
            here = chosen[(chosen >= first) & (chosen < end)]
            wanted = {self.places[row] for row in here.tolist()}
            first = end
            if wanted:
                yield from _some(path, wanted, text_field, task, how)


def _some(path: Path, wanted: set[int], text_field: str, task: str, how: training.How) -> Iterator[dict[str, Any]]:
    """Rows of a file by their number; only they are taken apart."""
    place = 0
    for block in reader.blocks(path, Tally()):
        if isinstance(block.data, bytes):
            lines = [(block.line, line) for line in block.data.split(b"\n") if line.strip()]
        else:
            lines = block.data
        block.data = [one for number, one in enumerate(lines, place) if number in wanted]
        place += len(lines)
        for row in training.taken([block], text_field, task, how):
            if row.columns is not None:
                yield row.columns


def read(
    files: Sequence[Path],
    scratch: Scratch,
    pool: Pool,
    left_out: rows.LeftOut | None,
    tell: Told,
    form: str | None = None,
) -> tuple[Source, str | None]:
    """Tokenize all rows of the files into the scratch.

    Args:
        files: what `rows.resolve` found.
        scratch: takes the tokens; it is closed.
        pool: encodes.
        left_out: counts the rows that cannot be trained on, instead of an error at the first of them.
        tell: hears now and then how far it is.
        form: what the rows must be like; None takes that of the first.

    Returns:
        The rows, and their form.

    Raises:
        UsageError: a row that cannot be trained on, with its file and line; or rows of different forms.
    """
    source = Source(files, scratch)
    total = sum(path.stat().st_size for path in files)
    before = 0
    told = time.monotonic()
    for path in files:
        tally = Tally()
        stamp = _stamp(path)
        read_of_file = 0
        place = 0
        for part in pool.parts(reader.blocks(path, tally), form):
            form = part.form or form
            _refuse(part, path, left_out, source)
            scratch.append(part.values, part.lengths)
            source.places.frombytes((part.places + place).tobytes())
            source.keys.frombytes(part.keys.tobytes())
            source.truncated += part.truncated
            place += part.rows
            read_of_file = max(read_of_file, part.offset)
            if time.monotonic() - told > TELL_EVERY_S:
                told = time.monotonic()
                tell(len(source), min(1.0, (before + read_of_file) / total) if total else 1.0)
        rows.refuse_file(path, tally, left_out)
        if _stamp(path) != stamp:
            raise UsageError(
                _("the file changed while it was read"),
                where=str(path),
                fix=_("start again when nothing writes to it any more"),
                kind="file_changed",
            )
        before += path.stat().st_size
        source.ends.append(len(source))
    scratch.close()
    return source, form


def _stamp(path: Path) -> tuple[int, int]:
    info = path.stat()
    return info.st_size, info.st_mtime_ns


def _refuse(part: Part, path: Path, left_out: rows.LeftOut | None, source: Source) -> None:
    """Rows without tokens: what max_length cut away is counted, the rest is an error unless it may be left out."""
    for bad in part.bad:
        if bad.cut:
            source.dropped += 1
            continue
        error = rows.bad_row(path, bad.line, bad.what, bad.fix)
        if left_out is None:
            raise error
        left_out.add(error)


def cut(
    begins: Numbers, lengths: Numbers, trained: NDArray[np.bool_], longest: int, *, keep_end: bool
) -> tuple[Numbers, Numbers]:
    """Whole rows made at most `longest` tokens; those of which nothing that is trained is left are gone."""
    begins, lengths = begins.copy(), lengths.copy()
    keep = np.ones(len(begins), np.bool_)
    for row in np.flatnonzero(lengths > longest).tolist():
        if keep_end:
            begins[row] += lengths[row] - longest
        lengths[row] = longest
        keep[row] = trained[begins[row] : begins[row] + longest].any()
    return begins[keep], lengths[keep]


def labels(ids: NDArray[np.int32], trained: NDArray[np.bool_]) -> NDArray[np.int32]:
    """The label of each token: itself where it is trained."""
    return np.where(trained, ids, np.int32(IGNORED))
