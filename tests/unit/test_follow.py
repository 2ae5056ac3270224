"""Following a run without the app: what is printed and the exit code."""

from __future__ import annotations

import json

import pytest

from engine.files import write_json
from engine.journal import JournalWriter
from engine.workspace import RunFolder
from tui.follow import describe, follow
from tui.output import Output


@pytest.fixture
def run(tmp_path):
    folder = RunFolder(tmp_path / "runs" / "demo-1")
    folder.path.mkdir(parents=True)
    return folder


def end(run: RunFolder, state: str, **fields) -> None:
    write_json(run.state, {"format": 1, "run": run.name, "state": state, "step": 20, "max_steps": 40, **fields})


@pytest.mark.parametrize(
    ("state", "fields", "code"),
    [
        ("done", {"exit_code": 0}, 0),
        ("stopped", {"exit_code": 75}, 75),
        ("stopped", {"exit_code": 1}, 1),
        ("failed", {"exit_code": 1, "error": {"message": "no memory left", "fix": "halve the batch"}}, 1),
        ("failed", {"exit_code": 2, "error": {"message": "row 3 is broken"}}, 2),
        ("running", {"supervisor": {"pid": 2**22 - 1, "start": 1, "boot": "gone"}}, 1),
    ],
)
def test_exit_code_is_the_runs(run, state, fields, code, capsys):
    end(run, state, **fields)
    assert follow(run, Output()) == code
    shown = capsys.readouterr()
    if error := fields.get("error"):
        assert error["message"] in shown.err
    if state == "running":
        assert "lost" in shown.err


def test_lines_for_people_and_for_machines(run, capsys):
    journal = JournalWriter(run.journal, attempt=1)
    journal.append("log", step=10, loss=2.5, learning_rate=2e-4, tokens_per_s=5000.0)
    journal.append("eval", step=10, eval_loss=2.25)
    journal.append("save", step=10, seconds=1.2)
    journal.close()
    end(run, "done", exit_code=0)
    follow(run, Output())
    people = capsys.readouterr().out
    assert "step 10  loss 2.5000  lr 2.00e-04  5,000 tok/s" in people
    assert "eval loss 2.2500" in people and "checkpoint 10 sealed in 1 s" in people
    follow(run, Output(as_json=True), stream=True)
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["event"] for row in rows] == ["log", "eval", "save"]


@pytest.mark.parametrize("event", [{}, {"event": "log"}, {"event": "log", "loss": None}, {"event": "nothing known"}])
def test_odd_events_are_passed_over(event):
    assert describe(event) is None


WRONG = ["x", [1], {"a": 1}, True, None, -1, 1e300]


@pytest.mark.parametrize("name", ["start", "log", "eval", "save", "save_failed", "restart", "gpu", 5, None])
def test_a_damaged_line_does_not_end_the_watching(name: object) -> None:
    keys = ("time", "step", "loss", "eval_loss", "learning_rate", "tokens_per_s", "seconds", "max_steps", "world_size")
    for wrong in WRONG:
        for key in keys:
            describe({"event": name, "time": 1.0, "loss": 1.0, "eval_loss": 1.0, key: wrong})
