"""A file as blocks of rows, whatever its format. Blocks are small enough to hand to another process."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from engine.data import csvfile, rawjson
from engine.data.rawjson import RowDecoder
from engine.data.sources import HEAD, Opened, Unreadable
from engine.data.tally import Tally
from engine.data.worker import Block
from engine.errors import UsageError
from engine.text import _

BLOCK = 1 << 21  # bytes of lines handed over at once
ROWS = 500  # rows handed over at once where they are taken apart here
JSON_NAMES = (".json",)
FORMATS = {".csv": "csv", ".tsv": "csv", ".tab": "csv"}


def blocks(path: Path, tally: Tally, delimiter: str | None = None) -> Iterator[Block]:
    """The rows of a file in blocks, in order. What is odd about the file goes to the tally.

    Raises:
        UsageError: the file is not there, may not be read, or needs a package that is missing.
    """
    try:
        opened = Opened(path, tally)
    except Unreadable:
        return
    try:
        yield from _blocks(opened, tally, delimiter)
    except Unreadable:
        return
    finally:
        opened.close()


def values(blocks: Iterable[Block]) -> Iterator[tuple[int, Any]]:
    """Each row's line and its value; its text where the check takes it for no row."""
    decoder = RowDecoder()
    for block in blocks:
        if isinstance(block.data, bytes):
            lines = enumerate(block.data.split(b"\n"), block.line)
            rows: Iterable[tuple[int, Any]] = ((line, data) for line, data in lines if data.strip())
        else:
            rows = block.data
        for line, row in rows:
            yield line, value_of(row, decoder)


def value_of(row: Any, decoder: RowDecoder) -> Any:
    """A row's value; its text where the check takes it for no row."""
    if isinstance(row, bytes):
        try:
            text = row.removesuffix(b"\r").decode()
        except UnicodeDecodeError:
            return row.decode("utf-8", "replace")
    elif isinstance(row, str):
        text = row
    else:
        return row
    try:
        value = decoder.decode(text.removeprefix("\ufeff"))
    except (ValueError, RecursionError):
        return text
    return text if decoder.not_finite else value


def _blocks(opened: Opened, tally: Tally, delimiter: str | None) -> Iterator[Block]:
    if opened.is_parquet:
        yield from _packed(_parquet(opened.path, tally))
        return
    head = opened.text_head.decode("utf-8", "replace")
    layout = layout_of(opened, head)
    if (layout == "csv") != (FORMATS.get(opened.suffix) == "csv"):
        tally.add("container", 1, "CSV" if layout == "csv" else "JSON", "csv")
    if layout == "csv":
        usual = "\t" if opened.suffix in (".tsv", ".tab") else ","
        yield from _packed(csvfile.records(opened.pieces(), head, usual, tally, delimiter))
        return
    if layout == "lines":
        yield from _lines(opened.pieces(), opened.skipped if opened.encoding == "UTF-8" else 0, tally)
        return
    if layout == "array" and opened.suffix not in JSON_NAMES:
        tally.add("container", 1, _("one JSON array"))
    rows = rawjson.split(opened.pieces(), layout == "array", tally)
    yield from _packed(_unwrapped(rows, tally) if layout == "objects" else rows)


def layout_of(opened: Opened, head: str) -> str:
    """How rows lie in a text: "csv", or as `rawjson.layout` has it. What it looks like counts more than its name."""
    by_name, like_json = FORMATS.get(opened.suffix) == "csv", head.lstrip()[:1] in ("{", "[")
    if not like_json and (by_name or csvfile.has_columns(head)):
        return "csv"
    return rawjson.layout(head, whole=len(opened.head) < HEAD)


def _unwrapped(rows: Iterable[tuple[int, Any]], tally: Tally) -> Iterator[tuple[int, Any]]:
    """The rows of objects like {"data": [row, row]}; other objects are rows themselves."""
    for line, text in rows:
        try:
            inside = rawjson.wrapped_rows(json.loads(text))
        except (ValueError, RecursionError):
            inside = None
        if inside is not None:
            tally.add("container", line, _("an object around a list of rows"))
            yield from ((line, item) for item in inside)
            continue
        if "\n" in text:
            tally.add("container", line, _("objects written over several lines"), "object")
        yield line, text


def _packed(rows: Iterable[tuple[int, Any]]) -> Iterator[Block]:
    batch: list[tuple[int, Any]] = []
    size = 0
    for line, row in rows:
        batch.append((line, row))
        size += len(row) if isinstance(row, str) else 1024
        if len(batch) >= ROWS or size >= BLOCK:
            yield Block(batch[0][0], 0, batch)
            batch, size = [], 0
    if batch:
        yield Block(batch[0][0], 0, batch)


def _lines(pieces: Iterator[bytes], offset: int, tally: Tally) -> Iterator[Block]:
    """Whole lines, about BLOCK bytes of them at a time. A line beyond ROW_LIMIT is dropped, and the tally says so."""
    line, kept = 1, bytearray()
    too_long = False
    for piece in pieces:
        begin = 0
        if too_long:
            begin = piece.find(b"\n") + 1
            offset += begin or len(piece)
            if not begin:
                continue
            line, too_long = line + 1, False
        kept += piece[begin:]
        if len(kept) < BLOCK:
            continue
        cut = kept.rfind(b"\n") + 1
        if cut:
            data = bytes(kept[:cut])
            yield Block(line, offset, data)
            line, offset = line + data.count(b"\n"), offset + cut
            del kept[:cut]
        elif len(kept) > rawjson.ROW_LIMIT:
            tally.add("bad_json", line, _("a line of more than 64 MB"))
            offset, too_long = offset + len(kept), True
            kept.clear()
    if kept:
        yield Block(line, offset, bytes(kept))


def _parquet(path: Path, tally: Tally) -> Iterator[tuple[int, Any]]:
    """The rows of a Parquet file; their numbers stand for lines."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise UsageError(
            _("Parquet files need the package pyarrow"),
            where=str(path),
            fix=_("pip install pyarrow, or convert the file to JSON lines"),
            kind="missing_package",
        ) from error
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=ROWS):
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        tally.add("compressed", None, f"Parquet: {str(error).splitlines()[0][:80]}", "damaged")
        return
    if not number:
        tally.add("empty_file", None)
