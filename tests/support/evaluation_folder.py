"""Run folders with an evaluation's files in them, written without a model."""

from __future__ import annotations

from typing import Any

import orjson

from engine.evaluate import gate
from engine.files import write_json
from engine.workspace import RunFolder, Workspace

HOSTILE = '<script>alert("x")</script> & | pipe\n\x1b[31mred'


def run_folder(workspace: Workspace, name: str, **recipe: Any) -> RunFolder:
    """A run that is done."""
    run = RunFolder(workspace.runs_dir / name)
    run.data.mkdir(parents=True)
    write_json(run.resolved, {"format": 1, "run": name, "recipe": {"learning_rate": 1e-4, **recipe}, "origin": {}})
    write_json(run.state, {"format": 1, "run": name, "state": "done", "step": 10, "max_steps": 10, "loss": 1.0})
    return run


def lines(rows: list[dict[str, Any]]) -> bytes:
    """JSON lines."""
    return b"".join(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in rows)


def evaluated(run: RunFolder, *, right: int = 8, of: int = 12, passed: bool | None = True) -> list[dict[str, Any]]:
    """Give a run an evaluation of step 10: the tuned model is right in so many rows, the base in none."""
    folder = gate.folder_of(run) / "step-10"
    folder.mkdir(parents=True)
    rows = [
        {
            "id": f"held_out:{n}", "set": "held_out", "line": n, "category": "", "language": "",
            "prompt": f"question {n} {HOSTILE if n == 1 else ''}", "messages": [], "reference": "expected words",
            "expected": None, "problem": None, "input_sha256": f"hash-{n}", "base": f"some base words {n}",
            "tuned": f"some tuned words {n}", "ended": {"base": True, "tuned": True},
            "scores": {"exact_match": {"base": 0.0, "tuned": float(n <= right)}},
        }
        for n in range(1, of + 1)
    ]  # fmt: skip
    (folder / "rows.jsonl").write_bytes(lines(rows))
    gates = [{"expr": "exact_match >= 0.5", "passed": passed}] if passed is not None else []
    report = {"format": 1, "time": 1.0, "run": run.name, "step": 10, "label": "step-10", "passed": passed,
              "gates": gates, "tuned": {"exact_match": right / of}, "delta": {}, "forgetting": 0.0}  # fmt: skip
    write_json(folder / "report.json", report)
    return rows
