"""Gates: what the grammar takes, what it refuses, and where a recipe's check says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import recipe
from engine.evaluate import gate
from engine.recipe.gates import BadGate, parse
from engine.workspace import RunFolder

RECIPE = "model_name_or_path: builtin:tiny\ndataset_path: builtin:support\n"


@pytest.mark.parametrize(
    ("text", "value", "base", "passed"),
    [
        ("eval_loss < base - 0.02", 1.0, 1.03, True),
        ("eval_loss < base - 0.02", 1.0, 1.01, False),
        ("eval_loss<base", 1.0, 1.0, False),
        ("eval_loss <= base", 1.0, 1.0, True),
        ("perplexity <= base * 0.9", 9.0, 10.0, True),
        ("exact_match >= 0.8", 0.8, None, True),
        ("exact_match >= 80 %", 0.79, None, False),
        ("exact_match > base + 20%", 0.3, 0.05, True),
        ("forgetting <= 3 %", 0.031, 0.5, False),
        ("forgetting <= 3 %", 0.03, 0.5, True),
        ("judge_score > -1e-3", 0.0, None, True),
        ("exact_match >= .5", None, None, False),
        ("eval_loss < base", 1.0, None, False),
        ("eval_loss < 2", float("nan"), None, False),
    ],
)
def test_a_gate_compares(text: str, value: float | None, base: float | None, passed: bool) -> None:
    assert parse(text).passed(value, base) is passed


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "ends too early"),
        ("eval_loss", "ends too early"),
        ("eval_loss <", "ends too early"),
        ("eval_loss == 3", "never exactly"),
        ("eval_los < 3", "no metric 'eval_los'"),
        ("eval_loss < base base", "stands where"),
        ("eval_loss < base / 2", "'/' after base"),
        ("eval_loss < 3 4", "one word too many"),
        ("eval_loss < base - ", "ends too early"),
        ("eval_loss < __import__('os')", "stands where a number"),
        ("3 < eval_loss", "stands where a metric's name"),
        ("eval_loss < 1e999", "not finite"),
        ("forgetting <= base - 3 %", "already"),
        ("x" * 300, "300 characters"),
    ],
)
def test_what_is_no_gate_is_told(text: str, said: str) -> None:
    with pytest.raises(BadGate) as caught:
        parse(text)
    assert said in caught.value.what and caught.value.fix


@given(st.text(max_size=60))
def test_no_text_does_anything_but_parse_or_fail(text: str) -> None:
    try:
        gate = parse(text)
    except BadGate:
        return
    assert isinstance(gate.passed(1.0, 1.0), bool)


def test_the_check_names_the_line(tmp_path: Path) -> None:
    file = tmp_path / "r.yaml"
    file.write_text(RECIPE + "gates:\n  - eval_loss < base\n  - eval_los < base\n  - exact_match >= 0.8\n")
    loaded = recipe.load(file)
    found = [(finding.kind, finding.lines) for finding in loaded.findings if finding.level == "error"]
    assert found == [("bad_gate", [5])]
    assert "did you mean 'eval_loss'" in loaded.findings[0].fix
    assert recipe.resolve(loaded, num_gpus=0)["gates"][0] == "eval_loss < base"


def test_the_users_function_may_be_a_gate_and_a_metric_left_out_may_not(tmp_path: Path) -> None:
    file = tmp_path / "r.yaml"
    file.write_text(RECIPE + "eval_metrics: [score.py:polite]\ngates:\n  - polite >= 0.9\n  - chrf >= 0.5\n")
    found = [(finding.kind, finding.lines, finding.fix) for finding in recipe.load(file).findings]
    assert found == [("bad_gate", [6], "add chrf to eval_metrics")]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("eval_metrics: [exact_mach]", "exact_mach"),
        ("eval_extract: '(['", "no regular expression"),
        ("eval_max_new_tokens: 0", "eval_max_new_tokens"),
        ("eval_task_path: nowhere.jsonl", "nowhere.jsonl"),
    ],
)
def test_bad_values_are_told(tmp_path: Path, line: str, said: str) -> None:
    file = tmp_path / "r.yaml"
    file.write_text(RECIPE + line + "\n")
    findings = recipe.check(recipe.load(file))
    assert [
        finding for finding in findings if finding.level == "error" and said in finding.detail and finding.lines == [3]
    ]


@pytest.mark.parametrize(
    ("report", "state"),
    [
        ({"passed": True, "gates": "x", "time": "now"}, "passed"),
        ({"passed": "no", "gates": ["x", {"expr": "a < 1", "passed": "no"}]}, "failed"),
        ({"passed": False, "gates": {"a": 1}, "time": []}, "failed"),
    ],
)
def test_a_damaged_report_passes_only_where_it_says_so(tmp_path: Path, report: dict[str, object], state: str) -> None:
    run = RunFolder(tmp_path / "a")
    for number, document in enumerate(({"passed": True, "time": -1.0}, report)):
        folder = gate.folder_of(run) / f"step-{number}"
        folder.mkdir(parents=True)
        (folder / "report.json").write_text(json.dumps(document))
    assert gate.word(run, None)["state"] == state
