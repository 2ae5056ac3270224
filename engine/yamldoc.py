"""Strict YAML: a bounded tree with line numbers, and findings instead of exceptions.

PyYAML scans and parses; the tree is composed here because its own composer lets the last of two equal keys win,
forgets lines, builds objects from tags and expands aliases without a bound. Plain words keep their text (`no` is
a word until a key says that it wants a boolean), numbers follow YAML 1.2 (`2e-4` is one, `1:30` and `010` are not
sixty-based or octal). Nothing is ever constructed from a tag.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from engine.findings import Finding
from engine.text import _

MAX_BYTES = 256 * 1024  # a recipe or a settings file is a few kB
MAX_DEPTH = 32
MAX_ALIASED = 2_000  # nodes that aliases may add to those written
STANDARD = "tag:yaml.org,2002:"
PLAIN_TAGS = frozenset(STANDARD + name for name in ("str", "int", "float", "bool", "null", "map", "seq"))
INT = re.compile(r"[-+]?(0x[0-9a-fA-F_]+|0o[0-7_]+|0b[01_]+|\d[\d_]*)\Z")
FLOAT = re.compile(r"[-+]?(\d[\d_]*(\.[\d_]*)?|\.\d[\d_]*)([eE][-+]?\d+)?\Z")
SPECIAL = {".inf": float("inf"), ".nan": float("nan")}
BOOLS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
NULLS = frozenset(("", "~", "null", "Null", "NULL"))


@dataclass(slots=True)
class Node:
    """A value of the file; `line` is physical and 1-based. `start` and `end` are character offsets of the value.

    `tagged`: it carried a tag that asks for an object, and must not be used for what it looks like.
    """

    line: int
    start: int = 0
    end: int = 0
    expanded: int = 1
    depth: int = 1
    tagged: bool = False


@dataclass(slots=True)
class Scalar(Node):
    """A word, number or quoted text."""

    text: str = ""
    plain: bool = True

    def value(self) -> Any:
        """The value by itself: None, a boolean, a number or text."""
        if not self.plain:
            return self.text
        if self.text in NULLS:
            return None
        if self.text.lower() in BOOLS:
            return BOOLS[self.text.lower()]
        number = self.number()
        return self.text if number is None else number

    def number(self) -> int | float | None:
        """The number that the plain text is, or None."""
        text = self.text
        if not self.plain:
            return None
        if INT.match(text):
            if len(text) > 300:  # Python refuses to convert thousands of digits; nobody means them
                return float("-inf") if text[0] == "-" else float("inf")
            digits = text.lstrip("+-").replace("_", "")
            base = {"0x": 16, "0o": 8, "0b": 2}.get(digits[:2], 10)
            size = int(digits[2:] if base != 10 else digits or "0", base) if digits[2:] or base == 10 else 0
            return -size if text[0] == "-" else size
        if FLOAT.match(text):
            return float(text.replace("_", ""))
        special = SPECIAL.get(text.lstrip("+-").lower()) if text[:2] not in ("--", "++") else None
        return -special if special is not None and text[0] == "-" else special


@dataclass(slots=True)
class Sequence(Node):
    """A list."""

    items: list[Node] = field(default_factory=list)


@dataclass(slots=True)
class Mapping(Node):
    """A mapping; the keys are unique but for `<<`."""

    items: list[tuple[Scalar, Node]] = field(default_factory=list)


def plain(node: Node) -> Any:
    """The node as Python values (mappings inside a recipe's value, where no key says what is wanted)."""
    if isinstance(node, Scalar):
        return node.value()
    if isinstance(node, Sequence):
        return [plain(item) for item in node.items]
    assert isinstance(node, Mapping)
    return {key.text: plain(value) for key, value in merged(node)}


def merged(node: Mapping) -> Iterator[tuple[Scalar, Node]]:
    """The keys of a mapping with `<<` merges applied: its own keys win, then the earlier of several merges."""
    seen: set[str] = set()
    for key, value in node.items:
        if not is_merge(key):
            seen.add(key.text)
            yield key, value
    for key, value in node.items:
        if not is_merge(key):
            continue
        for source in value.items if isinstance(value, Sequence) else [value]:
            for inner, inner_value in merged(source) if isinstance(source, Mapping) else ():
                if inner.text not in seen:
                    seen.add(inner.text)
                    yield inner, inner_value


def is_merge(key: Scalar) -> bool:
    """Whether the key is YAML's merge key."""
    return key.plain and key.text == "<<"


def decode(data: bytes) -> tuple[str, list[Finding]]:
    """The file's text without a byte order mark, or why it is not UTF-8."""
    if len(data) > MAX_BYTES:
        detail = _("the file is larger than {limit} kB").format(limit=MAX_BYTES // 1024)
        return "", [Finding("file_too_large", "error", detail, _("keep data out of this file"), [1])]
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        fix = _("save it as UTF-8: iconv -f UTF-16 -t UTF-8")
        return "", [Finding("encoding", "error", _("the file is UTF-16, not UTF-8"), fix, [1])]
    try:
        return data.decode("utf-8-sig"), []
    except UnicodeDecodeError as error:
        shift = 3 if data.startswith(b"\xef\xbb\xbf") else 0  # the decoder does not count the mark
        offset = error.start + shift
        detail = _("byte {offset} (0x{byte:02x}) is not UTF-8").format(offset=offset, byte=data[offset])
        fix = _("save the file as UTF-8")
        return "", [Finding("encoding", "error", detail, fix, [data.count(b"\n", 0, offset) + 1])]


def parse(text: str) -> tuple[Node | None, list[Finding]]:
    """The one document in `text` (None when it is empty or cannot be used) and what is wrong with it."""
    return _Composer(text).run()


class _Composer:
    def __init__(self, text: str) -> None:
        self.text = text
        self.newlines = [at for at, char in enumerate(text) if char == "\n"]
        self.findings: list[Finding] = []
        self.anchors: dict[str, Node | None] = {}  # None while the node is still open
        self.alias_lines: set[int] = set()
        self.written = 0
        self.tags: dict[str, Finding] = {}
        self.duplicates: dict[str, Finding] = {}

    def line(self, index: int) -> int:
        """The physical line of a character: by newlines alone, whatever else YAML takes for a line break."""
        return min(bisect.bisect_left(self.newlines, index), max(0, self.last_line - 1)) + 1

    @property
    def last_line(self) -> int:
        return len(self.newlines) + (0 if self.text.endswith("\n") else 1)

    def run(self) -> tuple[Node | None, list[Finding]]:
        # libyaml where the wheel has it: linear on hostile nesting, where the scanner in Python is quadratic
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        root: Node | None = None
        try:
            events = iter(yaml.parse(self.text, Loader=loader))
            documents = 0
            for event in events:
                if isinstance(event, yaml.DocumentStartEvent):
                    documents += 1
                    if documents > 1:
                        line = self.line(_start(event))
                        raise _Refused("yaml_syntax", [line], _("a second document begins here"), "documents")
                    root = self.compose(events)
        except yaml.YAMLError as error:
            return None, [self.syntax(error)]
        except _Refused as refused:
            return None, [*self.findings, refused.finding]
        if root is not None and (root.expanded > self.written + MAX_ALIASED or root.depth > MAX_DEPTH):
            return None, [*self.findings, self.bomb(_("its aliases expand to more than a recipe can mean"))]
        return root, self.findings

    def compose(self, events: Iterator[yaml.Event]) -> Node:
        """One node with all that it holds, without recursion: the input must not choose the depth of our stack."""
        stack: list[tuple[Sequence | Mapping, str | None, list[Node]]] = []
        for event in events:
            self.written += 1  # ends count too: this is an upper bound
            if isinstance(event, yaml.SequenceStartEvent | yaml.MappingStartEvent):
                if len(stack) >= MAX_DEPTH:
                    line = self.line(_start(event))
                    raise _Refused("yaml_syntax", [line], _("lists and mappings are nested too deeply"), "depth")
                kind = Sequence if isinstance(event, yaml.SequenceStartEvent) else Mapping
                container = kind(self.line(_start(event)), _start(event))
                container.tagged = self.check_tag(event)
                if event.anchor:
                    self.anchors[event.anchor] = None
                stack.append((container, event.anchor, []))
                continue
            if isinstance(event, yaml.SequenceEndEvent | yaml.MappingEndEvent):
                container, anchor, children = stack.pop()
                node: Node = self.close(container, children)
                node.end = _end(event)
                if anchor:
                    self.anchors[anchor] = node
            elif isinstance(event, yaml.AliasEvent):
                node = self.alias(event)
            else:
                node = self.scalar(event)
            if not stack:
                return node
            stack[-1][2].append(node)
        raise AssertionError("the parser closes what it opens")

    def close(self, container: Sequence | Mapping, children: list[Node]) -> Node:
        container.expanded = 1 + sum(child.expanded for child in children)
        container.depth = 1 + max((child.depth for child in children), default=0)
        if isinstance(container, Sequence):
            container.items = children
            return container
        first: dict[str, int] = {}
        items: dict[str, tuple[Scalar, Node]] = {}
        for key, value in zip(children[::2], children[1::2], strict=True):
            if not isinstance(key, Scalar):
                detail = _("a key must be a word, not a list or a mapping")
                self.findings.append(Finding("yaml_syntax", "error", detail, _("write `key: value`"), [key.line]))
                continue
            if key.text in first:
                self.duplicate(key, first[key.text])
            first.setdefault(key.text, key.line)
            if is_merge(key):
                self.check_merge(key, value)
            items[key.text] = (key, value)
        container.items = list(items.values())
        return container

    def scalar(self, event: Any) -> Scalar:
        index, text = _start(event), event.value
        is_plain = not event.style  # None or "", by parser
        if event.tag in (STANDARD + "str", "!"):
            is_plain = False
        elif event.tag in PLAIN_TAGS:
            is_plain = True
        if any("\ud800" <= char <= "\udfff" for char in text):  # an escape that no file or socket can carry
            raise _Refused("yaml_syntax", [self.line(index)], _("a lone surrogate is not text"), "character")
        node = Scalar(self.line(index), index, _end(event), text=text, plain=is_plain)
        node.tagged = self.check_tag(event)
        if event.anchor:
            self.anchors[event.anchor] = node
        return node

    def alias(self, event: Any) -> Node:
        line = self.line(_start(event))
        self.alias_lines.add(line)
        if event.anchor not in self.anchors:
            detail = _("there is no anchor '&{name}' for this alias").format(name=event.anchor[:60])
            raise _Refused("yaml_syntax", [line], detail, "alias")
        target = self.anchors[event.anchor]
        if target is None:
            raise _Refused("yaml_alias_bomb", [line], _("an alias stands inside the value it names"), "recursive")
        self.alias_lines.add(target.line)
        return target

    def check_tag(self, event: Any) -> bool:
        """Whether the node's tag asks for an object; said once for each tag."""
        tag = event.tag
        if tag is None or tag == "!" or tag in PLAIN_TAGS:
            return False
        shown = ("!!" + tag[len(STANDARD) :] if tag.startswith(STANDARD) else tag)[:60]
        line = self.line(_start(event))
        if shown in self.tags:
            self.tags[shown].lines.append(line)
            self.tags[shown].count += 1
            return True
        detail = _("the tag {tag} asks for an object to be built; it was not").format(tag=shown)
        fix = _("write a plain value without a tag")
        self.tags[shown] = Finding("yaml_unsafe_tag", "error", detail, fix, [line], subtype=shown)
        self.findings.append(self.tags[shown])
        return True

    def check_merge(self, key: Scalar, value: Node) -> None:
        sources = value.items if isinstance(value, Sequence) else [value]
        if not all(isinstance(source, Mapping) for source in sources):
            detail = _("`<<` can only merge mappings")
            fix = _("name an anchored mapping: `<<: *name`")
            self.findings.append(Finding("yaml_syntax", "error", detail, fix, [key.line], key="<<"))

    def duplicate(self, key: Scalar, first_line: int) -> None:
        name = key.text[:60]
        if name in self.duplicates:
            self.duplicates[name].lines.append(key.line)
            self.duplicates[name].count += 1
            return
        detail = _("'{key}' was given already in line {line}").format(key=name, line=first_line)
        finding = Finding("duplicate_key", "error", detail, _("keep one of them"), [key.line], key=name)
        finding.extra["first_line"] = first_line
        self.duplicates[name] = finding
        self.findings.append(finding)

    def bomb(self, detail: str) -> Finding:
        lines = sorted(self.alias_lines)
        return Finding(
            "yaml_alias_bomb", "error", detail, _("write the values out, or use fewer aliases"), lines, len(lines)
        )

    def syntax(self, error: yaml.YAMLError) -> Finding:
        """A parser's error in our words, with the line where it stands and, for what was never closed, opened."""
        if isinstance(error, yaml.reader.ReaderError):
            line = self.line(error.position)
            detail = _("the character U+{code:04X} is not allowed in YAML").format(code=_code(error.character))
            return Finding("yaml_syntax", "error", detail, _("remove it"), [line], subtype="character")
        assert isinstance(error, yaml.MarkedYAMLError)
        problem, context = error.problem or "", error.context or ""
        mark = error.problem_mark or error.context_mark
        index = mark.index if mark else 0
        lines = [self.line(index)]
        start = self.text.rfind("\n", 0, index) + 1
        rest = self.text[start:]
        indent = rest[: len(rest) - len(rest.lstrip(" \t"))]
        if "\t" in indent or ("\t" in problem and self.text[index : index + 1] == "\t"):
            detail = _("tab used for indentation")
            return Finding("yaml_syntax", "error", detail, _("indent with spaces"), lines, subtype="tab")
        opened = error.context_mark and "block" not in context and ("flow" in context or "quoted" in context)
        if opened and error.context_mark:
            lines = sorted({self.line(error.context_mark.index), *lines})
        at = self.text[index : index + 1]
        if "quoted" in context:
            detail, fix = _("the quote is never closed"), _("close it on the same line")
        elif opened:
            detail, fix = _("a bracket is never closed, or a comma is missing"), _("check [ ], { } and commas")
        elif "alias" in context or "anchor" in context or (at and at in "@`%"):
            char = self.text[error.context_mark.index] if error.context_mark else at
            detail = _("a value cannot begin with '{char}'").format(char=at if at and at in "@`%" else char)
            fix = _("put the value into quotes")
        elif "mapping values" in problem:
            detail = _("a ':' stands where no key can be")
            fix = _("check the indentation; a value with ': ' inside needs quotes")
        elif "expected ':'" in problem:
            detail, fix = _("a key without ':' and a value"), _("write `key: value`")
            lines = sorted({self.line(error.context_mark.index) if error.context_mark else lines[0], *lines})
        else:
            detail, fix = problem, _("check indentation and quotes around this line")
        return Finding("yaml_syntax", "error", detail, fix, lines)


def _start(event: Any) -> int:
    return int(event.start_mark.index)


def _end(event: Any) -> int:
    return int(event.end_mark.index)


def _code(character: Any) -> int:
    return character if isinstance(character, int) else ord(character)


class _Refused(Exception):  # control flow inside this module
    def __init__(self, kind: str, lines: list[int], detail: str, subtype: str) -> None:
        super().__init__(detail)
        self.finding = Finding(kind, "error", detail, _("write it flat: one `key: value` a line"), lines)
        self.finding.subtype = subtype
