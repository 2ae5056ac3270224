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


def test_what_takes_long_before_the_first_step_is_said(run, capsys):
    events = JournalWriter(run.events)
    events.append("launched", attempt=1, command=[], gpus=[])
    journal = JournalWriter(run.journal, attempt=1)
    for doing in ("libraries", "builtin", "data", "model", "something new"):
        journal.append("phase", phase="load", doing=doing)
    journal.append("left_out", rows=2, first=["rows.jsonl:7: not strict JSON"])
    end(run, "done", exit_code=0)
    follow(run, Output())
    lines = [line.partition("  ")[2] for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "starting the training program",
        "loading libraries",
        "making the built-in model (once)",
        "reading and tokenizing the data",
        "loading the model",
        "2 rows cannot be trained on and are left out; the first: rows.jsonl:7: not strict JSON",
    ]


def test_earlier_attempts_are_marked_and_can_be_left_out(run, capsys):
    journal = JournalWriter(run.journal, attempt=1)
    journal.append("log", step=10, loss=2.5, time=100.0)
    journal.append("log", step=10, loss=2.4, time=200.0, attempt=2)
    JournalWriter(run.events).append("resumed", attempt=2, resumed_from="/r/checkpoint-5", skipped=[], time=150.0)
    end(run, "done", exit_code=0)
    follow(run, Output())
    lines = capsys.readouterr().out.splitlines()
    assert "2.5" in lines[0] and lines[1] == "attempt 2" and "checkpoint-5" in lines[2] and "2.4" in lines[3]
    follow(run, Output(), since=120.0)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and "checkpoint-5" in lines[0] and "2.4" in lines[1]
    follow(run, Output(as_json=True), stream=True, since=120.0)
    assert [json.loads(line)["time"] for line in capsys.readouterr().out.splitlines()] == [150.0, 200.0]


@pytest.mark.parametrize(
    ("saved", "said"), [(15, "5 steps after checkpoint 15 are lost: `ftui resume demo-1`"), (None, "nothing was saved")]
)
def test_a_stop_without_a_save_says_what_is_lost_and_how_to_go_on(run, capsys, saved, said):
    end(
        run,
        "stopped",
        exit_code=1,
        last_checkpoint=saved and {"step": saved, "path": f"checkpoints/checkpoint-{saved}"},
    )
    assert follow(run, Output()) == 1
    assert said in capsys.readouterr().err


def test_what_failed_before_its_first_step_did_not_fail_twice() -> None:
    event = {"event": "given_up", "reason": "same_step"}
    assert describe({**event, "step": None}) == "it failed before training began: not tried again"
    assert describe({**event, "step": 7}) == "it failed at step 7 twice: not tried again"
