"""`ftui run`: what is refused before anything is made, and what a start leaves when it fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.checkpoint import manifest
from engine.errors import DoesNotFit, GateError, UsageError
from engine.files import write_json
from engine.run import launch, resuming, status
from engine.run.statefile import fresh
from engine.workspace import RunFolder, Workspace
from tests.support.runs import StandIn, at_step, ended


@pytest.fixture
def stand_in(house: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    made = StandIn(house / "ft", monkeypatch)
    made.plan(steps=5)
    yield made
    made.clear()


@pytest.fixture
def recipe(house: Path) -> Path:
    path = house / "mine.yaml"
    path.write_text("model_name_or_path: builtin:tiny\ndataset_path: rows.jsonl\nmax_steps: 5\ndevice: cpu\n")
    rows = [{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}] * 20
    (house / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def nothing_made(workspace: Workspace) -> bool:
    return not workspace.runs_dir.exists() or os.listdir(workspace.runs_dir) == []


def test_a_start_makes_everything_and_returns_at_once(stand_in: StandIn, recipe: Path) -> None:
    started = launch.start(stand_in.workspace, recipe, ["learning_rate=2e-4"])
    run = started.run
    assert run.name == "mine-1"
    assert "#   learning_rate=2e-4" in run.recipe.read_text()
    document = run.read_resolved()
    assert document["format"] == 1 and document["run"] == "mine-1"
    assert document["recipe"]["learning_rate"] == pytest.approx(2e-4)
    assert document["recipe"]["dataset_path"] == str(recipe.with_name("rows.jsonl")), "relative to the recipe file"
    assert document["origin"]["learning_rate"] == "override"
    assert run.read_state()["supervisor"]["pid"] == started.pid
    assert ended(run)["state"] == "done"
    assert launch.start(stand_in.workspace, recipe).run.name == "mine-2"


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("lerning_rate=1", "learning_rate"),
        ("dataset_path=missing.jsonl", "dataset_path"),
        ("model_name_or_path=/nowhere", "model_name_or_path"),
        ("max_steps=soon", "max_steps"),
    ],
)
def test_a_recipe_with_errors_makes_nothing(stand_in: StandIn, recipe: Path, override: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        launch.start(stand_in.workspace, recipe, [override])
    error = caught.value
    assert error.exit_code == 2 and error.fix and error.where
    assert isinstance(error, launch.RecipeError)
    assert any(said in json.dumps(finding.to_json()) for finding in error.findings)
    assert nothing_made(stand_in.workspace)


def test_broken_data_stops_a_run_unless_forced(stand_in: StandIn, recipe: Path) -> None:
    rows = recipe.with_name("rows.jsonl")
    rows.write_text("this is no JSON\n" + rows.read_text())
    with pytest.raises(launch.RecipeError) as caught:
        launch.start(stand_in.workspace, recipe)
    assert caught.value.exit_code == 2
    assert nothing_made(stand_in.workspace)
    started = launch.start(stand_in.workspace, recipe, force=True)
    assert [(f.level, f.kind, f.lines) for f in started.findings if f.key] == [("warning", "bad_json", [1])]
    assert started.run.read_resolved()["skip_bad_rows"] is True, "the ranks are told to leave the row out"
    ended(started.run)


def test_gpus_that_are_not_here(stand_in: StandIn, recipe: Path) -> None:
    recipe.write_text(recipe.read_text().replace("device: cpu\n", ""))
    with pytest.raises(DoesNotFit) as caught:
        launch.start(stand_in.workspace, recipe, ["num_gpus=2"])
    assert caught.value.exit_code == 3
    assert nothing_made(stand_in.workspace)


def test_a_name_that_is_taken_and_a_recipe_that_is_not_there(stand_in: StandIn, recipe: Path) -> None:
    ended(launch.start(stand_in.workspace, recipe, name="a").run)
    with pytest.raises(UsageError, match="already"):
        launch.start(stand_in.workspace, recipe, name="a")
    with pytest.raises(UsageError):
        launch.start(stand_in.workspace, "no-such-recipe")
    assert os.listdir(stand_in.workspace.runs_dir) == ["a"]


def test_a_supervisor_that_cannot_come_up_leaves_a_failed_run_and_not_a_live_one(
    stand_in: StandIn, recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch.sys, "executable", "/bin/false")
    with pytest.raises(Exception, match="did not start"):
        launch.start(stand_in.workspace, recipe, name="a")
    monkeypatch.undo()
    row = status.summary(stand_in.workspace.find("a"))
    assert row["state"] == "failed" and "did not start" in row["error"]["message"]


def test_a_start_that_fails_on_a_full_disk_leaves_nothing_that_looks_alive(
    stand_in: StandIn, recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_given: object, **_named: object) -> None:
        monkeypatch.setattr(launch, "write_json", full)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(launch, "daemonize", full)
    with pytest.raises(OSError, match="space"):
        launch.start(stand_in.workspace, recipe, name="a")
    assert status.summary(stand_in.workspace.find("a"))["state"] == "lost"  # though we, who made it, are alive


def test_an_override_of_several_lines_stays_a_comment(stand_in: StandIn, recipe: Path) -> None:
    run = launch.start(stand_in.workspace, recipe, ["x-note=one\nlearning_rate: 7"]).run
    assert "\nlearning_rate" not in run.recipe.read_text()
    ended(run)


def test_two_starts_at_once_are_two_runs(stand_in: StandIn, recipe: Path) -> None:
    stand_in.plan(steps=5000)
    command = [sys.executable, "-m", "tui", "--json", "run", str(recipe)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [json.loads(process.communicate(timeout=60)[0]) for process in both]
    assert {answer["run"] for answer in said} == {"mine-1", "mine-2"}
    for answer in said:
        at_step(stand_in.workspace.find(answer["run"]), 1)


def test_without_a_python_to_train_with_nothing_is_made(
    stand_in: StandIn, recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = ended_run(stand_in)
    monkeypatch.setenv("FTUI_PYTHON", "/nope/python")
    for begin in (lambda: launch.start(stand_in.workspace, recipe), lambda: resuming.resume(run)):
        with pytest.raises(UsageError, match="/nope/python") as caught:
            begin()
        assert caught.value.where == "FTUI_PYTHON"
    assert os.listdir(stand_in.workspace.runs_dir) == ["a"]


def test_a_step_without_a_checkpoint_names_those_that_are_there(stand_in: StandIn) -> None:
    run = ended_run(stand_in)
    with pytest.raises(GateError) as caught:
        resuming.resume(run, step=12)
    assert caught.value.exit_code == 4
    assert "there are: 10, 20" in str(caught.value.fix)


def test_a_taken_name_offers_no_resume_of_a_run_that_is_done(stand_in: StandIn, recipe: Path) -> None:
    ended(launch.start(stand_in.workspace, recipe, name="a").run)
    with pytest.raises(UsageError, match="already") as caught:
        launch.start(stand_in.workspace, recipe, name="a")
    assert "resume" not in str(caught.value.fix) and "ftui status a" in str(caught.value.fix)


def ended_run(stand_in: StandIn) -> RunFolder:
    """A stopped run with checkpoints of the steps 10 and 20."""
    run = stand_in.folder("a")
    for step in (10, 20):
        staging = run.checkpoints / f".staging-{step}"
        staging.mkdir()
        for name in ("optimizer.pt", "scheduler.pt", "trainer_state.json", "rng_state.pth"):
            (staging / name).write_text("x")
        manifest.seal(staging, run.checkpoints / f"checkpoint-{step}", {"step": step, "attempt": 1})
    write_json(run.state, fresh("a", state="stopped", step=20))
    return run
