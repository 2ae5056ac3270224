"""Scores of answers: each metric, the extraction, several right answers, and what a row cannot be asked."""

from __future__ import annotations

from typing import Any

import pytest

from engine.evaluate import metrics, rows, text_scores
from engine.evaluate.metrics import BadExpectation, Want
from engine.evaluate.rows import Row


def score(metric: str, answer: str, expected: Any = None, **row: Any) -> float:
    given = Row("r1", "task", 1, expected=expected, **row)
    return metrics.score(metric, answer, Want.of(given, None), "r1")


@pytest.mark.parametrize(
    ("metric", "answer", "expected", "worth"),
    [
        ("exact_match", " Paris\n", "Paris", 1),
        ("exact_match", "paris", "Paris", 0),
        ("exact_match", "Lyon", ["Paris", "Lyon"], 1),
        ("exact_match", "", "", 0),
        ("contains", "It is in PARIS.", "paris", 1),
        ("contains", "Paris", ["Paris", "Lyon"], 0),
        ("regex", "2024-03-05", r"\A\d{4}-\d\d-\d\d\Z", 1),
        ("regex", "5 March", r"\A\d{4}", 0),
        ("numeric", "So 3 + 4 = 7.", 7, 1),
        ("numeric", "so it is 1,234.50", 1234.5, 1),
        ("numeric", "итого 3,5", 3.5, 1),
        ("numeric", "1 200 руб.", "1200", 1),
        ("numeric", "seven", 7, 0),
        ("numeric", "70", 7, 0),
        ("json", '```json\n{"a": 1}\n```', None, 1),
        ("json", '{"a": 1', None, 0),
        ("json", "[" * 5000, None, 0),
        ("json_schema", '{"a": 1}', {"type": "object", "required": ["a"]}, 1),
        ("json_schema", '{"b": 1}', {"type": "object", "required": ["a"]}, 0),
        ("json_schema", "no", {"type": "object"}, 0),
        ("f1", "the cat", "the dog", 0.5),
        ("rougeL", "кот сел на коврик", "кот лёг на коврик", 0.75),
        ("rouge1", "a b c", "c b a", 1),
        ("rouge2", "a b c", "c b a", 0),
        ("chrf", "same text", "same text", 1),
    ],
)
def test_scores(metric: str, answer: str, expected: Any, worth: float) -> None:
    assert score(metric, answer, expected) == pytest.approx(worth)


def test_only_what_is_extracted_counts() -> None:
    row = Row("r", "held_out", 1, reference="Thanks. Code: BIL")
    want = Want.of(row, r"(?:Code|Код): (\w+)\s*$")
    assert metrics.score("exact_match", "Other words. Код: BIL", want, "r") == 1
    assert metrics.score("exact_match", "Thanks. Code: DEL", want, "r") == 0
    assert metrics.score("exact_match", "Thanks.", want, "r") == 0
    own = Want.of(Row("r", "task", 1, expected="4", extract=r"#### (\d+)"), "ignored")
    assert metrics.score("exact_match", "2+2\n#### 4", own, "r") == 1


@pytest.mark.parametrize(
    ("metric", "expected"),
    [("numeric", "none at all"), ("numeric", True), ("regex", "(["), ("json_schema", "x"), ("json_schema", {"type": 3}),
     ("exact_match", None)],
)  # fmt: skip
def test_a_row_that_cannot_be_compared_is_an_error(metric: str, expected: Any) -> None:
    with pytest.raises(BadExpectation) as caught:
        score(metric, "{}", expected)
    assert caught.value.where == "r1" and caught.value.fix and caught.value.exit_code == 2


def test_a_bad_pattern_of_a_row_is_an_error() -> None:
    with pytest.raises(BadExpectation, match="no regular expression"):
        Want.of(Row("r", "task", 1, expected="x", extract="(["), None)


def test_bleu_is_sacrebleus() -> None:
    from sacrebleu import corpus_bleu

    said = ["the cat sat on the mat today", "a b c d e f", "nothing alike here at all"]
    wanted = ["the cat sat on the mat", "a b c d f e", "other words entirely, you see"]
    bleu = metrics.Bleu()
    counts = bleu.counts(said, [Want(text) for text in wanted])
    sums = [sum(column) for column in zip(*counts, strict=True)]
    assert bleu.value(sums) == pytest.approx(corpus_bleu(said, [wanted]).score / 100)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("-7.", -7),
        ("x=−3", -3),
        ("5 000,25", 5000.25),
        ("1’000", 1000),
        ("1e3", 1000),
        ("12,345", 12345),
        ("none", None),
    ],
)
def test_the_last_number(text: str, value: float | None) -> None:
    assert text_scores.last_number(text) == value


def test_the_regression_set_is_fair() -> None:
    """Each prompt's own answer passes, an answer to something else does not, and every language asks the same kinds."""
    found = rows.regression()
    assert len({row.id for row in found}) == len(found) >= 80
    for row in found:
        want = Want.of(row, None)
        assert row.reference is not None and len(row.metrics) == 1
        assert metrics.score(row.metrics[0], row.reference, want, row.id) == 1, row.id
        for other in ("", "I am not sure what you mean by that, could you say it again?", "0"):
            assert metrics.score(row.metrics[0], other, want, row.id) == 0, (row.id, other)
    kinds = {language: {row.category for row in found if row.language == language} for language in ("en", "ru", "tr")}
    assert kinds["en"] == kinds["ru"] == kinds["tr"] and len(kinds["en"]) == 6
