"""What an answer is worth: a score from 0 to 1 by a named metric."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from engine.errors import FtuiError
from engine.evaluate import text_scores
from engine.evaluate.rows import Row
from engine.text import _

DEFAULT = ("exact_match", "f1", "chrf")
BINARY = ("exact_match", "contains", "regex", "numeric", "json", "json_schema")
CORPUS = ("bleu",)  # of all answers together: sentences are too short for its runs of four words
TOLERANCE = 1e-6
_FENCE = re.compile(r"\A\s*```\w*\s*\n(.*?)\n?\s*```\s*\Z", re.DOTALL)


class BadExpectation(FtuiError):
    """What a row expects cannot be compared with: its metric wants something else (exit code 2)."""

    exit_code = 2
    kind = "bad_row"


@dataclass(frozen=True)
class Want:
    """What a row expects: a value, or a whole reference answer; `extract` cuts both down to what counts."""

    value: Any
    extract: re.Pattern[str] | None = None

    @classmethod
    def of(cls, row: Row, extract: str | None) -> Want:
        """A row's own wishes before those of the set.

        Raises:
            BadExpectation: the pattern is none.
        """
        pattern = row.extract if row.extract is not None else extract
        try:
            compiled = re.compile(pattern) if pattern else None
        except re.error as error:
            raise BadExpectation(
                _("'{pattern}' is no regular expression: {reason}").format(pattern=pattern, reason=error),
                where=row.id,
                fix=_("test it with Python's re"),
            ) from error
        return cls(row.expected if row.expected is not None else row.reference, compiled)

    def texts(self) -> list[str]:
        """The answers that are right, as texts cut down to what counts."""
        values = self.value if isinstance(self.value, list) else [self.value]
        texts = [value if isinstance(value, str) else json.dumps(value) for value in values]
        return [self.cut(text) or text.strip() for text in texts]  # `expected` may be the part alone

    def cut(self, text: str) -> str:
        """The part of a text that counts: of the last match its last group that took part, or all of it."""
        if self.extract is None:
            return text.strip()
        matches = list(self.extract.finditer(text))
        if not matches:
            return ""
        groups = [group for group in matches[-1].groups() if group is not None]
        return (groups[-1] if groups else matches[-1][0]).strip()


def score(metric: str, answer: str, want: Want, where: str) -> float:
    """The score of an answer.

    Raises:
        BadExpectation: the row expects something that this metric cannot compare with.
    """
    if want.value is None and metric not in ("json",):
        raise BadExpectation(
            _("{metric} needs to know what is expected").format(metric=metric),
            where=where,
            fix=_("add `expected` to the row, or an answer to compare with"),
        )
    return float(_SCORES[metric](answer, want, where))


def _exact(answer: str, want: Want, where: str) -> float:
    said = want.cut(answer)
    return float(bool(said) and said in want.texts())


def _contains(answer: str, want: Want, where: str) -> float:
    folded = answer.casefold()
    return float(all(text.casefold() in folded for text in want.texts()))


def _regex(answer: str, want: Want, where: str) -> float:
    try:
        return float(all(re.search(str(pattern), answer) for pattern in _list(want.value)))
    except re.error as error:
        raise BadExpectation(
            _("what is expected is no regular expression: {reason}").format(reason=error),
            where=where,
            fix=_("test it with Python's re"),
        ) from error


def _numeric(answer: str, want: Want, where: str) -> float:
    expected = want.value
    if isinstance(expected, str):
        expected = text_scores.last_number(want.cut(expected))
    if isinstance(expected, bool) or not isinstance(expected, int | float):
        raise BadExpectation(
            _("numeric needs a number to compare with"), where=where, fix=_('write it as "expected": 42')
        )
    said = text_scores.last_number(want.cut(answer))
    return float(said is not None and math.isclose(said, expected, rel_tol=TOLERANCE, abs_tol=1e-9))


def _json(answer: str, want: Want, where: str) -> float:
    return float(_parsed(want.cut(answer)) is not _NOT_JSON)


def _schema(answer: str, want: Want, where: str) -> float:
    from jsonschema import SchemaError, ValidationError, validate

    if not isinstance(want.value, dict):
        raise BadExpectation(
            _("json_schema needs a schema"), where=where, fix=_('write it as "expected": {"type": "object", …}')
        )
    value = _parsed(want.cut(answer))
    if value is _NOT_JSON:
        return 0.0
    try:
        validate(value, want.value)
    except ValidationError:
        return 0.0
    except SchemaError as error:
        raise BadExpectation(
            _("the schema is none: {reason}").format(reason=error.message[:200]),
            where=where,
            fix=_("see json-schema.org for its form"),
        ) from error
    return 1.0


_NOT_JSON = object()


def _parsed(text: str) -> Any:
    """The JSON value of an answer, also where a model puts it between fences."""
    fenced = _FENCE.match(text)
    try:
        return json.loads(fenced[1] if fenced else text)
    except (ValueError, RecursionError):
        return _NOT_JSON


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _best(of: Callable[[str, str], float]) -> Callable[[str, Want, str], float]:
    """Several right answers: the nearest counts."""

    def scored(answer: str, want: Want, where: str) -> float:
        return max(of(want.cut(answer), text) for text in want.texts())

    return scored


def _chrf(answer: str, reference: str) -> float:
    from sacrebleu.metrics.chrf import CHRF

    return float(CHRF().sentence_score(answer, [reference]).score) / 100


_SCORES: dict[str, Callable[[str, Want, str], float]] = {
    "exact_match": _exact,
    "contains": _contains,
    "regex": _regex,
    "numeric": _numeric,
    "json": _json,
    "json_schema": _schema,
    "f1": _best(text_scores.f1),
    "rouge1": _best(lambda a, b: text_scores.rouge_n(a, b, 1)),
    "rouge2": _best(lambda a, b: text_scores.rouge_n(a, b, 2)),
    "rougeL": _best(text_scores.rouge_l),
    "chrf": _best(_chrf),
}


class Bleu:
    """BLEU of all answers together, by sacrebleu; from per-row counts, so that rows can be drawn again."""

    def __init__(self) -> None:
        from sacrebleu.metrics.bleu import BLEU

        self._bleu = BLEU()

    def counts(self, answers: list[str], wants: list[Want]) -> list[list[int]]:
        """What each row adds to the sums that BLEU is made of."""
        references = [want.texts() for want in wants]
        most = max((len(texts) for texts in references), default=1)
        columns = [[texts[min(at, len(texts) - 1)] for texts in references] for at in range(most)]
        said = [want.cut(answer) for answer, want in zip(answers, wants, strict=True)]
        return [list(map(int, row)) for row in self._bleu._extract_corpus_statistics(said, columns)]

    def value(self, sums: list[int]) -> float:
        """BLEU from 0 to 1."""
        return float(self._bleu._compute_score_from_stats(sums).score) / 100
