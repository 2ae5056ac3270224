"""Any row of a file at once, whatever its size: where rows begin, one place for every quarter megabyte.

Plain JSON lines are read where they lie, and the index is kept in the cache. Everything else (packed, CSV, Parquet,
arrays) is written to a scratch file as JSON lines while it is read once; that file has no name and goes with us.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import orjson
from numpy.typing import NDArray

from engine.data import rawjson, reader
from engine.data.rawjson import RowDecoder
from engine.data.sources import Opened, Unreadable, cannot_read
from engine.data.tally import Tally
from engine.errors import FtuiError, UsageError
from engine.text import _

PIECE = 1 << 22
SPACING = 1 << 18  # bytes between two places
KEEP_FROM = 64 << 20  # bytes; a smaller file is indexed faster than a kept index is found
NAME = "rows"
FORMAT = 1
I64 = NDArray[np.int64]
Progress = Callable[[int, int], bool]  # bytes so far and rows so far; False stops


@dataclass
class Places:
    """Where some rows begin: the row's number, its byte and its line, in order."""

    rows: I64
    bytes: I64
    lines: I64
    count: int  # of all rows


class Index:
    """The rows of one file by their number, counted from 0. Made with `build`."""

    def __init__(self, path: Path, stamp: tuple[int, ...], places: Places, scratch: IO[bytes] | None) -> None:
        self.path = path
        self._stamp = stamp
        self._places = places
        self._scratch = scratch  # rows as [line, value]; None: the file itself
        self._decoder = RowDecoder()

    def __len__(self) -> int:
        return self._places.count

    def row(self, number: int) -> tuple[int, Any]:
        """A row's line and value, as `reader.values` gives them.

        Raises:
            UsageError: there is no such row, or the file is not what it was.
        """
        if not 0 <= number < len(self):
            raise UsageError(
                _("there is no row {row}").format(row=number + 1), where=str(self.path),
                fix=_("there are {n}").format(n=len(self)), kind="no_row",
            )  # fmt: skip
        at = int(np.searchsorted(self._places.rows, number, side="right")) - 1
        for found, line, data in self._from(at):
            if found == number:
                if self._scratch is not None:
                    of_file, value = orjson.loads(data)
                    return of_file, value
                return line, reader.value_of(data, self._decoder)
        raise _changed(self.path)

    def at_line(self, line: int) -> int:
        """The number of the row on a line; of the one before it where the line has none.

        Raises:
            UsageError: the file is not what it was.
        """
        if not len(self):
            return 0
        at = max(0, int(np.searchsorted(self._places.lines, line, side="right")) - 1)
        best = int(self._places.rows[at])
        for found, counted, data in self._from(at):
            here = orjson.loads(data)[0] if self._scratch is not None else counted
            if here > line:
                break
            best = found
            if here == line:
                break
        return best

    def _from(self, at: int) -> Any:
        """Rows from a place on as (number, line, bytes)."""
        row, line = int(self._places.rows[at]), int(self._places.lines[at])
        if self._scratch is not None:
            yield from self._walk(self._scratch, int(self._places.bytes[at]), row, line)
            return
        try:
            with open(self.path, "rb") as file:
                if _stamp(os.fstat(file.fileno())) != self._stamp:
                    raise _changed(self.path)
                yield from self._walk(file, int(self._places.bytes[at]), row, line)
        except OSError as error:
            raise cannot_read(self.path, error) from error

    @staticmethod
    def _walk(file: IO[bytes], offset: int, row: int, line: int) -> Any:
        file.seek(offset)
        while data := file.readline(rawjson.ROW_LIMIT):
            text = data.rstrip(b"\r\n")
            if text:
                yield row, line, text
                row += 1
            line += 1

    def close(self) -> None:
        """Let the scratch file go."""
        if self._scratch is not None:
            self._scratch.close()


def build(path: Path, cache: Path, *, delimiter: str | None = None, progress: Progress | None = None) -> Index:
    """Read a file once and note where its rows are; from the cache where that was done before.

    Args:
        path: the file.
        cache: the workspace's cache.
        delimiter: between CSV columns; None finds it out.
        progress: is told how far it is, and may stop it.

    Raises:
        UsageError: the file cannot be read, has nothing to read in it, or changes meanwhile.
        FtuiError: there is no room for the scratch file; or it was stopped.
    """
    tell = progress or (lambda _bytes, _rows: True)
    stamp, skip = _look(path)
    if skip is None:
        return _spool(path, cache, stamp, delimiter, tell)
    kept = cache / NAME / f"{hashlib.sha256(f'{path.absolute()}{stamp}'.encode()).hexdigest()[:24]}.npz"
    places = _load(kept)
    if places is None:
        places = _scan(path, skip, tell)
        if _stamp(os.stat(path)) != stamp:
            raise _changed(path)
        if stamp[0] >= KEEP_FROM:
            _keep(kept, places)
    return Index(path, stamp, places, None)


def is_plain(path: Path) -> bool:
    """Whether a file is JSON lines as they are, which need no scratch file.

    Raises:
        UsageError: it cannot be read.
    """
    return _look(path)[1] is not None


def _look(path: Path) -> tuple[tuple[int, ...], int | None]:
    """The file's stamp, and the bytes before its first line; None where it is no plain JSON lines."""
    tally = Tally()
    try:
        opened = Opened(path, tally)
    except Unreadable:
        raise _said(tally, path) from None
    try:
        stamp = _stamp(os.stat(path))
        if opened.is_parquet or opened.packing is not None or opened.encoding != "UTF-8" or opened.old_mac:
            return stamp, None
        plain = reader.layout_of(opened, opened.text_head.decode("utf-8", "replace")) == "lines"
        return stamp, opened.skipped if plain else None
    finally:
        opened.close()


def _stamp(info: os.stat_result) -> tuple[int, ...]:
    return info.st_size, info.st_mtime_ns, info.st_ino


def _scan(path: Path, skip: int, tell: Progress) -> Places:
    """Where rows begin, by the line feeds alone. A line without anything in it is no row."""
    rows, places, lines = [0], [skip], [1]
    row, line, start, next_place = 0, 1, skip, SPACING
    last = b"\n"
    with open(path, "rb") as file:
        file.seek(skip)
        offset = skip
        while piece := file.read(PIECE):
            ends = np.flatnonzero(np.frombuffer(piece, np.uint8) == 10) + offset
            last = piece[-1:]
            if len(ends):
                begins = np.empty_like(ends)
                begins[0], begins[1:] = start, ends[:-1] + 1
                sizes = ends - begins
                full = sizes > 0
                for short in np.flatnonzero(sizes == 1):  # "\r" alone is an empty line, too
                    at = int(begins[short]) - offset
                    full[short] = at < 0 or piece[at : at + 1] != b"\r"
                numbers = row + np.cumsum(full) - full
                if int(begins[-1]) >= next_place:
                    wanted = np.arange(next_place, int(begins[-1]) + 1, SPACING)
                    chosen = np.unique(np.searchsorted(begins, wanted))
                    rows += numbers[chosen].tolist()
                    places += begins[chosen].tolist()
                    lines += (line + chosen).tolist()
                    next_place = (int(begins[chosen[-1]]) // SPACING + 1) * SPACING
                row, line, start = row + int(full.sum()), line + len(ends), int(ends[-1]) + 1
            offset += len(piece)
            if not tell(offset, row):
                raise FtuiError(_("stopped"), where=str(path), kind="stopped")
    count = row + (last != b"\n" and offset > start)
    return Places(np.array(rows), np.array(places), np.array(lines), count)


def _spool(path: Path, cache: Path, stamp: tuple[int, ...], delimiter: str | None, tell: Progress) -> Index:
    tally = Tally()
    rows, places, lines = [0], [0], [1]
    row = offset = 0
    try:
        folder = cache / NAME
        folder.mkdir(parents=True, exist_ok=True)
        scratch = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - closed by `Index.close`
        for block in reader.blocks(path, tally, delimiter):
            if offset - places[-1] >= SPACING:
                rows, places, lines = [*rows, row], [*places, offset], [*lines, block.line]
            for line, value in reader.values([block]):
                data = _dump(line, value)
                scratch.write(data)
                row, offset = row + 1, offset + len(data)
            if not tell(offset, row):
                raise FtuiError(_("stopped"), where=str(path), kind="stopped")
        scratch.flush()
    except OSError as error:
        raise FtuiError(
            _("there is no room to unpack the data: {reason}").format(reason=error.strerror or error),
            where=str(cache), fix=_("free space there, or set FTUI_HOME to another disk"), kind="unwritable",
        ) from error  # fmt: skip
    if not row:
        raise _said(tally, path)
    if any(kind == "file_changed" for kind, _subtype in tally.entries):
        raise _changed(path)
    return Index(path, stamp, Places(np.array(rows), np.array(places), np.array(lines), row), scratch)


def _dump(line: int, value: Any) -> bytes:
    try:
        return orjson.dumps([line, value], default=str, option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_NON_STR_KEYS)
    except TypeError:  # half surrogates, numbers beyond 64 bits: shown as text
        text = json.dumps(value, default=str).encode("utf-8", "replace").decode()
        return orjson.dumps([line, text], option=orjson.OPT_APPEND_NEWLINE)


def _load(kept: Path) -> Places | None:
    try:
        with np.load(kept) as file:
            return Places(file["rows"], file["bytes"], file["lines"], int(file["count"]))
    except (OSError, ValueError, KeyError, EOFError):
        return None


def _keep(kept: Path, places: Places) -> None:
    """Write the index for the next time; one that cannot be kept is made again."""
    staging = kept.with_name(f".{kept.stem}.{os.getpid()}.npz")
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        np.savez(staging, format=FORMAT, rows=places.rows, bytes=places.bytes, lines=places.lines, count=places.count)
        staging.replace(kept)
    except OSError:
        staging.unlink(missing_ok=True)


def _said(tally: Tally, path: Path) -> UsageError:
    """The error of a file with nothing to read in it."""
    for finding in tally.findings(str(path)):
        if finding.level == "error":
            return UsageError(finding.detail, where=str(path), fix=finding.fix, kind=finding.kind)
    return UsageError(_("the file has no rows"), where=str(path), kind="empty_file")


def _changed(path: Path) -> UsageError:
    return UsageError(
        _("the file changed while it was read"), where=str(path),
        fix=_("open it again when nothing writes to it any more"), kind="file_changed",
    )  # fmt: skip


def nothing(path: Path) -> Index:
    """The index of a file without rows."""
    none = np.zeros(1, np.int64)
    return Index(path, (), Places(none, none, none, 0), None)
