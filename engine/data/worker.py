"""The check of one block of rows. Runs in a worker process: what goes in and comes out is small and picklable."""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from engine.data import characters, drops, forms, languages, names, privacy, shingles, turns
from engine.data.duplicates import Prints
from engine.data.forms import Row
from engine.data.rawjson import ROW_LIMIT, RowDecoder, guess_encoding, reason
from engine.data.tally import Tally
from engine.data.template import TemplateError
from engine.findings import MAX_LINES
from engine.text import gigabytes

LONG_LINE = 1_000_000  # bytes
SCAN_LIMIT = 2_000_000  # characters of a row that are searched for personal data and odd characters
MAX_COLUMNS = 200
HUGE = 2**31 - 1
SIDES = {"user": 0, "prompt": 0, "assistant": 1, "text": 2, "chosen": 3, "tool": 4, "function": 4, "rejected": 5}
PHRASES = (
    "as an ai language model", "as an ai model", "as a large language model", "i'm just an ai", "i am an ai language",
    "my knowledge cutoff", "trained by openai", "как языковая модель", "я языковая модель", "bir yapay zeka dil modeli",
)  # fmt: skip
WORD = re.compile(r"\w")
SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class Options:
    """What a check was asked for; the same for all blocks."""

    columns: dict[str, str] = field(default_factory=dict)
    model: str | None = None
    max_length: int | None = None
    dropped: frozenset[str] = frozenset()  # rows that a person took out (`drops.read`)
    keep: int = MAX_LINES  # line numbers kept of each finding
    names: bool = False  # look for names of people with the package that is installed


@dataclass
class Block:
    """Rows to check: whole lines of a file, or rows that the reader has taken apart."""

    line: int  # of the first line, where `data` is lines
    offset: int  # of the first byte of `data` in the file
    data: bytes | list[tuple[int, Any]]


@dataclass(slots=True)
class Seen:
    """How often something was seen, and the first lines."""

    count: int = 0
    lines: list[int] = field(default_factory=list)

    def add(self, count: int, lines: list[int]) -> None:
        """Count what was seen further on."""
        self.count += count
        self.lines += lines[: MAX_LINES - len(self.lines)]


@dataclass
class Result:
    """What a block was found to hold."""

    tally: Tally = field(default_factory=Tally)
    rows: int = 0
    usable: int = 0
    with_system: int = 0
    conversations: int = 0
    forms: dict[str, Seen] = field(default_factory=dict)
    types: dict[str, dict[str, Seen]] = field(default_factory=dict)  # of columns; unused ones with a "-" before
    extra: Counter[str] = field(default_factory=Counter)
    languages: Counter[str] = field(default_factory=Counter)
    prints: Prints = field(default_factory=Prints.empty)
    lengths: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))  # in tokens, with a model
    sizes: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))  # in characters
    trained: int = 0
    kept: int = 0


def check_block(block: Block, options: Options) -> Result:
    """Check all rows of a block."""
    checker = _Checker(options)
    if isinstance(block.data, bytes):
        for line, text in _lines(block, checker.result.tally):
            checker.text(line, text)
    else:
        for line, value in block.data:
            if isinstance(value, str):
                checker.text(line, value)
            else:
                checker.value(line, value)
    return checker.finish()


def _lines(block: Block, tally: Tally) -> Iterator[tuple[int, str]]:
    offset = block.offset
    assert isinstance(block.data, bytes)
    lines = block.data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    for number, line in enumerate(lines, block.line):
        start, offset = offset, offset + len(line) + 1
        if line.endswith(b"\r"):
            tally.add("line_endings", number)
        if not line.strip():
            tally.add("blank_line", number)
            continue
        try:
            yield number, line.removesuffix(b"\r").decode()
        except UnicodeDecodeError as error:
            tally.add("encoding", number, guess_encoding(line), byte_offset=start + error.start)
            yield number, ""


class _Checker:
    def __init__(self, options: Options) -> None:
        self.options = options
        self.result = Result(Tally(options.keep))
        self._decoder = RowDecoder()
        self._line = 0
        self._prints: list[tuple[int, int, int, int, int, int, bool]] = []
        self._texts: list[list[tuple[int, bytes]]] = []
        self._kept: list[tuple[int, Row]] = []
        self._sizes: list[int] = []

    def _say(self, kind: str, value: str = "", subtype: str = "") -> None:
        self.result.tally.add(kind, self._line, value, subtype)

    def text(self, line: int, text: str) -> None:
        """Check a row given as JSON text; an empty one was unreadable and counts only."""
        self._line = line
        if len(text) > LONG_LINE:
            self._say("long_line", gigabytes(len(text)))
        if text.startswith("\ufeff"):  # files that were put together keep their marks
            self._say("bom")
            text = text[1:]
        if not text or len(text) > ROW_LIMIT:
            self.result.rows += 1
            return
        try:
            value = self._decoder.decode(text)
        except RecursionError:
            if not self._is_dropped(text):
                self._say("bad_json", subtype="deep")
        except ValueError as error:
            if not self._is_dropped(text):
                self._say("bad_json", reason(error))
        else:
            for key in self._decoder.twice:
                self._say("duplicate_key", key)
            if self._decoder.not_finite:
                if not self._is_dropped(text):
                    self._say("non_finite_number", self._decoder.not_finite[0])
            else:
                self.value(line, value)
                return
        self.result.rows += 1

    def value(self, line: int, value: Any) -> None:
        """Check a decoded row."""
        result = self.result
        result.rows += 1
        self._line = line
        if self._is_dropped(value):
            return
        if not isinstance(value, dict):
            self._say("row_not_object", forms.type_name(value))
            return
        if self.options.columns:
            value = forms.rename(value, self.options.columns)
        form, used = forms.recognize(value)
        self._columns(value, used)
        if not form:
            if like := forms.mapping(value):
                words = " ".join(f"--column {ours}={theirs}" for ours, theirs in like.items())
                self._say("missing_messages", words, "columns")
            else:
                self._say("missing_messages", ", ".join(list(value)[:8]) or "-")
            return
        result.forms.setdefault(form, Seen()).add(1, [line])
        row = forms.make_row(value, form, self._say)
        turns.check(row, self._say)
        self._nested_types(row)
        self._look_at(row)
        if not row.broken:
            result.usable += 1
            self._sizes.append(min(sum(len(part) for _side, part in row.texts), HUGE))
            if self.options.model is not None:
                self._kept.append((line, row))

    def _is_dropped(self, value: Any) -> bool:
        """Whether a person took the row out; it then counts for nothing else."""
        if not self.options.dropped or drops.key(value) not in self.options.dropped:
            return False
        self._say("dropped_row")
        return True

    def _columns(self, value: dict[str, Any], used: tuple[str, ...]) -> None:
        for key, item in value.items():
            unused = bool(used) and key not in used and key not in forms.ALWAYS_USED
            if unused and (key in self.result.extra or len(self.result.extra) < MAX_COLUMNS):
                self.result.extra[key] += 1
            if item is not None:
                self._type(f"-{key}" if unused else key, item)

    def _type(self, name: str, item: Any) -> None:
        types = self.result.types
        if name in types or len(types) < MAX_COLUMNS:
            types.setdefault(name, {}).setdefault(forms.type_name(item), Seen()).add(1, [self._line])

    def _nested_types(self, row: Row) -> None:
        for message in row.messages or ():
            if isinstance(content := message.get("content"), str | list):
                self._type("content", content)
            for call in message.get("tool_calls") or ():
                function = call.get("function") if isinstance(call, dict) else None
                if isinstance(function, dict) and function.get("arguments") is not None:
                    self._type("arguments", function["arguments"])

    def _look_at(self, row: Row) -> None:
        """Characters, personal data, length, language, and what is kept to compare the row with others."""
        if not row.texts:
            return
        lowers = [text.lower() for _side, text in row.texts]
        whole = "\n".join(text for _side, text in row.texts)[:SCAN_LIMIT]
        lower = "\n".join(lowers)[:SCAN_LIMIT]
        characters.check(whole, self._say)
        row.broken = not can_be_kept(row)
        for start, end in names.find(whole) if self.options.names else ():
            self._say("pii", privacy.masked("name", whole[start:end]), "person")
        for kind, subtype, start, end in privacy.find(whole, lower):
            if subtype == "name" and self.options.names:
                continue
            self._say(kind, privacy.masked(subtype, whole[start:end]), subtype)
        if row.broken:
            return
        sides = [side for side, _text in row.texts]
        self.result.conversations += not row.plain and row.text is None
        self.result.with_system += sides[0] in turns.SYSTEM
        answers = [text for side, text in zip(sides, lowers, strict=True) if SIDES.get(side, 0) & 1]
        self._length(row, answers, lowers)
        if answers and (phrases := [phrase for phrase in PHRASES if phrase in answers[-1]]):
            self._say("boilerplate", phrases[0], "phrase")
        shown = next((text for side, text in zip(sides, lowers, strict=True) if side not in turns.SYSTEM), lowers[0])
        self.result.languages[languages.guess(shown) or "?"] += 1
        self._compare(row, sides, lowers)

    def _length(self, row: Row, answers: list[str], lowers: list[str]) -> None:
        if row.text is not None:
            if len(lowers[0].split()) < 3 and len(lowers[0]) < 20 and lowers[0].isascii():
                self._say("too_short")
        elif answers and not any(WORD.search(text) or not text.isascii() for text in answers):
            self._say("too_short")
        elif row.chosen is None and all(map(_is_label, answers)):
            self._say("too_short", subtype="word")

    def _compare(self, row: Row, sides: list[str], lowers: list[str]) -> None:
        normal = [" ".join(text.split()) for text in lowers]
        exact, swapped = _content(row)
        last = max((at for at, side in enumerate(sides) if SIDES.get(side, 0) & 1), default=None)
        prompt = [text for at, text in enumerate(normal) if at != last and sides[at] not in turns.SYSTEM]
        self._prints.append(
            (
                self._line,
                exact,
                _hash(
                    "\0".join(f"{side}\0{text}" for side, text in zip(sides, normal, strict=True)).encode(
                        "utf-8", "replace"
                    )
                ),
                _hash("\0".join(prompt).encode("utf-8", "replace")) if last is not None and prompt else 0,
                _hash(normal[last].encode("utf-8", "replace")) if last is not None else 0,
                swapped,
                last is not None and row.chosen is None and _is_label(normal[last]),
            )
        )
        self._texts.append(
            [
                (SIDES.get(side, 0), text.encode("utf-8", "replace"))
                for side, text in zip(sides, lowers, strict=True)
                if side not in turns.SYSTEM
            ]
        )

    def finish(self) -> Result:
        """Compute what is done for all rows at once."""
        result = self.result
        result.sizes = np.array(self._sizes, np.int32)
        if self._prints:
            columns = list(zip(*self._prints, strict=True))
            exact, normal, prompt, answer, swapped = (np.array(column, np.uint64) for column in columns[1:6])
            label = np.array(columns[6], np.bool_)
            keys, minima = shingles.signatures(self._texts)
            lines = np.array(columns[0], np.int64)
            result.prints = Prints(lines, exact, normal, prompt, answer, swapped, label, keys, minima)
        if self._kept:
            self._tokens()
        return result

    def _tokens(self) -> None:
        model = _model(str(self.options.model))
        most = self.options.max_length
        lengths = []
        for (line, row), encoded in zip(self._kept, model.encode([row for _line, row in self._kept]), strict=True):
            self._line = line
            if isinstance(encoded, TemplateError):
                if model.template is not None:
                    self._say("template_error", str(encoded), self._refused(row, model))
                continue
            length = encoded.total
            lengths.append(length)
            kept = encoded.trained if most is None else encoded.trained[:most]
            trained = kept.count(1)
            self.result.trained += trained
            self.result.kept += len(kept)
            extra: dict[str, Any] = {"max_length": most}
            if most is not None and length > most:
                self.result.tally.add("truncated", line, **extra)
            if not trained:
                self.result.tally.add(
                    "no_trained_tokens", line, subtype="" if any(encoded.trained) else "none", **extra
                )
        self.result.lengths = np.array(lengths, np.int32)

    @staticmethod
    def _refused(row: Row, model: Any) -> str:
        """Whether it is the system turn that the template refuses."""
        rest = [message for message in row.messages or () if message.get("role") not in turns.SYSTEM]
        if len(rest) == len(row.messages or ()) or not rest:
            return ""
        try:
            model.template.render(rest, row.tools)
        except TemplateError:
            return ""
        return "system"


@functools.lru_cache(maxsize=1)
def _model(name: str) -> Any:
    from engine.data import tokens

    return tokens.load(name)


def _is_label(answer: str) -> bool:
    return len(answer) <= 12 and answer.isascii() and " " not in answer


def can_be_kept(row: Row) -> bool:
    """Whether a row can be trained on: nothing is broken, there is text, and it can be written as UTF-8."""
    return (
        not row.broken
        and bool(row.texts)
        and not any(not text.isascii() and SURROGATE.search(text) for _side, text in row.texts)
    )


def _hash(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def _content(row: Row) -> tuple[int, int]:
    """Hash of what a model would see of the row, and of the same with chosen and rejected exchanged (else 0)."""
    if row.text is not None:
        return _hash(row.text.encode("utf-8", "replace")), 0
    head = [_bare(row.messages or []), row.tools]
    if row.label is not None:  # one answer, said to be good and to be bad
        return _hash(_dump([*head, row.label])), _hash(_dump([*head, not row.label]))
    if row.chosen is None or row.rejected is None:
        return _hash(_dump(head)), 0
    chosen, rejected = _bare(row.chosen), _bare(row.rejected)
    exact = _hash(_dump([*head, chosen, rejected]))
    return exact, _hash(_dump([*head, rejected, chosen])) if chosen != rejected else 0


def _bare(messages: list[dict[str, Any]]) -> list[list[Any]]:
    return [
        [str(message.get("role", "")).lower(), message.get("content"), message.get("tool_calls")]
        for message in messages
    ]


def _dump(value: Any) -> bytes:
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except (TypeError, ValueError):  # numbers beyond 64 bits, half surrogates
        return json.dumps(value, sort_keys=True, default=str).encode("utf-8", "replace")
