"""Runs beside each other: what differs in their settings, what came of them, and their losses over the steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.evaluate import gate, metrics, statistics
from engine.evaluate.scoring import LOSS_MARGIN, SHARE_MARGIN
from engine.evaluate.statistics import Mean
from engine.journal import read_all
from engine.recipe import gates
from engine.run import status
from engine.workspace import RunFolder

# Where a run's files lie says nothing about its training.
PLACES = ("output_dir", "run_name", "hub_model_id", "logging_dir")
POINTS = 400  # of a curve at most


def compare(runs: Sequence[RunFolder]) -> dict[str, Any]:
    """The document of `ftui compare --json`."""
    journals = [read_all(run.journal) for run in runs]
    rows = [_row(run, journal) for run, journal in zip(runs, journals, strict=True)]
    return {
        "runs": rows,
        "settings": _settings(runs),
        "curves": [_curve(run, journal) for run, journal in zip(runs, journals, strict=True)],
        "paired": _paired(runs[0], runs[1]) if len(runs) == 2 else [],
    }


def _row(run: RunFolder, journal: list[dict[str, Any]]) -> dict[str, Any]:
    summary = status.summary(run)
    logs = [event for event in journal if event.get("event") == "log"]
    evals = [event for event in journal if event.get("event") == "eval" and _number(event.get("eval_loss"))]
    start: dict[str, Any] = next((event for event in reversed(journal) if event.get("event") == "start"), {})
    best = min(evals, key=lambda event: event["eval_loss"], default=None)
    rates = [event["tokens_per_s"] for event in logs if _number(event.get("tokens_per_s"))]
    report = gate.last(run, None)
    return {
        "name": run.name,
        "path": str(run.path),
        "state": summary["state"],
        "step": summary["step"],
        "max_steps": summary["max_steps"],
        "loss": summary["loss"],
        "eval_loss": summary["eval_loss"],
        "best_eval_loss": best["eval_loss"] if best else None,
        "best_eval_step": best.get("step") if best else None,
        "tokens_seen": logs[-1].get("tokens_seen") if logs else None,
        "tokens_per_s": sorted(rates)[len(rates) // 2] if rates else None,
        "trainable_parameters": start.get("trainable_parameters"),
        "seconds": sum(e["step_time_s"] * _steps(logs, i) for i, e in enumerate(logs) if _number(e.get("step_time_s"))),
        "evaluated_step": report.get("step") if report else None,
        "evaluation": report.get("tuned") if report else None,
        "delta": report.get("delta") if report else None,
        "forgetting": report.get("forgetting") if report else None,
        "gate": report.get("passed") if report else None,
    }


def _steps(logs: list[dict[str, Any]], at: int) -> int:
    """How many steps a line of the journal speaks of; after a resume its count begins again."""
    step = int(logs[at].get("step") or 0)
    before = int(logs[at - 1].get("step") or 0) if at else 0
    return step - before if step > before else 1


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _settings(runs: Sequence[RunFolder]) -> list[dict[str, Any]]:
    """The keys whose values are not the same in all runs."""
    recipes = [run.read_resolved().get("recipe") or {} for run in runs]
    keys = sorted({key for recipe in recipes for key in recipe} - set(PLACES))
    found = []
    for key in keys:
        values = [recipe.get(key) for recipe in recipes]
        if any(value != values[0] for value in values[1:]):
            found.append({"key": key, "values": values})
    return found


def _curve(run: RunFolder, journal: list[dict[str, Any]]) -> dict[str, Any]:
    """Training and evaluation losses; where steps were repeated after a resume, the newest count."""
    series: dict[str, dict[int, float]] = {"log": {}, "eval": {}}
    for event in journal:
        kind, step = event.get("event"), event.get("step")
        value = event.get("loss" if kind == "log" else "eval_loss")
        if kind in series and isinstance(step, int) and _number(value):
            for later in [known for known in reversed(series[kind]) if known >= step]:
                del series[kind][later]
            series[kind][step] = float(value)  # type: ignore[arg-type]
    steps = list(series["log"])
    kept = steps[:: max(1, len(steps) // POINTS)]
    return {
        "run": run.name,
        "steps": kept,
        "loss": [series["log"][step] for step in kept],
        "eval_steps": list(series["eval"]),
        "eval_loss": list(series["eval"].values()),
    }


def _paired(one: RunFolder, other: RunFolder) -> list[dict[str, Any]]:
    """The second run less the first on the rows that both were asked with the same tokens."""
    columns = [_scores(run) for run in (one, other)]
    shared = [key for key in columns[0] if key in columns[1]]
    found = []
    for name in dict.fromkeys(metric for key in shared for metric in columns[0][key]):
        pairs = [
            (columns[0][key][name], columns[1][key][name])
            for key in shared
            if name in columns[0][key] and name in columns[1][key]
        ]
        if not pairs:
            continue
        share = name in (*metrics.BINARY, "regression")
        delta = statistics.compare(
            Mean([a for a, _b in pairs], share=share),
            Mean([b for _a, b in pairs], share=share),
            lower_is_better=name in gates.LOWER_IS_BETTER,
            margin=LOSS_MARGIN if name.endswith("loss") else SHARE_MARGIN,
        )
        found.append({"metric": name, "rows": len(pairs), **delta.to_json()})
    return found


def _scores(run: RunFolder) -> dict[tuple[str, str], dict[str, float]]:
    report = gate.last(run, None)
    if report is None:
        return {}
    rows = read_all(gate.folder_of(run) / str(report.get("label")) / "rows.jsonl")
    return {
        (str(row["id"]), str(row.get("input_sha256"))): {
            name: part["tuned"] for name, part in (row.get("scores") or {}).items() if "tuned" in part
        }
        for row in rows
        if row.get("id")
    }
