"""From what the models said to numbers: each row's scores, each metric's value, interval and difference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.evaluate import metrics, statistics
from engine.evaluate.metrics import Want
from engine.evaluate.rows import Row
from engine.evaluate.statistics import Corpus, Mean, Measure, TokenMean, TrainerLoss
from engine.findings import Finding
from engine.recipe import gates
from engine.text import _

ROLES = ("base", "tuned")
LOSS_MARGIN = 0.02
SHARE_MARGIN = 0.03


@dataclass
class Metric:
    """One line of the result."""

    name: str
    set: str
    base: statistics.Estimate
    tuned: statistics.Estimate
    delta: statistics.Delta
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name, "set": self.set, "rows": self.tuned.n, "base": self.base.to_json(),
            "tuned": self.tuned.to_json(), "delta": self.delta.to_json(), "note": self.note,
        }  # fmt: skip


@dataclass
class Scores:
    """All metrics, and what each row got, by metric and role."""

    metrics: list[Metric] = field(default_factory=list)
    rows: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def get(self, name: str) -> Metric | None:
        """A metric by its name."""
        return next((metric for metric in self.metrics if metric.name == name), None)

    def add(self, name: str, of: str, measures: dict[str, Measure], note: str = "") -> Metric:
        """Compare the two models by a metric."""
        lower = name in gates.LOWER_IS_BETTER
        margin = LOSS_MARGIN if name.endswith("loss") else SHARE_MARGIN
        if name == "perplexity":
            margin = LOSS_MARGIN * measures["base"].value
        base, tuned = measures["base"], measures["tuned"]
        delta = statistics.compare(base, tuned, lower_is_better=lower, margin=margin)
        metric = Metric(name, of, statistics.estimate(base), statistics.estimate(tuned), delta, note)
        self.metrics.append(metric)
        return metric

    def keep(self, row: Row, metric: str, role: str, score: float) -> None:
        """Remember what a row got."""
        self.rows.setdefault(row.id, {}).setdefault(metric, {})[role] = score


def losses(scores: Scores, results: dict[str, Any], batch: int) -> None:
    """Held-out loss as the trainer computes it, perplexity and token accuracy."""
    held = {role: _by_row(results["roles"][role]["held_out"]) for role in ROLES}
    counted = [row for row in held["base"] if held["base"][row]["tokens"]]
    if not counted:
        return
    columns = {
        role: {key: [held[role][row][key] for row in held[role]] for key in ("nll", "tokens", "correct")}
        for role in ROLES
    }
    scores.add("eval_loss", "held_out", {r: TrainerLoss(columns[r]["nll"], columns[r]["tokens"], batch) for r in ROLES})
    scores.add(
        "perplexity",
        "held_out",
        {r: TokenMean(columns[r]["nll"], columns[r]["tokens"], exponential=True) for r in ROLES},
    )
    scores.add("token_accuracy", "held_out", {r: TokenMean(columns[r]["correct"], columns[r]["tokens"]) for r in ROLES})


def _by_row(parts: list[dict[str, Any]]) -> dict[int, dict[str, float]]:
    """The parts of packed rows added up."""
    found: dict[int, dict[str, float]] = {}
    for part in parts:
        row = found.setdefault(part["row"], {"nll": 0.0, "tokens": 0, "correct": 0})
        for key in row:
            row[key] += part[key]
    return found


def reference_loss(scores: Scores, name: str, of: str, rows: Sequence[Row], results: dict[str, Any]) -> None:
    """The loss of the expected answers, for rows that have one."""
    kept = [row for row in rows if all(_part(results, role, row, "loss") for role in ROLES)]
    if kept:
        parts = {role: [_part(results, role, row, "loss") or {} for row in kept] for role in ROLES}
        scores.add(
            name, of, {r: TokenMean([p["nll"] for p in parts[r]], [p["tokens"] for p in parts[r]]) for r in ROLES}
        )


def _part(results: dict[str, Any], role: str, row: Row, kind: str) -> dict[str, Any] | None:
    found: dict[str, Any] | None = results["roles"][role]["rows"].get(row.id, {}).get(kind)
    return found


def answers(results: dict[str, Any], rows: Sequence[Row]) -> list[Row]:
    """The rows that both models have answered."""
    return [row for row in rows if all(_part(results, role, row, "answer") for role in ROLES)]


def said(results: dict[str, Any], role: str, row: Row) -> str:
    """A model's answer."""
    part = _part(results, role, row, "answer")
    return str(part["text"]) if part else ""


def task(
    scores: Scores, of: str, rows: Sequence[Row], results: dict[str, Any], wanted: Sequence[str], extract: str | None
) -> None:
    """Score answers by the set's metrics, rows with metrics of their own by those.

    A row that a metric cannot be asked about is an error among the findings; the others keep their scores.
    """
    by_metric: dict[str, list[Row]] = {}
    for row in answers(results, rows):
        for name in row.metrics or wanted:
            if not gates.FUNCTION.match(name):
                by_metric.setdefault(name, []).append(row)
    bad: dict[str, list[tuple[Row, metrics.BadExpectation]]] = {}
    for name, asked in by_metric.items():
        good: list[Row] = []
        if name == "bleu":
            _bleu(scores, of, asked, results, extract)
            continue
        for row in asked:
            try:
                want = Want.of(row, extract)
                for role in ROLES:
                    scores.keep(row, name, role, metrics.score(name, said(results, role, row), want, row.id))
                good.append(row)
            except metrics.BadExpectation as error:
                bad.setdefault(name, []).append((row, error))
        if good:
            measures: dict[str, Measure] = {
                role: Mean([scores.rows[row.id][name][role] for row in good], share=name in metrics.BINARY)
                for role in ROLES
            }
            scores.add(name, of, measures)
    for name, problems in bad.items():
        first = problems[0][1]
        detail = _("{metric}: {what}; {n} rows are not scored by it").format(
            metric=name, what=first.what, n=len(problems)
        )
        lines = [row.line for row, _error in problems][:20]
        scores.findings.append(Finding("bad_row", "error", detail, first.fix or "", lines, len(problems)))


def _bleu(scores: Scores, of: str, rows: list[Row], results: dict[str, Any], extract: str | None) -> None:
    bleu = metrics.Bleu()
    wants = [Want.of(row, extract) for row in rows]
    scores.add(
        "bleu",
        of,
        {r: Corpus(bleu.counts([said(results, r, row) for row in rows], wants), bleu.value) for r in ROLES},
    )


def regression(scores: Scores, rows: Sequence[Row], results: dict[str, Any]) -> list[dict[str, Any]]:
    """Score the general prompts; the share that each model solves, by category and language."""
    asked = answers(results, rows)
    if not asked:
        return []
    passed: dict[str, list[float]] = {role: [] for role in ROLES}
    for row in asked:
        want = Want.of(row, None)
        for role in ROLES:
            worth = min(metrics.score(name, said(results, role, row), want, row.id) for name in row.metrics)
            scores.keep(row, "regression", role, worth)
            passed[role].append(worth)
    metric = scores.add("regression", "regression", {r: Mean(passed[r], share=True) for r in ROLES})
    if not sum(passed["base"]):
        metric.note = _("the base solves none of them, so nothing could be forgotten: see regression_loss")
    reference_loss(scores, "regression_loss", "regression", asked, results)
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in asked:
        groups.setdefault(("category", row.category), []).append(row)
        groups.setdefault(("language", row.language), []).append(row)
    return [
        {
            "by": by, "name": name, "rows": len(members),
            **{role: sum(scores.rows[row.id]["regression"][role] for row in members) for role in ROLES},
        }
        for (by, name), members in sorted(groups.items())
    ]  # fmt: skip
