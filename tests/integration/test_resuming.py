"""Resume and drill with real supervisors and processes over the stand-in: what is said, changed, proved and refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.errors import UsageError
from engine.files import write_json
from engine.journal import read_all
from engine.run import control, drill, resuming
from engine.workspace import RunFolder
from tests.support.runs import StandIn, at_step, ended
from tui import cli

BATCH = {
    "per_device_train_batch_size": 4, "gradient_accumulation_steps": 4, "global_batch_size": 16, "sharding": "none",
    "method": "lora", "task": "sft",
}  # fmt: skip


@pytest.fixture
def stand_in(house: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    made = StandIn(house / "ft", monkeypatch)
    yield made
    made.clear()


def stopped(stand_in: StandIn, **plan: Any) -> RunFolder:
    """A run that stopped after some saves."""
    run = stand_in.start("a", steps=5000, save_every=5, recipe=BATCH, **plan)
    document = run.read_resolved()
    write_json(run.resolved, {**document, "origin": dict.fromkeys(document["recipe"], "recipe")})
    at_step(run, 12)
    control.send(run, "stop")
    assert ended(run)["state"] == "stopped"
    return run


def resume(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert cli.main(["resume", "a", "--json", *arguments]) == 0
    return json.loads(capsys.readouterr().out)["resume"]


def test_a_resume_says_what_it_is(stand_in: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    run = stopped(stand_in)
    step = run.read_state()["step"]
    stand_in.plan(steps=step + 5)
    said = resume(capsys)
    assert (said["step"], said["exact"], said["changed"], said["differs"]) == (step, True, False, [])
    assert said["samples_seen"] == 16 * step and said["steps_left"] == 5000 - step
    assert said["before"] == said["after"] and said["after"]["global_batch_size"] == 16
    assert ended(run)["state"] == "done"


def test_what_changes_is_shown_before_and_after_and_is_not_exact(
    stand_in: StandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    run = stopped(stand_in)
    stand_in.plan(steps=5000)
    assert cli.main(["resume", "a", "--step", "10", "per_device_train_batch_size=2"]) == 0
    shown = capsys.readouterr().out
    rows = [line.split() for line in shown.splitlines()]
    assert ["micro-batch", "4", "2"] in rows and ["accumulation", "4", "8"] in rows
    assert ["global", "batch", "16", "16"] in rows and ["samples", "seen", "160", "160"] in rows
    assert "not exact: micro-batches of 2 instead of 4" in shown
    recipe = run.read_resolved()["recipe"]
    assert (recipe["per_device_train_batch_size"], recipe["gradient_accumulation_steps"]) == (2, 8)
    resumed = [event for event in read_all(run.events) if event["event"] == "resumed"][-1]
    assert resumed["changes"] == {"per_device_train_batch_size": 2} and resumed["exact"] is False
    control.send(run, "stop_now")
    ended(run)


def test_what_cannot_change_is_refused_and_the_run_stays_as_it_was(stand_in: StandIn) -> None:
    run = stopped(stand_in)
    before = (run.state.read_bytes(), run.resolved.read_bytes())
    for change, kind in (
        ("learning_rate=1e-5", "fixed_key"),
        ("max_length=512", "fixed_key"),
        ("nonsense", "bad_override"),
        ("per_device_train_batch_size=half", "wrong_type"),
        ("gradient_accumulation_steps=3", "batch_not_divisible"),
        ("per_device_train_batch_size=3", "batch_not_divisible"),
    ):
        with pytest.raises(UsageError) as caught:
            resuming.resume(run, changes=[change])
        assert caught.value.kind == kind and caught.value.fix
        assert (run.state.read_bytes(), run.resolved.read_bytes()) == before


# The drill


def test_a_drill_meets_the_journal_and_leaves_the_run_alone(
    stand_in: StandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    run = stopped(stand_in)
    before = {path: path.stat().st_mtime_ns for path in run.checkpoints.rglob("*")}
    state, journal = run.state.read_bytes(), run.journal.read_bytes()
    stand_in.plan(steps=5000)
    assert cli.main(["resume", "a", "--drill", "--step", "5", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["passed"], found["exact"], found["tolerance"], found["scratch"]) == (True, True, 0.0, None)
    assert [row["step"] for row in found["compared"]][:3] == [6, 7, 8]
    assert all(row["equal"] for row in found["compared"])
    assert (run.state.read_bytes(), run.journal.read_bytes()) == (state, journal)
    assert {path: path.stat().st_mtime_ns for path in run.checkpoints.rglob("*")} == before
    assert not list((stand_in.workspace.cache_dir / "drills").iterdir())
    assert [e["passed"] for e in read_all(run.events) if e["event"] == "drill"] == [True]
    assert cli.main(["status", "a", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["drill"]["step"] == 5


def test_a_drill_that_differs_fails(stand_in: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    run = stopped(stand_in)
    stand_in.plan(steps=5000, losses={"7": 0.5})
    assert cli.main(["resume", "a", "--drill", "--step", "5"]) == 4
    shown = capsys.readouterr().out
    assert "differs" in shown and "at step 7 the loss is 0.5" in shown
    last = drill.last(run)
    assert last is not None and last["passed"] is False and Path(last["scratch"]).is_dir()
    stand_in.plan(steps=5000)
    assert drill.drill(run, step=5).passed
    assert not Path(last["scratch"]).exists(), "the next drill clears it away"


def test_a_drill_whose_ranks_crash_says_why(stand_in: StandIn) -> None:
    run = stopped(stand_in)
    attempt = str(json.loads((run.checkpoints / "checkpoint-5" / "MANIFEST.json").read_text())["attempt"] + 1)
    stand_in.plan(steps=5000, crash={attempt: 7})
    found = drill.drill(run, step=5)
    assert not found.passed and found.reason == "RuntimeError: the stand-in fell over"


def test_a_drill_from_the_newest_checkpoint_has_nothing_to_compare_but_the_level(stand_in: StandIn) -> None:
    run = stopped(stand_in)
    stand_in.plan(steps=5000)
    found = drill.drill(run, steps=3)
    assert found.passed and found.compared == [] and found.steps >= 3
    stand_in.plan(steps=5000, losses={str(found.step + 1): 50.0})
    found = drill.drill(run, steps=3)
    assert not found.passed and "begins at 50" in str(found.reason)


def test_a_drill_on_other_settings_is_held_to_a_tolerance(stand_in: StandIn) -> None:
    run = stopped(stand_in)
    stand_in.plan(steps=5000, losses={"6": 3.0 / 6 * 1.01})
    found = drill.drill(run, step=5, changes=["per_device_train_batch_size=2"])
    assert found.passed and not found.exact and found.tolerance == drill.TOLERANCE
    assert found.compared[0]["passed"] and not found.compared[0]["equal"]
    assert run.read_resolved()["recipe"]["per_device_train_batch_size"] == 4


def test_packages_that_are_not_those_of_the_checkpoint_are_named(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = stopped(stand_in)
    newest = run.read_state()["last_checkpoint"]
    manifest = run.path / newest["path"] / "MANIFEST.json"
    document = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**document, "versions": {"torch": "2.0.0", "numpy": "1.0"}}))
    now = {"torch": "2.13.0", "numpy": "1.0"}
    monkeypatch.setattr("engine.hardware.versions.packages", lambda _names, _python: {"packages": now})
    stand_in.plan(steps=5000)
    said = resuming.resume(run).resumed
    assert said is not None and (said["exact"], said["differs"]) == (False, ["torch 2.13.0 instead of 2.0.0"])
    control.send(run, "stop_now")
    ended(run)
