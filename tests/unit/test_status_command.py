"""`ftui status`, `ftui stop` and `ftui keeper` for people."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine import keeper
from engine.files import write_json
from engine.process import ProcessId
from engine.run.statefile import fresh
from engine.workspace import RunFolder, Workspace
from tui import cli

SAVED = {"step": 40, "path": "checkpoints/checkpoint-40", "time": 1000.0}


def shown(house: Path, capsys: pytest.CaptureFixture[str], **fields: Any) -> dict[str, str]:
    """The labeled lines of `ftui status` on a run with such a state.json."""
    run = RunFolder(Workspace(house / "ft").prepare().runs_dir / "one")
    run.path.mkdir(exist_ok=True)
    base = {"step": 45, "max_steps": 100, "device": "cpu", "unsaved_s": 61.0, "started": 1000.0}
    write_json(run.state, fresh("one", **{**base, **fields}))
    assert cli.main(["status", "one"]) == 0
    lines = capsys.readouterr().out.splitlines()
    return {"": lines[0], **{line[:11].strip(): line[11:].strip() for line in lines[1:]}}


def test_a_live_run(house: Path, capsys: pytest.CaptureFixture[str]) -> None:
    me = ProcessId.current().to_json()
    seen = shown(house, capsys, state="running", phase="evaluate", supervisor=me, eta_s=90.0, last_checkpoint=SAVED)
    assert seen[""] == "one  running (evaluate)"
    assert seen["device"] == "CPU" and seen["elapsed"]
    assert seen["ETA"].startswith("1 min 30, at ")
    assert seen["checkpoint"] == "step 40: checkpoints/checkpoint-40"
    assert seen["safety"] == "saved at step 40 · 5 steps (1 min 01) at risk"
    assert "next" not in seen
    seen = shown(house, capsys, state="running", supervisor=me)
    assert seen["safety"] == "nothing saved yet · 45 steps (1 min 01) at risk"


def test_a_run_that_is_done_names_its_result(house: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen = shown(house, capsys, state="done", step=100, ended=1090.0, device="cuda", world_size=2)
    assert seen["result"] == f"{house}/ft/runs/one/final"
    assert (seen["elapsed"], seen["device"]) == ("1 min 30", "2 GPUs")
    assert not {"safety", "next", "lost"} & set(seen)


def test_a_run_that_stopped_says_what_is_lost_and_how_to_go_on(house: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen = shown(house, capsys, state="stopped", ended=1090.0, last_checkpoint=SAVED)
    assert seen["lost"] == "5 steps were not saved (1 min 01)"
    assert seen["next"] == "`ftui resume one` goes on from step 40"
    seen = shown(house, capsys, state="failed", ended=1090.0, error={"message": "no memory", "fix": "less"})
    assert (seen["error"], seen["fix"]) == ("no memory", "less")
    assert "ftui run" in seen["next"] and "resume" not in seen["next"]


@pytest.mark.parametrize("command", ["save", "stop"])
@pytest.mark.parametrize(
    ("state", "saved", "fix"),
    [("done", SAVED, "final"), ("stopped", SAVED, "ftui resume one"), ("failed", None, "ftui status one")],
)
def test_asking_a_run_that_has_ended_is_wrong_usage(
    house: Path, capsys: pytest.CaptureFixture[str], command: str, state: str, saved: Any, fix: str
) -> None:
    shown(house, capsys, state=state, last_checkpoint=saved)
    assert cli.main([command, "one"]) == 2
    assert fix in capsys.readouterr().err


def test_the_keeper_says_what_was_done(house: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keeper.ensure(Workspace(house / "ft").prepare())
    assert cli.main(["keeper", "stop"]) == 0
    assert "is stopped; runs go on" in capsys.readouterr().out
    assert cli.main(["keeper", "stop"]) == 0
    assert "no keeper running" in capsys.readouterr().out


def test_a_lost_run_is_offered_a_resume_only_where_there_is_something_to_go_on_from(
    house: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from engine.checkpoint.manifest import seal
    from tests.support.checkpoints import write_checkpoint

    seen = shown(house, capsys, state="running")  # no supervisor: lost
    assert seen[""] == "one  lost" and "ftui run" in seen["fix"] and "resume" not in seen["fix"]
    assert cli.main(["runs", "--json"]) == 0
    assert "ftui resume" not in capsys.readouterr().out
    assert cli.main(["watch", "one"]) == 1
    said = capsys.readouterr()
    assert "ftui resume" not in said.out + said.err
    run = RunFolder(house / "ft" / "runs" / "one")
    run.checkpoints.mkdir()
    staging = write_checkpoint(run.checkpoints / ".staging-45", 45)  # its ranks saved when their supervisor died
    seal(staging, run.checkpoints / "checkpoint-45", {"step": 45, "attempt": 1})
    seen = shown(house, capsys, state="running")
    assert seen["fix"] == "`ftui resume one` goes on from step 45"


def test_an_old_start_of_the_training_is_not_shown_as_the_newest(
    house: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunFolder(Workspace(house / "ft").prepare().runs_dir / "one")
    run.path.mkdir(exist_ok=True)
    run.events.write_text('{"event": "launched", "time": 1000.0, "attempt": 1, "command": []}\n')
    me = ProcessId.current().to_json()
    for state, there in (("starting", True), ("running", False), ("stopped", False)):
        write_json(run.state, fresh("one", state=state, supervisor=me, started=1000.0))
        assert cli.main(["status", "one"]) == 0
        assert ("starting the training program" in capsys.readouterr().out) is there, state
