"""The report of an evaluation: JSON for programs, Markdown, and one HTML page that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from engine.files import read_json, write_atomic, write_json
from engine.journal import read_all

if TYPE_CHECKING:
    from engine.evaluate.run import Evaluation


def write(evaluation: Evaluation) -> None:
    """Write report.json, rows.jsonl, report.md and report.html; what people voted stays and is counted in."""
    content = b"".join(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in evaluation.rows)
    write_atomic(evaluation.folder / "rows.jsonl", content)
    _write(evaluation.folder, evaluation.document, evaluation.rows)


def refresh(folder: Path) -> None:
    """Write the report again with what was voted since; nothing where there is none."""
    document = read_json(folder / "report.json")
    if isinstance(document, dict) and document.get("metrics") is not None:
        _write(folder, document, read_all(folder / "rows.jsonl"))


def _write(folder: Path, document: dict[str, Any], rows: Sequence[dict[str, Any]]) -> None:
    from engine.evaluate import reading
    from engine.evaluate.report import markdown, page

    document["reading"] = reading.summary(folder)
    write_atomic(folder / "report.md", markdown.text(document).encode())
    write_atomic(folder / "report.html", page.text(document, rows).encode())
    write_json(folder / "report.json", document)  # last: who finds it finds the others
