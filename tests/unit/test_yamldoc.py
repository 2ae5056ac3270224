"""Strict YAML: lines, refusals, bounds."""

from __future__ import annotations

import time

import pytest
import yaml

from engine import yamldoc
from engine.yamldoc import Mapping, Scalar, decode, merged, parse, plain


@pytest.fixture(params=["libyaml", "python"], autouse=True)
def parser(request, monkeypatch):
    """Both of PyYAML's parsers: which one a machine has depends on its wheel."""
    if request.param == "python":
        monkeypatch.delattr(yaml, "CSafeLoader", raising=False)
    elif not hasattr(yaml, "CSafeLoader"):
        pytest.skip("this PyYAML has no libyaml")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2e-4", 0.0002),
        ("1_000", 1000),
        ("010", 10),
        ("0x1F", 31),
        ("0o17", 15),
        ("1:30", "1:30"),
        ("2024-01-01", "2024-01-01"),
        (".5", 0.5),
        ("-.inf", float("-inf")),
        ("yes", True),
        ("Off", False),
        ("~", None),
        ("1.2.3", "1.2.3"),
        ("0x", "0x"),
        ("+", "+"),
        ("9" * 5000, float("inf")),
    ],
)
def test_plain_words(text, value):
    assert Scalar(1, text=text).value() == value


def test_quoted_words_stay_text():
    root, findings = parse("a: '1'\nb: \"yes\"\nc: !!str 3\nd: !!int 3\n")
    assert plain(root) == {"a": "1", "b": "yes", "c": "3", "d": 3}
    assert not findings


@pytest.mark.parametrize(
    ("text", "lines", "word"),
    [
        ("a: 1\n\tb: 2\n", [2], "tab"),
        ("a:\n\tb: 2\n", [2], "tab"),
        ("x: |\n  text\n\tb: 2\n", [3], "tab"),
        ("a: *.jsonl\n", [1], "'*'"),
        ("a: 1\nb: @x\n", [2], "'@'"),
        ("a: `x`\n", [1], "'`'"),
        ("a: b: c\n", [1], "':'"),
        ("a: 1\n b: 2\n", [2], "':'"),
        ("a: 1\nb: [1,\nc: 2\n", [2, 3], "bracket"),
        ("a: 1\nb: 'x\nc: 2\n", [2, 3], "quote"),
        ("a: 1\nb\n", [2], "key"),
        ("a: *nowhere\n", [1], "anchor"),
        ("a: 1\n---\nb: 2\n", [2], "second"),
        ("? [a]\n: 1\n", [1], "key"),
        ("a: 1\nb: \x07\n", [2], "U+0007"),
        ("<<: 3\n", [1], "merge"),
    ],
)
def test_syntax_errors_say_where(text, lines, word):
    _root, findings = parse(text)
    (finding,) = findings
    assert (finding.kind, finding.level) == ("yaml_syntax", "error")
    assert finding.lines == lines
    assert word in finding.detail
    assert finding.fix


def test_lines_are_counted_by_newlines_alone():
    root, _findings = parse('é: "a\u2028b\x85c"\r\n😀: 2\r\nlast: 3\r\n')
    assert [key.line for key, _value in root.items] == [1, 2, 3]


def test_a_duplicate_key_names_both_lines():
    root, findings = parse("a: 1\nb: 2\na: 3\na: 4\n")
    (finding,) = findings
    assert (finding.kind, finding.lines, finding.count, finding.extra) == (
        "duplicate_key",
        [3, 4],
        2,
        {"first_line": 1},
    )
    assert [key.text for key, _value in root.items] == ["a", "b"]


@pytest.mark.parametrize("tag", ["!!python/object/apply:os.system", "!thing", "!!binary", "!!set", "!<tag:x,1:y>"])
def test_tags_build_nothing(tag):
    root, findings = parse(f"ok: 1\na: {tag} [x]\nb: {tag} [y]\n")
    (finding,) = findings
    assert (finding.kind, finding.lines, finding.count) == ("yaml_unsafe_tag", [2, 3], 2)
    assert [value.tagged for _key, value in root.items] == [False, True, True]


def test_merges():
    root, findings = parse("x: &a {p: 1, q: 2}\ny: &b {q: 3, r: 4}\nq: 0\n<<: [*a, *b]\n")
    assert not findings
    assert {key.text: value.value() for key, value in merged(root) if key.text in "pqr"} == {"q": 0, "p": 1, "r": 4}
    assert {key.text: key.line for key, _value in merged(root)}["p"] == 1


def bomb(levels: int, wide: int = 9) -> str:
    rows = [f"x-0: &a0 [{', '.join('1' * wide)}]"]
    rows += [f"x-{n}: &a{n} [{', '.join([f'*a{n - 1}'] * wide)}]" for n in range(1, levels)]
    return "\n".join(rows) + "\n"


def test_alias_bombs_are_not_expanded():
    started = time.process_time()
    root, findings = parse(bomb(30))
    assert root is None
    assert findings[0].kind == "yaml_alias_bomb"
    assert findings[0].lines[:2] == [1, 2]
    assert time.process_time() - started < 1


def test_a_few_aliases_are_fine():
    root, findings = parse(bomb(3))
    assert not findings
    assert isinstance(root, Mapping)


def test_an_alias_inside_its_own_value():
    _root, findings = parse("a: 1\nx: &x [*x]\n")
    assert (findings[0].kind, findings[0].lines, findings[0].subtype) == ("yaml_alias_bomb", [2], "recursive")


@pytest.mark.parametrize("text", ["a: " + "[" * 100_000, "a: " + "{a: " * 30_000, "- " * 40_000, "? " * 40_000])
def test_deep_nesting_ends_soon(text):
    started = time.process_time()
    root, findings = parse(text)
    assert root is None
    assert findings[0].kind == "yaml_syntax"
    assert time.process_time() - started < 2


@pytest.mark.parametrize(
    ("data", "kind", "lines", "word"),
    [
        (b"a: 1\nb: \xff\n", "encoding", [2], "byte 8 "),
        (b"\xef\xbb\xbfa: \xff\n", "encoding", [1], "byte 6 "),
        ("a: 1\n".encode("utf-16"), "encoding", [1], "UTF-16"),
        (b"#" * (yamldoc.MAX_BYTES + 1), "file_too_large", [1], "256"),
    ],
)
def test_bytes_that_are_no_text(data, kind, lines, word):
    _text, findings = decode(data)
    assert (findings[0].kind, findings[0].lines) == (kind, lines)
    assert word in findings[0].detail


def test_a_byte_order_mark_is_no_part_of_the_first_key():
    text, findings = decode(b"\xef\xbb\xbfa: 1\r\nb: 2\r\n")
    assert not findings
    assert plain(parse(text)[0]) == {"a": 1, "b": 2}
