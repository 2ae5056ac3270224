"""The gates' grammar: `eval_loss < base - 0.02`, `exact_match >= 80 %`, `forgetting <= 3 %`.

    gate   = metric comparison value
    value  = number | "base" [ ("+" | "-" | "*") number ]
    number = digits [ "%" ]                        (`3 %` is 0.03)

A small parser of its own: nothing of a gate is ever run as code.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from engine.findings import Finding
from engine.recipe.model import Recipe
from engine.text import _

LOSSES = ("eval_loss", "perplexity", "token_accuracy")
SCORES = (
    "exact_match", "contains", "regex", "numeric", "json", "json_schema", "f1", "rouge1", "rouge2", "rougeL", "bleu",
    "chrf",
)  # fmt: skip
OTHERS = ("regression", "forgetting", "regression_loss", "answer_loss", "judge_win_rate", "judge_score")
# Where less is better: `base` stands for another thing than a floor.
LOWER_IS_BETTER = ("eval_loss", "perplexity", "forgetting", "regression_loss", "answer_loss")
FUNCTION = re.compile(r"(?P<file>.+\.py):(?P<name>[A-Za-z_]\w*)\Z")
_OPERATORS = {"<": "__lt__", "<=": "__le__", ">": "__gt__", ">=": "__ge__"}
_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+)|(?P<name>[A-Za-z_]\w*)|(?P<sign><=|>=|[^\s\w]))"
)
MAX_LENGTH = 200


class BadGate(ValueError):
    """A gate that is none; `args` hold what is wrong and how to write it."""

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(what)
        self.what = what
        self.fix = fix


@dataclass(frozen=True)
class Gate:
    """One condition: a metric compared with a number, or with what the base got and a number."""

    text: str
    metric: str
    comparison: str
    relation: str | None  # "+", "-", "*" between base and the number; "" for base alone; None without base
    number: float

    def limit(self, base: float | None) -> float | None:
        """The number to compare with; None where the base's is needed and missing."""
        if self.relation is None:
            return self.number
        if base is None:
            return None
        if self.relation == "*":
            return base * self.number
        return base + (-self.number if self.relation == "-" else self.number)

    def passed(self, value: float | None, base: float | None) -> bool:
        """Whether the condition holds; what was not measured does not pass."""
        limit = self.limit(base)
        if value is None or limit is None or not (math.isfinite(value) and math.isfinite(limit)):
            return False
        return bool(getattr(float(value), _OPERATORS[self.comparison])(limit))


def parse(text: str, more: tuple[str, ...] = ()) -> Gate:
    """Read a gate.

    Args:
        text: as the user wrote it.
        more: names of metrics besides the known ones (the user's own functions).

    Raises:
        BadGate: it does not follow the grammar, or names no metric.
    """
    shape = _("write it as: metric < number, or metric < base - number (with <, <=, > or >=)")
    if len(text) > MAX_LENGTH:
        raise BadGate(_("a gate of {n} characters").format(n=len(text)), shape)
    tokens = _tokens(text, shape)
    metric, comparison = _next(tokens, "name", shape), _next(tokens, "sign", shape)
    known = (*LOSSES, *SCORES, *OTHERS, *more)
    if metric not in known:
        near = difflib.get_close_matches(metric, known, n=1)
        fix = (
            _("did you mean '{name}'?").format(name=near[0])
            if near
            else _("metrics: {names}").format(names=", ".join(known))
        )
        raise BadGate(_("there is no metric '{name}'").format(name=metric), fix)
    if comparison not in _OPERATORS:
        what = _("'{sign}' does not compare: a measured number is never exactly another one").format(sign=comparison)
        raise BadGate(what, shape)
    relation: str | None = None
    if tokens and tokens[0] == ("name", "base"):
        tokens.pop(0)
        relation = ""
        if tokens:
            relation = _next(tokens, "sign", shape)
            if relation not in ("+", "-", "*"):
                raise BadGate(_("'{sign}' after base").format(sign=relation), shape)
    number = 0.0
    if relation != "":
        sign = -1.0 if relation is None and tokens and tokens[0] == ("sign", "-") else 1.0
        if sign < 0:
            tokens.pop(0)
        number = sign * float(_next(tokens, "number", shape))
        if tokens and tokens[0] == ("sign", "%"):
            tokens.pop(0)
            number /= 100
    if tokens:
        raise BadGate(_("'{rest}' is one word too many").format(rest=tokens[0][1]), shape)
    if not math.isfinite(number):
        raise BadGate(_("the number is not finite"), shape)
    if metric == "forgetting" and relation is not None:
        raise BadGate(
            _("forgetting is a difference from the base already"), _("compare it with a number: forgetting <= 3 %")
        )
    return Gate(" ".join(text.split()), metric, comparison, relation, number)


def _tokens(text: str, shape: str) -> list[tuple[str, str]]:
    tokens, at = [], 0
    text = text.strip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise BadGate(_("'{rest}' cannot be read").format(rest=text[at : at + 20]), shape)
        kind = str(match.lastgroup)
        tokens.append((kind, match[kind]))
        at = match.end()
    return tokens


def _next(tokens: list[tuple[str, str]], kind: str, shape: str) -> str:
    if not tokens:
        raise BadGate(_("it ends too early"), shape)
    found, text = tokens.pop(0)
    if found != kind:
        words = {"name": _("a metric's name"), "sign": _("a comparison"), "number": _("a number")}
        raise BadGate(_("'{text}' stands where {wanted} is expected").format(text=text, wanted=words[kind]), shape)
    return text


def functions(metrics: Any) -> tuple[str, ...]:
    """The names of the user's own functions among a recipe's metrics (`file.py:function`)."""
    found = [FUNCTION.match(item) for item in metrics or () if isinstance(item, str)]
    return tuple(match["name"] for match in found if match)


def check(recipe: Recipe) -> Iterator[Finding]:
    """What is wrong with the recipe's gates and metrics, each with its line."""
    metrics = recipe.get("eval_metrics") or []
    for number, text in enumerate(metrics):
        if text not in SCORES and not FUNCTION.match(text):
            near = difflib.get_close_matches(text, SCORES, n=1)
            names = ", ".join((*SCORES, "file.py:function"))
            fix = _("did you mean '{name}'?").format(name=near[0]) if near else _("use: {names}").format(names=names)
            yield _finding(recipe, "eval_metrics", number, _("there is no metric '{name}'").format(name=text[:60]), fix)
    for number, text in enumerate(recipe.get("gates") or []):
        try:
            gate = parse(text, functions(metrics))
        except BadGate as error:
            detail = _("the gate '{text}': {what}").format(text=text[:60], what=error.what)
            yield _finding(recipe, "gates", number, detail, error.fix)
            continue
        if gate.metric in SCORES and metrics and gate.metric not in metrics:
            detail = _("the gate '{text}' needs {metric}, and eval_metrics leaves it out")
            fix = _("add {metric} to eval_metrics").format(metric=gate.metric)
            yield _finding(recipe, "gates", number, detail.format(text=text[:60], metric=gate.metric), fix)
    if pattern := recipe.get("eval_extract"):
        try:
            re.compile(pattern)
        except re.error as error:
            detail = _("eval_extract is no regular expression: {reason}").format(reason=error)
            yield recipe.finding("bad_value", "error", detail, _("test it with Python's re"), ("eval_extract",))


def _finding(recipe: Recipe, key: str, number: int, detail: str, fix: str) -> Finding:
    finding = recipe.finding("bad_gate" if key == "gates" else "bad_value", "error", detail, fix, (key,))
    lines = recipe.item_lines.get(key, [])
    if number < len(lines):
        finding.lines = [lines[number]]
    return finding
