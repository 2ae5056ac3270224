"""Runs and their plans: kept in the folder, refused, forced, measured at the end, corrected the next time."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.errors import DoesNotFit
from engine.plan import measured
from engine.run import launch, status
from engine.workspace import Workspace
from tests.support.runs import StandIn, ended, wait_for
from tui.cli import main

LARGE = {
    "model_type": "llama", "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
    "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
}  # fmt: skip


@pytest.fixture
def stand_in(house: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    made = StandIn(house / "ft", monkeypatch)
    made.plan(steps=30, step_time=0.05)
    yield made
    made.clear()


@pytest.fixture
def recipe(house: Path) -> Path:
    path = house / "mine.yaml"
    path.write_text(
        "model_name_or_path: builtin:tiny\ndataset_path: rows.jsonl\nmax_steps: 30\nmax_length: 256\ndevice: cpu\n"
    )
    rows = [{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}] * 20
    (house / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def model(house: Path, config: dict[str, object]) -> Path:
    folder = house / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def nothing_made(workspace: Workspace) -> bool:
    return not workspace.runs_dir.exists() or os.listdir(workspace.runs_dir) == []


def test_a_run_keeps_its_plan_and_leaves_what_it_measured(stand_in: StandIn, recipe: Path) -> None:
    run = launch.start(stand_in.workspace, recipe).run
    plan = status.status(run)["plan"]
    assert plan["format"] == 1 and plan["result"]["verdict"] == "fits"
    assert plan["request"]["model"] == "builtin:tiny" and plan["request"]["sharding"] == "none"
    assert plan["result"]["corrected_by"] is None
    ended(run)
    wait_for(lambda: measured.read(stand_in.workspace.root).lines, what="the record of the run")
    (line,) = measured.read(stand_in.workspace.root).lines
    assert line["run"] == run.name and line["steps"] == 30
    assert line["measured"]["tokens_per_s"] == 100.0 and line["measured"]["memory"] > 0
    # The stand-in holds a fraction of what training holds. With a figure that can be, the next plan follows it.
    path = stand_in.workspace.root / measured.NAME
    path.write_bytes(path.read_bytes().replace(b'"memory":%d' % line["measured"]["memory"], b'"memory":1700000000'))
    second = launch.start(stand_in.workspace, recipe).run
    again = status.status(second)["plan"]["result"]
    assert again["corrected_by"]["run"] == run.name
    assert again["per_gpu"]["device_gb"] == 1.7 and again["time"]["basis"] == "measured"
    ended(second)


def test_a_plan_that_does_not_fit_makes_nothing_unless_forced(stand_in: StandIn, recipe: Path, house: Path) -> None:
    large = [f"model_name_or_path={model(house, LARGE)}"]
    with pytest.raises(DoesNotFit) as caught:
        launch.start(stand_in.workspace, recipe, large)
    assert (caught.value.exit_code, caught.value.kind) == (3, "does_not_fit")
    assert "GB" in caught.value.what and "--force" in str(caught.value.fix)
    assert nothing_made(stand_in.workspace)
    started = launch.start(stand_in.workspace, recipe, large, force=True)
    assert any(finding.kind == "does_not_fit" for finding in started.findings)
    assert status.status(started.run)["plan"]["result"]["verdict"] == "no"
    ended(started.run)


def test_a_model_that_nobody_can_count_is_trained_all_the_same(stand_in: StandIn, recipe: Path, house: Path) -> None:
    unknown = model(house, {"model_type": "of-next-year", "hidden_size": 64})
    started = launch.start(stand_in.workspace, recipe, [f"model_name_or_path={unknown}"])
    assert [finding.level for finding in started.findings if finding.kind == "no_plan"] == ["note"]
    assert status.status(started.run)["plan"] is None
    ended(started.run)


def test_plan_only(stand_in: StandIn, recipe: Path, house: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    def said(*words: str) -> tuple[int, bytes]:
        capfdbinary.readouterr()
        return main(words), capfdbinary.readouterr().out

    code, out = said("--json", "run", str(recipe), "--plan-only")
    assert code == 0 and json.loads(out)["verdict"] == "fits"
    code, out = said("run", str(recipe), "--plan-only")
    assert code == 0 and b"GB of host memory" in out
    large = f"model_name_or_path={model(house, LARGE)}"
    code, out = said("--json", "run", str(recipe), large, "--plan-only")
    assert code == 3 and json.loads(out)["verdict"] == "no"
    code, out = said("--json", "run", str(recipe), large)
    assert code == 3
    error = json.loads(out)["error"]
    assert error["kind"] == "does_not_fit" and error["plan"]["per_gpu"]["needs_gb"] > 200
    assert nothing_made(stand_in.workspace)
