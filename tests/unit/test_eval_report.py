"""The report: every part is there, hostile text does nothing, and the page needs nothing else."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.evaluate import gate, report
from engine.evaluate.report import words
from engine.evaluate.scoring import Scores
from engine.evaluate.statistics import Mean, TokenMean
from engine.files import read_json
from engine.recipe import gates
from tests.support.evaluation_folder import HOSTILE

VOID = {"meta", "br", "rect", "line", "circle"}


class Balanced(HTMLParser):
    """Fails on a tag that is not closed; collects the texts and the attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag


def made(scores: Scores, *, passed: bool | None = True) -> dict[str, Any]:
    regression = scores.get("regression")
    finding = {"kind": "x", "level": "warning", "detail": HOSTILE, "fix": "do | this", "lines": [], "count": 1}
    judged = [
        gate.judge(gates.parse(text), scores) for text in ("exact_match >= 50 %", "chrf > 0.5", "eval_loss < base")
    ]
    return {
        "format": 1, "time": 0.0, "run": "a-1", "step": 10, "label": "step-10",
        "model": {"tuned": "/t", "base": "/b", "adapter": True},
        "settings": {"max_new_tokens": 8, "extract": r"(\d+)", "metrics": []}, "inputs_sha256": "0" * 32,
        "metrics": [metric.to_json() for metric in scores.metrics], "gates": judged, "passed": passed,
        "regression": [{"by": "language", "name": "tr", "rows": 4, "base": 2.0, "tuned": 1.0}],
        "forgetting": -regression.delta.value if regression else None, "findings": [finding],
        "judge": {"text": HOSTILE},
        "harness": {"rows": [{"task": HOSTILE, "metric": "acc", "base": "1", "tuned": "2"}]},
    }  # fmt: skip


def some_scores() -> Scores:
    scores = Scores()
    tokens = [10.0] * 12
    scores.add(
        "eval_loss", "held_out", {"base": TokenMean([30.0] * 12, tokens), "tuned": TokenMean([10.0] * 12, tokens)}
    )
    scores.add(
        "exact_match", "task", {"base": Mean([0.0] * 12, share=True), "tuned": Mean([1.0] * 9 + [0.0] * 3, share=True)}
    )
    scores.add(
        "regression",
        "regression",
        {"base": Mean([1.0, 1.0, 0.0, 0.0], share=True), "tuned": Mean([1.0, 0, 0, 0], share=True)},
    )
    scores.add("one_row", "task", {"base": Mean([0.5]), "tuned": Mean([0.7])})  # an interval without end
    return scores


def test_the_report_in_all_forms(tmp_path: Path) -> None:
    rows = [
        {"id": f"task:{n}", "set": "task", "prompt": HOSTILE, "reference": None, "expected": HOSTILE, "base": HOSTILE,
         "tuned": "fine words", "scores": {"exact_match": {"base": 0.0, "tuned": 1.0}}}
        for n in range(60)
    ]  # fmt: skip
    report.write(SimpleNamespace(folder=tmp_path, document=made(some_scores()), rows=rows))  # type: ignore[arg-type]
    page = (tmp_path / "report.html").read_text()
    parser = Balanced()
    parser.feed(page)
    assert not parser.open and {"svg", "table", "details", "mark"} <= parser.tags
    assert "script" not in parser.tags and "link" not in parser.tags and not parser.links
    assert not re.search(r"https?://|@import|url\(", page)
    assert page.count("<details>") == 40 and "40 of 60" in page
    for text in (page, (tmp_path / "report.md").read_text()):
        for said in ("exact match", "75.0 %", "All gates passed.", "chrf was not measured", "Turkish", "better"):
            assert said in text, said
        assert "<script>" not in text
    assert "\x1b" not in (tmp_path / "report.md").read_text()
    table = [line for line in (tmp_path / "report.md").read_text().splitlines() if line.startswith("| ")]
    cells = {len(re.split(r"(?<!\\)\|", line)) for line in table[:5]}
    assert cells == {10}  # a pipe in a text is no cell
    assert read_json(tmp_path / "report.json")["metrics"][3]["delta"]["high"] is None


def test_what_was_forgotten_is_never_a_negative_share() -> None:
    metric = {"rows": 89, "delta": {"verdict": "not_enough_rows", "rows_needed": 138, "n": 89}}
    sure = {"rows": 89, "delta": {"verdict": "worse", "n": 89}}
    tail = "; not enough rows to tell (about 138 would do)"
    assert words.forgotten(-0.011, metric) == "forgotten: none on balance, of 89 general prompts" + tail
    assert words.forgotten(0.011, metric) == "forgotten: 1.1 % of 89 general prompts" + tail
    assert words.forgotten(0.2, sure) == "forgotten: 20.0 % of 89 general prompts"


def test_a_gate_says_how_sure_it_is() -> None:
    scores = some_scores()
    told = {text: gate.judge(gates.parse(text), scores) for text in (
        "exact_match >= 70 %", "exact_match >= 20 %", "eval_loss < base - 0.5", "eval_loss < base - 2",
        "forgetting <= 50 %", "forgetting <= 3 %", "f1 > 0.1",
    )}  # fmt: skip
    assert [(g["passed"], g["sure"]) for g in told.values()] == [
        (True, False), (True, True), (True, True), (False, False), (True, False), (False, False), (False, None),
    ]  # fmt: skip
    assert told["forgetting <= 3 %"]["value"] == pytest.approx(0.25)
    assert told["eval_loss < base - 0.5"]["limit"] == pytest.approx(2.5)
    assert "could have gone the other way" in words.gate_line(told["exact_match >= 70 %"])
    assert "was not measured" in words.gate_line(told["f1 > 0.1"])


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [("eval_loss", 1.23456, "1.2346"), ("exact_match", 0.5, "50.0 %"), ("perplexity", 12.0, "12.00"),
     ("chrf", float("nan"), "-"), ("exact_match", None, "-")],
)  # fmt: skip
def test_figures(name: str, value: float | None, text: str) -> None:
    assert words.figure(name, value) == text
