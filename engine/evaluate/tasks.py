"""Tasks of lm-eval, where it is installed: what is asked of the child, and its answers as a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from engine.errors import FtuiError
from engine.evaluate import child
from engine.evaluate.report.words import role
from engine.evaluate.subject import Subject
from engine.findings import Finding
from engine.text import _, number

MODULE = "engine.evaluate.harness"
BATCH = 8


def run(
    subject: Subject, tasks: Sequence[str], limit: int | None, findings: list[Finding], say: Callable[[str], None]
) -> dict[str, Any] | None:
    """Run them on both models; what goes wrong is a finding, and the rest of the evaluation stands."""
    include = sorted({str(Path(task).absolute().parent) for task in tasks if task.endswith((".yaml", ".yml"))})
    names = [Path(task).stem if task.endswith((".yaml", ".yml")) else task for task in tasks]
    job = {
        "roles": subject.roles(),
        "recipe": subject.recipe,
        "run": str(subject.run.path if subject.run is not None else subject.folder),
        "tokenizer": str(subject.tokenizer),
        "tasks": names,
        "include": include or None,
        "limit": limit,
        "batch": BATCH,
    }
    found: dict[str, list[dict[str, Any]]] = {}
    try:
        for event in child.run(job, MODULE):
            if event["event"] == "phase":
                say(_("lm-eval: the {role} model").format(role=role(event["role"])))
            elif event["event"] == "harness":
                found[event["role"]] = event["rows"]
    except FtuiError as error:
        findings.append(Finding("harness", "error", error.what, error.fix or ""))
    if "tuned" not in found:
        return None
    base = {(row["task"], row["metric"]): row for row in found.get("base", [])}
    rows = []
    for row in found["tuned"]:
        before = base.get((row["task"], row["metric"]), {"value": None, "stderr": None})
        rows.append(
            {
                "task": row["task"], "metric": row["metric"], "base": _figure(before), "tuned": _figure(row),
                "values": {"base": before["value"], "tuned": row["value"]},
            }
        )  # fmt: skip
    return {"tasks": names, "limit": limit, "rows": rows}


def _figure(row: dict[str, Any]) -> str:
    """A value with the harness's own standard error."""
    if row["value"] is None:
        return "-"
    return number(row["value"], 4) + (f" ± {number(row['stderr'], 4)}" if row["stderr"] is not None else "")
