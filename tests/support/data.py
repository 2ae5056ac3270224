"""Checking small data sets in tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from engine.data.check import Report, check
from engine.findings import Finding


def talk(question: str, answer: str, **columns: Any) -> dict[str, Any]:
    """A row of one question and one answer."""
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return {"messages": messages, **columns}


def write_rows(path: Path, rows: list[Any]) -> Path:
    """A file of JSON lines; a row given as text is written as it is."""
    path.write_text(
        "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows), encoding="utf-8"
    )
    return path


def check_rows(folder: Path, rows: list[Any], **options: Any) -> Report:
    """The report on rows in a file of their own."""
    return check([str(write_rows(folder / "train.jsonl", rows))], **options)


def lines(report: Report, kind: str, subtype: str | None = None) -> list[int]:
    """The lines of all findings of a kind."""
    return sorted(line for finding in of_kind(report, kind, subtype) for line in finding.lines)


def of_kind(report: Report, kind: str, subtype: str | None = None) -> list[Finding]:
    """All findings of a kind."""
    return [f for f in report.findings if f.kind == kind and subtype in (None, f.subtype)]


def problems(report: Report) -> set[str]:
    """The kinds of all errors and warnings."""
    return {finding.kind for finding in report.findings if finding.level != "note"}
