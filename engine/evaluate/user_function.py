"""Scores by the user's own Python function: `file.py:function(answer, row) -> number from 0 to 1`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.errors import FtuiError, UsageError
from engine.evaluate import child, scoring
from engine.evaluate.rows import Row
from engine.evaluate.scoring import ROLES, Scores
from engine.evaluate.statistics import Mean, Measure
from engine.files import user_path
from engine.findings import Finding
from engine.recipe import gates
from engine.text import _

MODULE = "engine.evaluate.function"


def locate(name: str, folder: Path) -> tuple[Path, str]:
    """File and function of a metric's name; a relative file starts at `folder`.

    Raises:
        UsageError: there is no such file.
    """
    match = gates.FUNCTION.match(name)
    assert match is not None
    path = folder / user_path(match["file"])
    if not path.is_file():
        raise UsageError(
            _("there is no {path} for the metric {name}").format(path=path, name=match["name"]),
            where=name,
            fix=_("check the path; in a recipe it is relative to the recipe file"),
            kind="no_metric_file",
        )
    return path.resolve(), match["name"]


def score(scores: Scores, of: str, rows: Sequence[Row], results: dict[str, Any], name: str, folder: Path) -> None:
    """Score all answered rows; where the function raises, the row is left out and a finding says so."""
    path, function = locate(name, folder)
    asked = {row.id: row for row in scoring.answers(results, rows)}
    work = [
        {
            "id": row.id, "role": role, "answer": scoring.said(results, role, row),
            "row": {
                "prompt": row.prompt, "messages": row.messages, "reference": row.reference, "expected": row.expected,
            },
        }
        for row in asked.values()
        for role in ROLES
    ]  # fmt: skip
    raised: dict[str, dict[str, Any]] = {}
    job = {"file": str(path), "name": function, "rows": work}
    try:
        for event in child.run(job, MODULE):
            if event["event"] == "score":
                scores.keep(asked[event["id"]], function, event["role"], event["score"])
            else:
                raised.setdefault(event["id"], event)
    except FtuiError as error:
        where = error.where or str(path)
        detail = _("the metric {name} failed: {reason}").format(name=function, reason=error.what)
        scores.findings.append(Finding("metric_failed", "error", detail, _("correct {file}").format(file=where)))
    if raised:
        first = next(iter(raised.values()))
        detail = _("the metric {name} raised {error} for {n} rows, which it does not score").format(
            name=function, error=first["message"], n=len(raised)
        )
        fix = _("correct it at {where}").format(where=first["where"])
        lines = [asked[key].line for key in raised][:20]
        scores.findings.append(Finding("metric_raised", "error", detail, fix, lines, len(raised)))
    good = [row for row in asked.values() if len(scores.rows.get(row.id, {}).get(function, {})) == len(ROLES)]
    if good:
        columns = {role: [scores.rows[row.id][function][role] for row in good] for role in ROLES}
        share = all(value in (0.0, 1.0) for column in columns.values() for value in column)
        measures: dict[str, Measure] = {role: Mean(columns[role], share=share) for role in ROLES}
        scores.add(function, of, measures)
