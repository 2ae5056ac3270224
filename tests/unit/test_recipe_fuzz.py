"""Whatever stands in a recipe: findings, never an exception, and bounded."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from engine import recipe
from engine.findings import has_errors
from engine.recipe import keys

KNOWN = sorted({**keys.table("sft"), **keys.table("dpo")})
WORDS = [
    "yes",
    "no",
    "null",
    "~",
    "1e-4",
    "0",
    "-1",
    ".nan",
    ".inf",
    "9" * 400,
    "cosine",
    "full",
    "qlora",
    "dpo",
    "epoch",
]
BITS = ["&a ", "*a", "<<: ", "!!python/name:x ", "{", "}", "[", "]", "- ", "? ", "| ", "\t", "\n", ": ", "#", "'", '"']
scalars = st.one_of(
    st.sampled_from(WORDS), st.text(max_size=8), st.integers(), st.floats(), st.booleans(), st.none()
).map(lambda value: value if isinstance(value, str) else json.dumps(value))
values = st.one_of(
    scalars,
    st.lists(scalars, max_size=3).map(lambda items: "[" + ", ".join(items) + "]"),
    st.dictionaries(st.sampled_from("abc"), scalars, max_size=2).map(
        lambda items: "{" + ", ".join(f"{key}: {value}" for key, value in items.items()) + "}"
    ),
)
lines = st.tuples(st.one_of(st.sampled_from(KNOWN), st.text(max_size=6)), values).map(lambda row: f"{row[0]}: {row[1]}")
recipes = st.lists(st.one_of(lines, st.sampled_from(BITS)), max_size=12).map("\n".join)


def examine(data: bytes, overrides: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "recipe.yaml"
        path.write_bytes(data)
        loaded = recipe.load(path, overrides)
        findings = recipe.check(loaded)
        document = {"recipe": loaded.recipe.values, "findings": [finding.to_json() for finding in findings]}
        assert len(json.dumps(document, allow_nan=False)) < 200_000
        if has_errors(findings):
            return
        values = recipe.resolve(loaded, num_gpus=None)
        path.write_text(yaml.safe_dump(values))
        again = recipe.load(path)
        assert recipe.resolve(again, num_gpus=None) == values


quick = settings(
    max_examples=150, deadline=2000, suppress_health_check=[HealthCheck.too_slow], derandomize=True, database=None
)


@quick
@given(st.binary(max_size=200))
@example(b"\xef\xbb\xbf")
@example(b"a: \xed\xa0\x80")
@example(b'a: "\\ud800"')
@example(b"%TAG ! x\n---\na: 1")
def test_any_bytes(data: bytes) -> None:
    examine(data, [])


@quick
@given(recipes, st.lists(st.one_of(lines.map(lambda row: row.replace(": ", "=", 1)), st.text(max_size=8)), max_size=2))
def test_anything_that_looks_like_a_recipe(text: str, overrides: list[str]) -> None:
    examine(text.encode("utf-8", "surrogatepass"), overrides)


@quick
@given(st.dictionaries(st.sampled_from(KNOWN), values, max_size=5))
def test_known_keys_with_any_values(rows: dict[str, str]) -> None:
    base = "model_name_or_path: builtin:tiny\ndataset_path: builtin:support\n"
    rest = {key: value for key, value in rows.items() if key not in ("model_name_or_path", "dataset_path")}
    examine((base + "".join(f"{key}: {value}\n" for key, value in rest.items())).encode("utf-8", "surrogatepass"), [])
