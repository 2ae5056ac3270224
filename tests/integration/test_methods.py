"""Methods and shardings for real: two gloo ranks on the built-in model against one process.

The ordinary suite runs one of each kind; `python -m tests.support.matrix` and the soak test run all.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.checkpoint import ledger
from engine.journal import read_all
from engine.train import byhand, launcher
from tests.support import matrix
from tests.support.train import Runs, losses

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(900)]
EXACT = 1e-5


def close(a: Any, b: Any) -> None:
    """Losses and gradient norms of two runs, step by step."""
    assert a.keys() == b.keys() and len(a) == matrix.STEPS
    for step in a:
        assert a[step][0] == pytest.approx(b[step][0], abs=EXACT), "loss"
        assert a[step][1] == pytest.approx(b[step][1], rel=10 * EXACT), "gradient norm"
        assert a[step][3] == b[step][3], "tokens"


def done(runs: Runs, cell: matrix.Cell, name: str | None = None) -> dict[int, tuple[Any, ...]]:
    """Losses of a cell that must have gone well."""
    outcome = matrix.run(runs, cell, name=name)
    assert outcome.code == 0, f"{outcome.error}\n{outcome.started.log()[-3000:]}"
    (entry,) = ledger.list(outcome.started.run.checkpoints)
    assert entry.resumable and (outcome.started.run.final / "tokenizer.json").is_file()
    return losses(outcome.started.run)


def test_fsdp2_with_accumulation_is_one_large_batch(train_runs: Runs, tmp_path: Path) -> None:
    """Two sharded ranks that accumulate learn what one process learns from the whole batch: tokens weigh alike."""
    whole = matrix.cell("SFT", "full", "none", tmp_path, per_device_train_batch_size=matrix.BATCH)
    assert whole.recipe["gradient_accumulation_steps"] == 1
    sharded = matrix.cell("SFT", "full", "fsdp2", tmp_path)
    assert sharded.recipe["gradient_accumulation_steps"] == 2
    close(done(train_runs, sharded), done(train_runs, whole))


def test_preferences_started_by_hand(train_runs: Runs, tmp_path: Path) -> None:
    """Two ranks learn preferences, started as `launch/run.sh` of the run folder says."""
    run = train_runs.make("pairs", **matrix.cell("DPO, precomputed", "LoRA", "ddp", tmp_path).recipe)
    byhand.write(run, *launcher.command(run, python=sys.executable, nproc=2), ranks=2)
    finished = subprocess.run(["sh", run.path / "launch" / "run.sh"], cwd="/", timeout=400)
    assert finished.returncode == 0, (run.logs / "rank-0.log").read_text()[-3000:]
    found = losses(run)
    assert len(found) == matrix.STEPS and (run.final / "adapter_model.safetensors").is_file()
    assert found[1][0] == pytest.approx(0.693147, abs=1e-4), "the model begins at its reference: log 2"


def test_a_loss_that_is_no_number(train_runs: Runs, tmp_path: Path) -> None:
    cell = matrix.cell("SFT", "LoRA", "ddp", tmp_path, save_steps=2, max_steps=6)
    run = train_runs.make("nan", **cell.recipe)
    env = {**matrix.environment("ddp", tmp_path), "FTUI_ENGINE_PLUGIN": "tests.support.bad_loss"}
    started = train_runs.start(run, nproc=2, env=env)
    assert started.finish() != 0
    told = [json.loads((run.logs / f"rank-{rank}.error.json").read_text()) for rank in (0, 1)]
    assert {error["kind"] for error in told} == {"loss_not_finite"}
    assert "nan at step 3 (micro-batch 2 of 2, rank 1)" in told[0]["message"] and told[0]["fix"]
    assert [entry.step for entry in ledger.list(run.checkpoints) if entry.resumable] == [2]
    assert not list(run.checkpoints.glob(".staging*")) and not run.final.exists()


def test_two_processes_on_the_cpu_from_the_command_line(house: Path, builtin_cache: Path) -> None:
    """The whole product with two ranks: run, supervise, save, end; and what is written to start it by hand."""
    values = [
        "device=cpu",
        "num_gpus=2",
        "max_steps=4",
        "save_steps=2",
        "eval_strategy=no",
        "per_device_train_batch_size=4",
    ]
    command = [sys.executable, "-m", "tui", "run", "demo", *values, "--follow", "--json"]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert finished.returncode == 0, finished.stderr[-2000:]
    (folder,) = (house / "ft" / "runs").iterdir()
    start = next(event for event in read_all(folder / "journal.jsonl") if event["event"] == "start")
    assert (start["world_size"], start["gradient_accumulation_steps"], start["global_batch_size"]) == (2, 2, 16)
    assert json.loads((folder / "resolved.json").read_text())["recipe"]["sharding"] == "ddp"
    script = (folder / "launch" / "run.sh").read_text()
    assert (
        "--nproc-per-node 2" in script
        and "distributed_type: MULTI_CPU" in (folder / "launch/accelerate.yaml").read_text()
    )


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_the_matrix(train_runs: Runs, tmp_path: Path) -> None:
    """Every method with every sharding: the losses of each task are those of one process."""
    reference: dict[tuple[str, str], Any] = {}
    for cell in matrix.everything(tmp_path):
        found = done(train_runs, cell)
        first = reference.setdefault((cell.task, cell.method), found)
        if matrix.draws_anew(cell):
            continue
        for step in found:
            assert found[step][0] == pytest.approx(first[step][0], abs=EXACT), (cell.name, step)


OPTIMIZERS = (
    "adamw_torch", "adamw_torch_fused", "adafactor", "adamw_8bit", "paged_adamw_8bit", "paged_adamw_32bit", "muon",
)  # fmt: skip


@pytest.mark.soak
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("method", ["full", "LoRA"])
def test_optimizers_resume_as_if_they_had_not_stopped(
    train_runs: Runs, tmp_path: Path, optimizer: str, method: str
) -> None:
    cell = matrix.cell("SFT", method, "none", tmp_path, optim=optimizer, save_steps=2)
    outcome = matrix.run(train_runs, cell)
    assert outcome.code == 0, outcome.error
    whole = losses(outcome.started.run)
    again = train_runs.make("again", **cell.recipe)
    (outcome.started.run.data).rename(again.data)
    checkpoint = outcome.started.run.checkpoints / "checkpoint-2"
    started = train_runs.start(again, attempt=2, resume_from=checkpoint)
    assert started.finish() == 0, started.log()[-2000:]
    resumed = losses(again)
    assert {step: values[:3] for step, values in resumed.items()} == {step: whole[step][:3] for step in (3, 4)}
