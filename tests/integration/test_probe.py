"""`ftui plan --probe`: real steps for a plan, what is kept of them, and what is left behind: nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from engine.errors import FtuiError, UsageError
from engine.plan import measured
from engine.process import marked
from engine.run import probe
from engine.workspace import Workspace
from tests.support.runs import PROGRAM, wait_for
from tui import cli

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def workspace(house: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A workspace whose training Python runs the stand-in for the ranks, and itself for all else."""
    made = Workspace(house / "ft").prepare()
    script = house / "python"
    stand_in = f'case "$*" in *torch.distributed*) exec {sys.executable} {PROGRAM};; esac'
    script.write_text(f'#!/bin/sh\n{stand_in}\nexec {sys.executable} "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("FTUI_PYTHON", str(script))
    return made


@pytest.fixture
def recipe(house: Path) -> Path:
    path = house / "mine.yaml"
    path.write_text(
        "model_name_or_path: builtin:tiny\ndataset_path: rows.jsonl\nmax_steps: 30\nmax_length: 256\ndevice: cpu\n"
        "output_dir: out\nsave_steps: 1\n"
    )
    rows = [{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}] * 20
    (house / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def ranks(monkeypatch: pytest.MonkeyPatch, **plan: Any) -> None:
    monkeypatch.setenv("FTUI_TEST_RANK", json.dumps({"steps": 10_000, **plan}))


def probed(workspace: Workspace, recipe: Path, *overrides: str, steps: int = 3) -> tuple[probe.Probed, list[str]]:
    said: list[str] = []
    return probe.run(workspace, recipe, overrides, steps, said.append), said


def folders(workspace: Workspace) -> list[str]:
    return sorted(path.name for path in (workspace.cache_dir / "probe").glob("run-*"))


def test_steps_are_measured_and_nothing_but_that_stays(
    workspace: Workspace, recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks(monkeypatch, child=True)
    found, said = probed(workspace, recipe)
    assert found.to_json()["tokens_per_s"] == 100.0 and not found.cached
    assert said[-1] == "probe: step 3 of 3"
    assert folders(workspace) == [] and not workspace.folders() and not (recipe.parent / "out").exists()
    (line,) = measured.read(workspace.root).lines
    assert line["probe"] is True and line["request"]["model"] == "builtin:tiny"
    assert not marked("FTUI_RUN", str(workspace.cache_dir / "probe" / f"run-{os.getpid()}"))


def test_the_same_question_is_answered_from_memory(
    workspace: Workspace, recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks(monkeypatch)
    probed(workspace, recipe)
    monkeypatch.delenv("FTUI_TEST_RANK")  # ranks could not even start
    again, said = probed(workspace, recipe)
    assert again.cached and said == ["probe: looking at the recipe and its data"]
    for change in (["max_length=128"], []):  # another step; then other data
        if not change:
            (recipe.parent / "rows.jsonl").write_text((recipe.parent / "rows.jsonl").read_text() * 2)
        with pytest.raises(FtuiError):
            probed(workspace, recipe, *change)
    with pytest.raises(FtuiError):
        probed(workspace, recipe, steps=4)


def test_steps_that_fail_are_one_error_and_their_log_stays(
    workspace: Workspace, recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks(monkeypatch, crash={"1": 2})
    with pytest.raises(FtuiError) as caught:
        probed(workspace, recipe)
    assert "the stand-in fell over" in caught.value.what
    assert "the stand-in fell over" in Path(str(caught.value.where)).read_text()
    assert folders(workspace) == [] and measured.read(workspace.root).lines == []
    ranks(monkeypatch, crash={"1": 2}, how="out_of_memory")
    with pytest.raises(FtuiError) as caught:
        probed(workspace, recipe)
    assert caught.value.kind == "out_of_memory"


def test_a_recipe_for_several_machines(workspace: Workspace, recipe: Path) -> None:
    with pytest.raises(FtuiError):
        probed(workspace, recipe, "num_machines=2", "sharding=ddp")


@pytest.mark.parametrize("steps", [0, -3, 10**6])
def test_a_number_of_steps_that_makes_no_sense(workspace: Workspace, recipe: Path, steps: int) -> None:
    with pytest.raises(UsageError) as caught:
        probed(workspace, recipe, steps=steps)
    assert caught.value.where == "--probe"


@pytest.mark.parametrize(
    "words",
    [
        ("--model", "Llama-3.1-8B", "--probe", "3"),
        ("demo", "--probe", "3", "--server", "8xH100"),
        ("demo", "--probe", "3", "--gpu", "H100"),
        ("demo", "--probe", "3", "--all"),
        ("--from", "x.jsonl", "--probe", "3"),
        ("demo", "--probe", "0"),
        ("demo", "--probe", "3", "max_length=-1"),
    ],
)
def test_what_cannot_be_probed_says_so(house: Path, capfd: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    assert cli.main(["plan", *words]) == 2
    assert "error:" in capfd.readouterr().err


def test_a_recipe_that_would_take_the_memory_of_the_host_is_not_probed(workspace: Workspace, house: Path) -> None:
    path = house / "large.yaml"
    path.write_text(
        "model_name_or_path: builtin:tiny\ndataset_path: builtin:support\ndevice: cpu\nmax_length: 512\n"
        "per_device_train_batch_size: 65536\nglobal_batch_size: 65536\n"
    )
    with pytest.raises(FtuiError) as caught:
        probed(workspace, path)
    assert caught.value.exit_code == 3 and "GB" in caught.value.what


def test_a_killed_probe_leaves_nothing_that_the_next_one_does_not_clear(
    workspace: Workspace, recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks(monkeypatch, step_time=0.5)
    command = [sys.executable, "-m", "tui", "plan", str(recipe), "--probe", "100", "--home", str(workspace.root)]
    child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    place = workspace.cache_dir / "probe" / f"run-{child.pid}"
    wait_for(lambda: (place / "journal.jsonl").exists() and marked("FTUI_RUN", str(place)), what="its ranks")
    child.send_signal(signal.SIGINT)
    assert child.wait(20) == 130
    assert not place.exists() and not marked("FTUI_RUN", str(place))
    child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    place = workspace.cache_dir / "probe" / f"run-{child.pid}"
    wait_for(lambda: (place / "journal.jsonl").exists() and marked("FTUI_RUN", str(place)), what="its ranks")
    child.kill()
    child.wait()
    wait_for(lambda: not marked("FTUI_RUN", str(place)), what="the end of its ranks")  # told by the kernel
    assert place.exists()
    ranks(monkeypatch)
    probed(workspace, recipe)
    assert folders(workspace) == []


@pytest.mark.heavy
@pytest.mark.timeout(300)
def test_real_steps_on_this_machine_replace_the_estimate(house: Path) -> None:
    command = [sys.executable, "-m", "tui", "--json", "plan", "demo", "device=cpu", "--probe", "2"]
    started = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert plan["time"]["basis"] == "probe" and plan["time"]["hours"] > 0
    assert plan["probe"]["steps"] == 2 and plan["probe"]["memory_gb"] > 0.3
    assert plan["probe"]["seconds"] <= time.monotonic() - started
    assert plan["corrected_by"]["probe"] and plan["per_gpu"]["device_gb"] > 0
    assert "probe: step 2 of 2" in done.stderr
    plain = subprocess.run([*command[:-2]], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert json.loads(plain.stdout)["time"]["basis"] == "probe", "later plans of the kind know it too"
