"""CSV and TSV: records with the physical line that each begins on, going on after a broken one."""

from __future__ import annotations

import csv
import json
import re
from collections import deque
from collections.abc import Iterator
from typing import Any

from engine.data.forms import recognize
from engine.data.rawjson import guess_encoding
from engine.data.tally import Tally
from engine.text import _

DELIMITERS = ",;\t|"
SEPARATOR = re.compile(r"sep=(.)\r?$")
NAMES = {",": ",", ";": ";", "\t": "tab", "|": "|"}
HEADER_LIMIT = 2000
FIELD_LIMIT = 16 << 20  # a quote that is never closed swallows the file up to here


def delimiter_of(header: str, usual: str) -> str:
    """The sign between the columns of a header line: the usual one where it occurs, else the most frequent."""
    outside = "".join(header.split('"')[0::2])
    if outside.count(usual):
        return usual
    best = max(DELIMITERS, key=outside.count)
    return best if outside.count(best) else usual


def has_columns(head: str) -> bool:
    """Whether a text begins with a header line that names columns which make a training row."""
    first = head.lstrip("\ufeff").partition("\n")[0].strip()
    if len(first) > HEADER_LIMIT or first[:1] in ("{", "["):
        return False
    names = next(csv.reader([first], delimiter=delimiter_of(first, ",")), [])
    return len(names) > 1 and bool(recognize(dict.fromkeys(name.strip() for name in names))[0])


class _Lines:
    """Physical lines of a file with their numbers; a record that turned out broken can be given back."""

    def __init__(self, pieces: Iterator[bytes], tally: Tally) -> None:
        self._pieces = pieces
        self._tally = tally
        self._rest = b""
        self._offset = 0
        self._back: deque[tuple[int, str]] = deque()
        self.undecoded: set[int] = set()  # lines with bytes that are not UTF-8: their records are left out
        self._number = 0
        self.taken: list[tuple[int, str]] = []
        self._ready: deque[bytes] = deque()

    def __iter__(self) -> Iterator[str]:
        while (entry := self._next()) is not None:
            self.taken.append(entry)
            yield entry[1]

    def _next(self) -> tuple[int, str] | None:
        if self._back:
            return self._back.popleft()
        while not self._ready:
            piece = next(self._pieces, b"")
            if not piece and not self._rest:
                return None
            lines = (self._rest + piece).split(b"\n")
            self._rest = lines.pop() if piece else b""
            self._ready.extend(line + b"\n" for line in lines if piece or line)
        line = self._ready.popleft()
        self._number += 1
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            offset = self._offset + error.start
            self._tally.add("encoding", self._number, guess_encoding(line), byte_offset=offset)
            text = line.decode("utf-8", "replace")
            self.undecoded.add(self._number)
        self._offset += len(line)
        return self._number, text

    def give_back(self, keep: int) -> None:
        """Read all but the first `keep` lines of the broken record again."""
        self._back.extendleft(reversed(self.taken[keep:]))
        self.taken.clear()


def records(
    pieces: Iterator[bytes], head: str, usual: str, tally: Tally, delimiter: str | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """The records of a CSV file as rows with their first line. What is broken goes to the tally and is left out."""
    first, _newline, rest = head.partition("\n")
    if (declared := SEPARATOR.match(first)) is not None:  # a spreadsheet's own first line
        delimiter, first = delimiter or declared.group(1), rest.partition("\n")[0]
    sign = delimiter or delimiter_of(first, usual)
    if sign != usual and delimiter is None:
        tally.add("csv_delimiter", 1, NAMES[sign])
    old_limit = csv.field_size_limit(FIELD_LIMIT)
    try:
        yield from _records(_Lines(pieces, tally), sign, tally)
    finally:
        csv.field_size_limit(old_limit)


def _records(lines: _Lines, sign: str, tally: Tally) -> Iterator[tuple[int, dict[str, Any]]]:
    header: list[str] | None = None
    while True:
        reader = csv.reader(iter(lines), delimiter=sign, strict=True)
        try:
            for fields in reader:
                start = lines.taken[0][0]
                unreadable = not lines.undecoded.isdisjoint(number for number, _text in lines.taken)
                lines.taken.clear()
                if not any(fields) and len(fields) < 2:
                    tally.add("blank_line", start)
                elif header is None:
                    if start == 1 and SEPARATOR.match(sign.join(fields)):
                        continue
                    header = [name.strip() for name in fields]
                    if header and not header[0] and header.count("") == 1:
                        header[0] = "(index)"
                        tally.add("csv_header", start, subtype="index")
                    if len(set(header)) != len(header) or "" in header:
                        tally.add("csv_header", start, ", ".join(n for n in header if header.count(n) > 1 or not n))
                elif len(fields) != len(header):
                    words = _("{n} where the header has {wanted}").format(n=len(fields), wanted=len(header))
                    tally.add("csv_field_count", start, words)
                elif not unreadable:
                    yield start, {name: _cell(field) for name, field in zip(header, fields, strict=True)}
            return
        except csv.Error:
            if not lines.taken:
                return
            tally.add("csv_unclosed_quote", lines.taken[0][0])
            lines.give_back(1)


def _cell(text: str) -> Any:
    """A cell's text, or the list of messages that it holds as JSON."""
    if text.startswith("[{") and text.endswith("}]"):
        try:
            turns = json.loads(text)
        except (ValueError, RecursionError):
            return text
        if all(isinstance(turn, dict) and ("role" in turn or "from" in turn) for turn in turns):
            return turns
    return text
