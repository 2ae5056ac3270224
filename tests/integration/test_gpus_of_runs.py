"""Two runs never share a GPU by accident: real supervisors, real NVML calls into a fake library, stand-in ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.journal import read_all
from engine.run import control, status
from engine.workspace import RunFolder
from tests.support.fake_nvml import Scenario, fake_nvml, fake_nvml_library
from tests.support.runs import StandIn, at_step, ended, wait_for

__all__ = ["fake_nvml", "fake_nvml_library"]


@pytest.fixture
def stand_in(house: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    made = StandIn(house / "ft", monkeypatch)
    made.plan(steps=5000, save_every=1000)
    yield made
    made.clear()


def ftui(gpus: Scenario, *arguments: str) -> tuple[int, dict[str, Any], str]:
    """Run a command that sees the fake GPUs: exit code, JSON result, what it said on stderr."""
    command = [sys.executable, "-m", "tui", "--json", *arguments]
    done = subprocess.run(command, env={**os.environ, **gpus.env}, capture_output=True, text=True, timeout=60)
    return done.returncode, json.loads(done.stdout) if done.stdout.strip() else {}, done.stderr


def visible_to_ranks(run: RunFolder) -> list[str]:
    launcher = run.read_state()["launcher"]["pid"]
    env = Path(f"/proc/{launcher}/environ").read_bytes().split(b"\0")
    value = next(line for line in env if line.startswith(b"CUDA_VISIBLE_DEVICES="))
    return value.decode().partition("=")[2].split(",")


def test_runs_share_the_gpus_of_a_machine(stand_in: StandIn, fake_nvml: Scenario) -> None:
    uuids = [gpu["uuid"] for gpu in fake_nvml.gpus]
    fake_nvml.set(7, memory_used=60 << 30, processes={1: 60 << 30})  # somebody else's program

    code, first, said = ftui(
        fake_nvml, "run", "demo", "num_gpus=3", "per_device_train_batch_size=8", "global_batch_size=24", "--name", "a"
    )
    assert code == 0, said
    a = RunFolder(Path(first["path"]))
    at_step(a, 1)
    state = a.read_state()
    assert (state["gpus"], state["world_size"]) == (uuids[:3], 3)
    assert visible_to_ranks(a) == uuids[:3]
    assert a.read_resolved()["recipe"]["gradient_accumulation_steps"] == 1

    code, second, said = ftui(
        fake_nvml, "run", "demo", "per_device_train_batch_size=8", "global_batch_size=32", "--name", "b"
    )
    assert code == 0, said
    b = RunFolder(Path(second["path"]))
    assert b.read_state()["gpus"] == uuids[3:7], "all that are free, when the recipe does not say how many"

    code, _none, said = ftui(fake_nvml, "run", "demo", "--name", "c")
    assert code == 3 and "free" in said
    assert not (stand_in.workspace.runs_dir / "c").exists()
    code, third, said = ftui(fake_nvml, "run", "demo", "num_gpus=1", "--name", "c", "--force")
    assert code == 0, said
    assert RunFolder(Path(third["path"])).read_state()["gpus"] == uuids[:1]

    fake_nvml.xid(1, 79)
    fake_nvml.lose(1)
    seen = wait_for(
        lambda: len(found := [e for e in read_all(a.events) if e["event"] == "gpu"]) >= 2 and found, what="gpu events"
    )
    assert [(event["index"], event["what"]) for event in seen[:2]] == [(1, "xid"), (1, "lost")]
    assert status.is_alive(a), "the run goes on: whether it can is for the ranks to say"
    row = status.status(a)
    assert [gpu["uuid"] for gpu in row["gpus"]] == uuids[:3]

    control.send(b, "stop_now")
    ended(b)
    wait_for(
        lambda: (
            ftui(
                fake_nvml,
                "run",
                "demo",
                "num_gpus=4",
                "per_device_train_batch_size=8",
                "global_batch_size=32",
                "--name",
                "d",
            )[0]
            == 0
        )
    )
    assert RunFolder(stand_in.workspace.runs_dir / "d").read_state()["gpus"] == uuids[3:7]


def test_a_resume_on_other_gpus_keeps_the_global_batch(stand_in: StandIn, fake_nvml: Scenario) -> None:
    batch = ("per_device_train_batch_size=1", "global_batch_size=8")
    code, made, said = ftui(fake_nvml, "run", "demo", "num_gpus=2", *batch, "--name", "a")
    assert code == 0, said
    run = RunFolder(Path(made["path"]))
    assert run.read_resolved()["recipe"]["gradient_accumulation_steps"] == 4
    at_step(run, 1)
    control.send(run, "stop")
    ended(run)

    code, _none, said = ftui(fake_nvml, "resume", "a", "--gpus", "3")
    assert code == 2 and "1, 2, 4, 8" in said
    assert status.summary(run)["state"] == "stopped"
    code, _made, said = ftui(fake_nvml, "resume", "a", "--gpus", "4")
    assert code == 0, said
    recipe = run.read_resolved()["recipe"]
    assert (recipe["gradient_accumulation_steps"], recipe["global_batch_size"], recipe["num_gpus"]) == (2, 8, 4)
    assert recipe["sharding"] == "ddp"
    assert len(run.read_state()["gpus"]) == run.read_state()["world_size"] == 4
    at_step(run, 2)
    control.send(run, "stop")
    assert ended(run)["attempt"] == 2


def test_what_the_machine_does_not_have(
    stand_in: StandIn, fake_nvml: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _none, said = ftui(
        fake_nvml, "run", "demo", "num_gpus=9", "per_device_train_batch_size=8", "global_batch_size=72", "--name", "a"
    )
    assert code == 3 and "9" in said and "8" in said
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", fake_nvml.gpus[5]["uuid"])
    code, made, said = ftui(fake_nvml, "run", "demo", "--name", "b")
    assert code == 0, said
    assert RunFolder(Path(made["path"])).read_state()["gpus"] == [fake_nvml.gpus[5]["uuid"]]
    assert [path.name for path in stand_in.workspace.runs_dir.iterdir()] == ["b"]
