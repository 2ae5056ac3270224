"""Strict JSON, one row at a time, and where the rows begin in a text that is not one row a line."""

from __future__ import annotations

import codecs
import itertools
import json
import re
from collections.abc import Iterator
from typing import Any

from engine.data.forms import recognize
from engine.data.tally import Tally
from engine.text import _

ROW_LIMIT = 64 << 20  # a longer row is not read: memory stays bounded whatever the file
MAX_DIGITS = 4000  # Python refuses to convert longer ones
SPACE = re.compile(r"[ \t\r\n]*")


class RowDecoder:
    """Decodes rows as strict JSON and notes what Python's own decoder lets pass."""

    def __init__(self) -> None:
        self.twice: list[str] = []
        self.not_finite: list[str] = []
        self._decode = json.JSONDecoder(
            object_pairs_hook=self._pairs, parse_constant=self._constant, parse_float=self._float, parse_int=self._int
        ).decode

    def decode(self, text: str) -> Any:
        """The value of a text; `twice` and `not_finite` tell about it until the next call.

        Raises:
            ValueError: it is not JSON.
            RecursionError: it is nested too deeply.
        """
        self.twice.clear()
        self.not_finite.clear()
        return self._decode(text)

    def _pairs(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(pairs)
        if len(value) != len(pairs):
            seen = [key for key, _value in pairs]
            self.twice += [key for key in value if seen.count(key) > 1]
        return value

    def _constant(self, word: str) -> None:
        self.not_finite.append(word)

    @staticmethod
    def _int(digits: str) -> int | str:
        return int(digits) if len(digits) < MAX_DIGITS else digits

    def _float(self, digits: str) -> float:
        value = float(digits)
        if value in (float("inf"), float("-inf")):
            self.not_finite.append(digits)
        return value


def reason(error: ValueError) -> str:
    """Why a text is not JSON, short."""
    if isinstance(error, json.JSONDecodeError):
        return _("{what} at character {column}").format(what=error.msg.removesuffix(" at"), column=error.pos + 1)
    return str(error)


def layout(head: str, whole: bool) -> str:
    """How rows lie in a text: "lines", "array" or "objects" (values over several lines without an array).

    Args:
        head: the beginning of the text.
        whole: the text ends where `head` does.
    """
    text = head.lstrip(" \t\r\n")
    if text[:1] not in ("[", "{"):
        return "lines"
    first, newline, rest = text.partition("\n")
    if _is_json(first):
        alone = whole and not rest.strip()
        if alone and first[0] == "{":
            return "objects" if wrapped_rows(json.loads(first)) is not None else "lines"
        return "array" if alone else "lines"
    if text[0] == "[":
        return "array"
    if not newline:
        return "lines" if whole else "objects"  # one very long row is an object, too
    if _is_json(rest.split("\n", 1)[0].rstrip().rstrip(",")):
        return "lines"  # a bad first line; the second is a row
    try:
        _value, end = json.JSONDecoder().raw_decode(text)
    except RecursionError:
        return "lines"
    except ValueError as error:
        at = getattr(error, "pos", 0)
        return "objects" if (not whole and at > len(text) - 64) or len(first.strip()) <= 1 else "lines"
    return "objects" if "\n" in text[:end] else "lines"


def wrapped_rows(value: Any) -> list[dict[str, Any]] | None:
    """The rows in an object like {"data": [row, row]}; None for an object that is a row itself."""
    if not isinstance(value, dict) or recognize(value)[0]:
        return None
    lists = [item for item in value.values() if isinstance(item, list) and item]
    return lists[0] if len(lists) == 1 and all(isinstance(item, dict) for item in lists[0]) else None


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def split(pieces: Iterator[bytes], array: bool, tally: Tally) -> Iterator[tuple[int, str]]:
    """Each value of a JSON array, or of values one after another, as its text with the line that it begins on.

    What comes after a place that is not JSON cannot be told apart any more: the tally says where, and that is the end.
    """
    text = _Text(pieces, tally)
    first, number = True, 0
    if array:
        text.skip_space()
        text.take(1)
    while True:
        text.skip_space()
        if text.at_end():
            if array:
                tally.add("bad_json", text.line, _("the array is not closed"))
            return
        if array and text.peek() == "]":
            text.take(1)
            text.skip_space()
            if not text.at_end():
                tally.add("bad_json", text.line, _("text after the end of the array"))
            return
        if array and not first:
            if text.peek() != ",":
                tally.add("bad_json", text.line, _("',' or ']' expected; the rest of the file was not read"))
                return
            text.take(1)
            text.skip_space()
        line, number = text.line, number + 1
        value = text.value()
        if value is None:
            return
        yield line, value
        first = False


class _Text:
    """The text of a file as a window that moves forward, and the line of its beginning."""

    def __init__(self, pieces: Iterator[bytes], tally: Tally) -> None:
        self.line = 1
        self._tally = tally
        self._pieces = pieces
        self._decoder = codecs.getincrementaldecoder("utf-8")("strict")
        self._bytes = 0
        self._text = ""
        self._at = 0
        self._ended = False

    def _more(self) -> bool:
        piece = next(self._pieces, b"")
        if not piece:
            if self._ended:
                return False
            self._ended = True
        try:
            new = self._decoder.decode(piece, not piece)
        except UnicodeDecodeError as error:
            start = self._bytes + error.start - (len(error.object) - len(piece))
            guess = guess_encoding(bytes(error.object[max(0, error.start - 200) : error.start + 200]))
            self._tally.add("encoding", None, guess, byte_offset=start)
            new = bytes(error.object).decode("utf-8", "replace")
            self._decoder.reset()
            self._decoder.errors = "replace"
        self._bytes += len(piece)
        self._text = self._text[self._at :] + new
        self._at = 0
        return bool(new) or not self._ended

    def at_end(self) -> bool:
        while self._at >= len(self._text):
            if not self._more():
                return True
        return False

    def peek(self) -> str:
        return self._text[self._at]

    def take(self, size: int) -> None:
        self.line += self._text.count("\n", self._at, self._at + size)
        self._at += size

    def skip_space(self) -> None:
        while True:
            match = SPACE.match(self._text, self._at)
            assert match is not None
            self.take(match.end() - self._at)
            if self._at < len(self._text) or not self._more():
                return

    def value(self) -> str | None:
        """The text of the value that begins here; None (and a finding) where none does."""
        decoder = json.JSONDecoder()
        while True:
            try:
                _value, end = decoder.raw_decode(self._text, self._at)
            except RecursionError:
                self._tally.add("bad_json", self.line, subtype="deep")
                return None
            except ValueError as error:
                if len(self._text) - self._at < ROW_LIMIT and self._double():
                    continue
                at = max(getattr(error, "pos", self._at), self._at)
                line = self.line + self._text.count("\n", self._at, at)
                what = getattr(error, "msg", str(error))
                self._tally.add("bad_json", line, _("{what}; the rest of the file was not read").format(what=what))
                return None
            # A number at the end of the window may go on after it; objects and lists end with their bracket.
            if end == len(self._text) and self._text[end - 1] not in '}]"' and self._double():
                continue
            value = self._text[self._at : end]
            self.take(end - self._at)
            return value

    def _double(self) -> bool:
        """Read as much again as there is, so that a long value is not parsed again for every piece."""
        goal = 2 * (len(self._text) - self._at)
        grown = False
        while len(self._text) - self._at <= goal:
            if not self._more():
                return grown
            grown = True
        return True


def guess_encoding(sample: bytes) -> str:
    """What bytes that are not UTF-8 probably are: a code page, by which of its letters they would be."""
    high = [byte for byte in sample if byte >= 0x80]
    pairs = sum(a >= 0xC0 and b >= 0xC0 for a, b in itertools.pairwise(sample))
    letters = sum(byte >= 0xC0 or byte in (0xA3, 0xA8, 0xB3, 0xB8) for byte in high)
    if letters > 0.7 * len(high) and pairs >= max(2, len(high) // 2):  # long words of such letters: Cyrillic
        lower = sum(0xC0 <= byte <= 0xDF for byte in high)  # KOI8-R has its small letters where cp1251 has capitals
        return "koi8-r" if lower > 0.7 * len(high) else "cp1251"
    for name, first, last in (("shift_jis", 0x81, 0x9F), ("gb18030", 0xA1, 0xBF)):
        if sum(first <= byte <= last for byte in high) > 0.25 * len(high) and len(high) > 5 and _decodes(sample, name):
            return name
    turkish = sum(byte in (0xFD, 0xFE, 0xF0, 0xDD, 0xDE, 0xD0) for byte in high)
    return "cp1254" if turkish * 3 >= len(high) else "cp1252"


def _decodes(sample: bytes, name: str) -> bool:
    """Whether bytes make letters in an encoding of East Asia, most of them ideographs or kana."""
    text = sample.decode(name, "ignore")
    wide = sum("\u3040" <= c <= "\u9fff" for c in text)
    return wide > 0.8 * sum(c > "\x7f" for c in text) and wide > 0
