"""The report of an evaluation: JSON for programs, Markdown, and one HTML page that needs nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

from engine.files import write_atomic, write_json

if TYPE_CHECKING:
    from engine.evaluate.run import Evaluation


def write(evaluation: Evaluation) -> None:
    """Write report.json, rows.jsonl, report.md and report.html; what people voted stays and is counted in."""
    from engine.evaluate import reading
    from engine.evaluate.report import markdown, page

    folder, document = evaluation.folder, evaluation.document
    content = b"".join(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in evaluation.rows)
    write_atomic(folder / "rows.jsonl", content)
    document["reading"] = reading.summary(folder)
    write_atomic(folder / "report.md", markdown.text(document).encode())
    write_atomic(folder / "report.html", page.text(document, evaluation.rows).encode())
    write_json(folder / "report.json", document)  # last: who finds it finds the others
