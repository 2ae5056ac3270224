"""Whatever a file holds, a check ends with findings: no crash, no long report, no control character in it."""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.data.check import check
from tests.support.data import talk

LIMITS = settings(
    max_examples=120, deadline=None, database=None, suppress_health_check=list(HealthCheck), derandomize=True
)
KEYS = st.sampled_from(
    [
        "messages", "conversations", "role", "content", "from", "value", "instruction", "input", "output", "prompt",
        "text", "completion", "chosen", "rejected", "tools", "tool_calls", "function", "name", "arguments", "id",
        "type", "system", "tool_call_id", "history", "x",
    ]
)  # fmt: skip
WORDS = st.sampled_from(
    ["user", "assistant", "system", "tool", "human", "gpt", "text", "[{", "\ud800", "\u202e", "{values}"]
)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12) | WORDS
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=5), max_leaves=24
)
SEEDS = [
    ("a.jsonl", "".join(json.dumps(talk(f"Question {n}?", "An answer.", id=n)) + "\n" for n in range(4)).encode()),
    ("a.json", json.dumps([talk("Question?", "An answer.")] * 3, indent=1).encode()),
    ("a.csv", b'prompt,completion\r\n"a, ""b""",c\r\nd,"e\nf"\r\n'),
]


def examine(name: str, data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(data)
        report = check([str(path)], workers=1)
    assert report.findings or report.usable == report.rows
    assert report.usable <= report.rows
    text = json.dumps(report.to_json(), ensure_ascii=False)
    assert len(text) < 20_000
    for finding in report.findings:
        assert finding.detail.isprintable() and finding.count >= 1


@LIMITS
@given(st.lists(st.dictionaries(KEYS, VALUES, max_size=4) | VALUES, min_size=1, max_size=4))
def test_any_json(rows):
    examine("a.jsonl", "".join(json.dumps(row) + "\n" for row in rows).encode())


@LIMITS
@given(st.sampled_from(SEEDS), st.integers(0, 2**32), st.integers(1, 6))
def test_damaged_bytes(seed, number, damages):
    name, data = seed
    rng, damaged = random.Random(number), bytearray(data)
    for _ in range(damages):
        at = rng.randrange(len(damaged))
        kind = rng.randrange(3)
        if kind == 0:
            damaged[at] = rng.randrange(256)
        elif kind == 1:
            del damaged[at : at + rng.randrange(1, 30)]
        else:
            damaged[at:at] = rng.choice([b'"', b"{", b"]", b"\n", b"\r", b"\xff", b"\xef\xbb\xbf", b"\\u", b"\0", b","])
        damaged = damaged or bytearray(b"x")
    examine(name, bytes(damaged))
