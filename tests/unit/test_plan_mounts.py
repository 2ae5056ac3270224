"""The disks of this machine: what comes onto which, what does not fit, and where it could go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from engine.hardware import disk
from engine.plan import models, mounts
from engine.plan.plan import Result, plan
from engine.plan.request import parse
from tui import plan_words as words

TB = 1e12
BIG = {"model": "meta-llama/Llama-3.1-70B", "method": "full", "gpu": "B300", "num_gpus": 8, "sharding": "fsdp2"}


class Machine:
    """Disks that a test names: place and bytes that are free; each is a device of its own."""

    def __init__(self, patch: pytest.MonkeyPatch, house: Path) -> None:
        self.home, self.cache, self.other = house / "ft", house / "hf", house / "other"
        self.room: dict[Path, float] = {self.home: 3.84 * TB, self.cache: 3.84 * TB}
        for place in (self.home, self.cache, self.other):
            place.mkdir()
        patch.setenv("HF_HUB_CACHE", str(self.cache))
        patch.setattr(mounts, "_mount", self.mount)
        patch.setattr(mounts, "_others", self.others)
        patch.setattr(mounts, "host_memory", lambda: 2e12)

    def mount(self, place: Path) -> mounts.Mount:
        return mounts.Mount(str(place), list(self.room).index(place), self.room[place])

    def others(self, own: int, least: float) -> list[mounts.Mount]:
        known = [self.mount(place) for place in self.room]
        return [mount for mount in known if mount.device != own and mount.free >= least]

    def plan(self, **more: Any) -> Result:
        return plan(parse(BIG | more), home=self.home, advise=False)


@pytest.fixture
def machine(house: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch, house)


def test_each_disk_gets_what_lies_on_it(machine: Machine) -> None:
    home, cache = machine.plan(checkpoints_kept=1).mounts
    assert cache.model == pytest.approx(141.1e9, rel=0.01) and cache.run == 0
    assert home.model == 0 and home.run == pytest.approx(3 * 847e9 + 141e9, rel=0.01)
    assert home.fits and cache.fits
    assert machine.plan(checkpoints_kept=1).problems == []


def test_one_disk_for_both_has_the_sum(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mounts, "_mount", lambda _place: mounts.Mount("/", 0, 1e13))
    (mount,) = machine.plan().mounts
    assert mount.model and mount.run and mount.needs == mount.model + mount.run


def test_70b_full_with_3_kept_says_that_one_drive_is_too_small(machine: Machine) -> None:
    result = machine.plan(checkpoints_kept=3)
    home = result.mounts[0]
    assert not home.fits and home.possible, "two of them fit: it can run with fewer"
    assert result.problems == [], "nothing that stops it"
    first, fix = words.disks(result)
    assert "3.8 TB free" in first and "4.4 TB" in first
    # the cache's disk has the model, and room for the last one
    assert "spread the checkpoints (4 on" in fix and f"1 on {machine.cache}" in fix
    document = result.to_json()["disk"]
    assert [row["fits"] for row in document["here"]] == [False, True]
    assert document["spread"]["fits"] and document["spread"]["each"] == [4, 1]


def test_a_disk_that_holds_not_even_two_stops_it(machine: Machine) -> None:
    machine.room[machine.home] = 1.5 * TB
    result = machine.plan()
    assert result.problems == ["disk"] and "too small" in words.disks(result)[0]
    machine.room[machine.cache] = 0.1 * TB
    result = machine.plan()
    assert len(words.disks(result)) == 3 and "--home" in words.disks(result)[-1]


def test_a_further_disk_takes_what_is_over(machine: Machine) -> None:
    machine.room |= {machine.home: 2.0 * TB, machine.other: 3.84 * TB}
    spread = machine.plan().spread
    assert spread is not None and spread["fits"]
    assert spread["places"] == [(str(machine.home), 2), (str(machine.other), 3)]


def test_a_model_that_is_here_is_not_downloaded(house: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(house / "hub"))
    assert not models.is_here("Qwen/Qwen3-8B")
    folder = house / "hub/models--Qwen--Qwen3-8B/snapshots/abc"
    folder.mkdir(parents=True)
    (folder / "config.json").write_bytes(orjson.dumps(models.config("Qwen/Qwen3-8B")))
    assert not models.is_here("Qwen/Qwen3-8B"), "a config is no model"
    shards = {"a": "model-1.safetensors", "b": "model-2.safetensors"}
    (folder / "model.safetensors.index.json").write_bytes(orjson.dumps({"weight_map": shards}))
    (folder / "model-1.safetensors").write_bytes(b"x")
    assert not models.is_here("Qwen/Qwen3-8B"), "half a download"
    (folder / "model-2.safetensors").write_bytes(b"x")
    assert models.is_here("Qwen/Qwen3-8B")
    (folder / "model.safetensors.index.json").write_text("{broken")
    assert not models.is_here("Qwen/Qwen3-8B")
    assert models.is_here(str(folder)) and models.is_here("builtin:tiny")


def test_the_real_mount_table(house: Path) -> None:
    result = plan(parse(BIG), home=house / "not" / "there", advise=False)
    assert result.mounts and all(mount.free > 0 and Path(mount.point).is_dir() for mount in result.mounts)
    for mount in mounts._others(-1, 0.0):
        assert mount.point and mount.free >= 0
    kinds = {m.point: m.fs for m in disk.mounts()}
    assert not [m for m in mounts._others(-1, 0.0) if kinds.get(m.point) in disk.MEMORY]


def test_another_server_has_no_disks_of_this_machine() -> None:
    result = plan(parse(BIG), advise=False)
    assert result.mounts == () and result.to_json()["disk"]["here"] == []
    assert result.spread is None
