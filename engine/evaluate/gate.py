"""The gates' verdict, and what it was the last time for whoever wants to act on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine.errors import GateError, UsageError
from engine.evaluate.scoring import Scores
from engine.files import read_json
from engine.recipe import gates
from engine.recipe.gates import BadGate, Gate
from engine.text import _
from engine.workspace import RunFolder

DERIVED = "forgetting"


def read(texts: list[str], metrics: list[str]) -> list[Gate]:
    """The gates of the recipe or the command line.

    Raises:
        UsageError: one is none.
    """
    found = []
    for text in texts:
        try:
            found.append(gates.parse(text, gates.functions(metrics)))
        except BadGate as error:
            raise UsageError(
                _("the gate '{text}': {what}").format(text=text[:80], what=error.what), fix=error.fix, kind="bad_gate"
            ) from error
    return found


def judge(gate: Gate, scores: Scores) -> dict[str, Any]:
    """Whether a gate passes, and whether the rows are enough to be sure of it."""
    value, base, low, high = _figures(gate, scores)
    limit = gate.limit(base)
    result: dict[str, Any] = {
        "expr": gate.text, "metric": gate.metric, "value": value, "base": base, "limit": limit,
        "passed": gate.passed(value, base), "sure": None, "low": low, "high": high,
    }  # fmt: skip
    if value is None:
        result["reason"] = _("{metric} was not measured").format(metric=gate.metric)
    elif low is not None and high is not None and limit is not None:
        # Against the base the difference is what varies; its interval moves the limit to zero.
        edge = limit - base if gate.relation is not None and base is not None else limit
        result["sure"] = not low <= edge <= high
    return result


def _figures(gate: Gate, scores: Scores) -> tuple[float | None, float | None, float | None, float | None]:
    if gate.metric == DERIVED:
        metric = scores.get("regression")
        if metric is None:
            return None, None, None, None
        delta = metric.delta
        return 0.0 - delta.value, metric.base.value, -delta.high, -delta.low
    metric = scores.get(gate.metric)
    if metric is None:
        return None, None, None, None
    if gate.relation is not None:
        return metric.tuned.value, metric.base.value, metric.delta.low, metric.delta.high
    return metric.tuned.value, metric.base.value, metric.tuned.low, metric.tuned.high


def folder_of(run: RunFolder) -> Path:
    """Where a run's evaluations lie."""
    return run.path / "evaluation"


def word(run: RunFolder, step: int | None) -> dict[str, Any]:
    """What the gates say of a step of a run to whoever wants to use it.

    Returns:
        `state`: "none" (the recipe has no gates), "missing" (never evaluated), "passed" or "failed"; and the gates
        that failed.
    """
    wanted = (run.read_resolved().get("recipe") or {}).get("gates")
    report = last(run, step)
    if report is None or report.get("passed") is None:
        return {"state": "missing" if wanted else "none", "failed": []}
    gates = report.get("gates")
    gates = [gate for gate in gates if isinstance(gate, dict)] if isinstance(gates, list) else []
    failed = [str(gate.get("expr")) for gate in gates if gate.get("passed") is not True]
    return {"state": "passed" if report["passed"] is True else "failed", "failed": failed}


def require(run: RunFolder, step: int | None) -> str | None:
    """Refuse what did not pass its gates; a warning for people where nobody asked yet.

    Raises:
        GateError: a gate said no to this step.
    """
    told = word(run, step)
    if told["state"] == "failed":
        raise GateError(
            _("the gate said no to this model: {gates}").format(gates=", ".join(told["failed"])),
            where=str(folder_of(run)),
            fix=_("look at the report, or go on with --ignore-gate"),
        )
    if told["state"] == "missing":
        return _("its gates were not asked yet: `ftui eval {run}` does").format(run=run.name)
    return None


def last(run: RunFolder, step: int | None) -> dict[str, Any] | None:
    """The newest report about a step of a run; None where it was never evaluated."""
    reports = []
    for path in folder_of(run).glob("*/report.json"):
        document = read_json(path)
        if isinstance(document, dict) and (step is None or document.get("step") == step):
            reports.append(document)
    return max(reports, key=_time, default=None)


def _time(report: dict[str, Any]) -> float:
    time = report.get("time")
    return time if isinstance(time, int | float) else 0.0
