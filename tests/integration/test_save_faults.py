"""Saves that fail or hang on one of the ranks: the checkpoint is given up, training is not."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from engine.checkpoint import ledger, manifest
from engine.checkpoint.retention import Policy
from engine.journal import read_all
from engine.workspace import RunFolder
from tests.support import tiny_trainer
from tests.support.tiny_trainer import Life

pytestmark = [pytest.mark.heavy]


@pytest.fixture(scope="module", autouse=True)
def loaded() -> None:
    from transformers import Trainer  # noqa: F401

    import engine.train.saving  # noqa: F401


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    (tmp_path / "run").mkdir()
    return RunFolder(tmp_path / "run")


def train(run: RunFolder, **options: Any) -> list[dict[str, Any]]:
    """Train to the end, in time; the journal."""
    life = Life(run, 1, **{"steps": 12, **options})
    assert tiny_trainer.wait(tiny_trainer.start(life)) == [0] * life.ranks
    events = list(read_all(run.journal))
    assert [e["step"] for e in events if e["event"] == "log"] == list(range(1, life.steps + 1))
    return events


def told(events: list[dict[str, Any]], kind: str) -> dict[int, Any]:
    return {e["step"]: e for e in events if e["event"] == kind}


def steps(run: RunFolder) -> list[int]:
    entries = ledger.list(run.checkpoints, check_hash=True)
    assert all(entry.exact for entry in entries)
    assert not list(run.checkpoints.glob(".*"))
    return [entry.step for entry in entries]


def failing_writes(on: int, when: Any) -> Any:
    """On one rank every write of the saves that `when` names (by number, from 1) fails as on a full disk."""

    def prepare(index: int) -> None:
        from engine.train import commit, writing

        if index != on:
            return
        original = writing.write

        def write(files: Any, folder: Path, *rest: Any) -> Any:
            if int(folder.name.rpartition("-")[2]) in when:
                raise OSError(28, "No space left on device")
            return original(files, folder, *rest)

        commit.writing.write = write  # type: ignore[assignment]

    return prepare


@pytest.mark.parametrize("background", [True, False])
@pytest.mark.parametrize(("ranks", "on"), [(1, 0), (2, 0), (2, 1)])
def test_a_full_disk_on_any_rank_costs_that_checkpoint_only(run, ranks, on, background):
    events = train(run, ranks=ranks, background=background, prepare=failing_writes(on, {6}), policy=Policy())
    assert {step: e["reason"] for step, e in told(events, "save_failed").items()} == {6: "No space left on device"}
    assert list(told(events, "save")) == steps(run) == [3, 9, 12]
    assert told(events, "end")[12]["saved_step"] == 12


def test_the_last_good_one_is_not_retired_for_one_that_fails(run):
    events = train(run, prepare=failing_writes(0, {6, 9, 12}), policy=Policy(keep_last=1))
    assert list(told(events, "save_failed")) == [6, 9, 12]
    assert steps(run) == [3]
    assert told(events, "end")[12]["saved_step"] == 3


def hanging_writes(on: int, step: int) -> Any:
    """On one rank the disk takes nothing of one save for as long as the run lives."""

    def prepare(index: int) -> None:
        from engine.train import commit, writing

        if index != on:
            return
        original = writing.write

        def write(files: Any, folder: Path, *rest: Any) -> Any:
            if folder.name == f".staging-{step}":
                time.sleep(3600)
            return original(files, folder, *rest)

        commit.writing.write = write  # type: ignore[assignment]

    return prepare


@pytest.mark.parametrize("on", [0, 1])
def test_a_disk_that_hangs_on_one_rank_does_not_stop_the_training(run, on):
    began = time.monotonic()
    events = train(run, ranks=2, prepare=hanging_writes(on, 6), patience=0.5, policy=Policy())
    assert time.monotonic() - began < 100
    failed = told(events, "save_failed")
    assert list(told(events, "save")) == [3]
    assert set(failed) >= {9, 12}
    assert f"rank {on} still writes" in failed[9]["reason"]
    if on == 1:  # rank 0 can say so at once
        assert "rank 1 has not written its part" in failed[6]["reason"]
    assert manifest.read(run.checkpoints / "checkpoint-3") is not None


def test_one_that_does_not_fit_is_not_begun(run, monkeypatch):
    def prepare(_index: int) -> None:
        import collections
        import shutil

        usage = collections.namedtuple("usage", "total used free")
        shutil.disk_usage = lambda _path: usage(10**12, 10**12, 10_000)  # type: ignore[assignment]

    events = train(run, prepare=prepare)
    assert all("not enough room" in e["reason"] for e in told(events, "save_failed").values())
    assert list(told(events, "save_failed")) == [3, 6, 9, 12]
    assert steps(run) == []


def test_a_failure_while_the_state_is_taken_is_agreed_on(run):
    def prepare(index: int) -> None:
        from engine.train import staging

        if index == 1:
            original = staging.Capture.add_torch

            def add(self: Any, name: str, value: Any) -> None:
                if name.startswith("rng_state") and self.folder.name == ".staging-6":
                    raise MemoryError
                original(self, name, value)

            staging.Capture.add_torch = add  # type: ignore[method-assign]

    events = train(run, ranks=2, prepare=prepare, policy=Policy())
    assert list(told(events, "save_failed")) == [6]
    assert steps(run) == [3, 9, 12]


def slow_writes(_index: int) -> None:
    from engine.train import writing

    original = writing.write_all

    def write_all(fd: int, piece: Any) -> None:
        time.sleep(0.05)
        original(fd, piece)

    writing.write_all = write_all


def test_one_at_most_is_under_way_and_the_wait_is_told(run):
    events = train(run, background=True, prepare=slow_writes, policy=Policy())
    order = [(e["event"], e["step"]) for e in events if e["event"] in ("save_begin", "save")]
    assert order == [(kind, step) for step in (3, 6, 9, 12) for kind in ("save_begin", "save")]
    staged = told(events, "save_staged")
    assert list(staged) == [3, 6, 9]  # the last one of a run has nothing to be beside
    assert staged[6]["waited_s"] > 0.1 > staged[3]["waited_s"]
    assert told(events, "save")[6]["background"] and not told(events, "save")[12]["background"]


def test_a_crash_lets_the_save_under_way_end(run):
    def prepare(_index: int) -> None:
        slow_writes(0)
        from transformers import Trainer

        original = Trainer.training_step

        def step(self: Any, *args: Any, **kwargs: Any) -> Any:
            if self.state.global_step == 3:
                raise RuntimeError("crash")
            return original(self, *args, **kwargs)

        Trainer.training_step = step

    assert tiny_trainer.wait(tiny_trainer.start(Life(run, 1, steps=12, prepare=prepare))) == [1]
    assert steps(run) == [3]


def test_the_state_is_that_of_its_step_though_training_went_on(run, tmp_path):
    """What is written later is what was there when the save began: equal to what a save in the foreground writes."""
    train(run, background=True, prepare=slow_writes, policy=Policy())
    other = RunFolder(tmp_path / "other")
    other.path.mkdir()
    train(other, background=False, policy=Policy())
    for step in (3, 6, 9, 12):
        one = manifest.read(run.checkpoints / f"checkpoint-{step}").files
        two = manifest.read(other.checkpoints / f"checkpoint-{step}").files
        for name in ("model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth"):
            if name in one:
                assert one[name] == two[name], (step, name)
        assert one.keys() == two.keys()


def test_what_the_files_hold_is_what_torch_and_safetensors_would_have_written(tmp_path):
    import safetensors.torch
    import torch
    from safetensors.torch import load_file

    from engine.train import staging, writing

    tied = torch.randn(7, 3)
    value = {
        "a": tied,
        "view": tied[2:4],
        "empty": torch.empty(0, 4),
        "nothing": torch.tensor(2.5, dtype=torch.bfloat16),
        "whole": torch.arange(9, dtype=torch.int8),
        "more": [1, "two", {"three": torch.ones(2, dtype=torch.float64)}],
    }
    weights = {"x": torch.randn(5, 2).T, "y": torch.ones(3, dtype=torch.float16), "z": torch.tensor(True)}
    for host in (None, staging.HostMemory()):
        folder = tmp_path / ("copied" if host else "referred")
        folder.mkdir()
        capture = staging.Capture(folder, host)
        with capture.watching():
            torch.save(value, str(folder / "one.pt"))
            safetensors.torch.save_file(
                {k: v.contiguous() for k, v in weights.items()}, str(folder / "two.safetensors"), {"format": "pt"}
            )
            torch.save(value, str(tmp_path / "elsewhere.pt"))  # not ours: written at once
        assert not list(folder.iterdir())
        assert torch.equal(torch.load(tmp_path / "elsewhere.pt")["a"], tied)
        entries = writing.write(capture.files, folder)
        assert {name: e["size"] for name, e in entries.items()} == {f.name: f.size for f in capture.files}
        assert manifest.damage(folder, manifest.Manifest(1, files=entries), check_hash=True) == []
        for options in ({}, {"mmap": True}):
            back = torch.load(folder / "one.pt", weights_only=True, **options)
            assert all(torch.equal(back[k], value[k]) for k in ("a", "view", "empty", "nothing", "whole"))
            assert back["more"][:2] == [1, "two"] and torch.equal(back["more"][2]["three"], value["more"][2]["three"])
            assert back["view"].untyped_storage().data_ptr() == back["a"].untyped_storage().data_ptr()
        read = load_file(folder / "two.safetensors")
        assert all(torch.equal(read[k], weights[k]) for k in weights)


def test_sharded_state_reads_back_as_that_of_the_library(tmp_path):
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp

    from engine.checkpoint import shards, tree
    from engine.checkpoint.problems import Problems
    from engine.train import sharded, staging, writing

    state = {
        "model": {f"w{n}": torch.randn(n + 1, 3, dtype=torch.bfloat16 if n % 2 else torch.float32) for n in range(6)},
        "step": {"count": torch.tensor(4.0), "lr": 0.5, "empty": torch.empty(0)},
    }
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        planner = sharded.Planner("shards", lambda value: [value], 0)
        memory = staging.HostMemory()
        for turn in range(2):  # the second time by the plan of the first
            state["model"]["w0"] += 1
            capture = staging.Capture(tmp_path, memory)
            memory.begin()
            part = planner.add(capture, state)
            writing.write(capture.files, tmp_path)
            writing.write([part.finish([part.results])], tmp_path)
            back = {
                "model": {k: torch.zeros_like(v) for k, v in state["model"].items()},
                "step": {"count": torch.tensor(0.0), "lr": 0.0, "empty": torch.empty(0)},
            }
            dcp.load(back, storage_reader=dcp.FileSystemReader(tmp_path / "shards"))
            assert all(torch.equal(back["model"][k], v) for k, v in state["model"].items()), turn
            assert (float(back["step"]["count"]), back["step"]["lr"]) == (4.0, 0.5)
            problems = Problems()
            assert shards.check_dcp(tree.files(tmp_path, problems), problems)
            assert problems.findings == []
    finally:
        dist.destroy_process_group()
