"""A start's look at the data: what it refuses, what --force goes on without, and how long it may take."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from engine import recipe
from engine.findings import Finding
from engine.run import datacheck
from engine.run.prepare import RecipeError, refuse_errors
from tests.support.data import talk, write_rows
from tests.support.recipes import furnish, load


def look(folder: Path, rows: list[Any], **options: Any) -> list[Finding]:
    furnish(folder)
    write_rows(folder / "train.jsonl", rows)
    return datacheck.look(load(folder).recipe, **options)


def errors(found: list[Finding]) -> list[tuple[str, list[int]]]:
    return [(finding.kind, finding.lines) for finding in found if finding.level == "error"]


GOOD = [talk(f"Question {n}?", f"A long enough answer {n}.") for n in range(5)]


def test_good_rows_say_nothing(tmp_path: Path) -> None:
    assert look(tmp_path, GOOD) == []


def test_errors_are_those_of_the_check_of_data_and_can_be_forced(tmp_path: Path) -> None:
    bad = [{"messages": []}, "{", {"messages": [{"role": "narrator", "content": "x"}]}]
    found = look(tmp_path, [*GOOD, *bad, "{"])
    assert errors(found) == [("empty_messages", [6]), ("bad_json", [7, 9]), ("unknown_role", [8])]
    file = str(tmp_path / "train.jsonl")
    assert all(f.extra["file"] == file and f.fix for f in found)
    with pytest.raises(RecipeError) as caught:
        refuse_errors(found, "recipe.yaml")
    assert caught.value.exit_code == 2 and caught.value.where == f"{file}:6" and "--force" in caught.value.hint
    assert f"`ftui data check {file}`" in str(caught.value.fix) and caught.value.kind == "data"
    refuse_errors(found, "recipe.yaml", force=True)
    assert {f.level for f in found} == {"warning"}


def test_warnings_are_shown_and_stop_nothing(tmp_path: Path) -> None:
    found = look(tmp_path, [*GOOD, talk("Write to me", "Of course: anna.meyer@mail-company.com is what I have.")])
    assert [(f.kind, f.level, f.lines) for f in found] == [("pii", "warning", [6])]


@pytest.mark.parametrize("rows", [["{"], [{"prompt": "a", "chosen": "b", "rejected": "c"}]])
def test_force_cannot_help_where_no_row_is_left(tmp_path: Path, rows: list[Any]) -> None:
    found = look(tmp_path, rows)
    with pytest.raises(RecipeError) as caught:
        refuse_errors(found, "recipe.yaml", force=True)
    assert "no row" in caught.value.what and "--force" not in str(caught.value.fix)


def test_rows_of_several_forms(tmp_path: Path) -> None:
    found = look(tmp_path, [*GOOD, {"text": "a text of its own"}])
    (mixed,) = [f for f in found if f.level == "error"]
    assert mixed.kind == "mixed_formats" and "train.jsonl:6" in mixed.detail


def test_the_look_ends_in_time_whatever_the_size_and_says_so(tmp_path: Path) -> None:
    rows = [json.dumps(talk(f"Question {n}?", "An answer of some words. " * 20)) for n in range(2000)]
    begin = time.monotonic()
    found = look(tmp_path, rows * 20, seconds=0.05)
    assert time.monotonic() - begin < 3
    assert [(f.kind, f.level) for f in found if f.kind == "data_sampled"] == [("data_sampled", "note")]


def test_a_check_of_the_recipe_for_a_run_leaves_the_rows_to_the_look(tmp_path: Path) -> None:
    furnish(tmp_path)
    (tmp_path / "train.jsonl").write_text("no json\n")
    loaded = load(tmp_path)
    assert [f.kind for f in recipe.check(loaded)] == ["dataset_unreadable"]
    assert recipe.check(loaded, run=True) == []
