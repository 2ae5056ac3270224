"""Many leases under a fake clock: random runs, rates and failures, and the autopilot as it is."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.lease import clock, schedule
from engine.lease.clock import Left
from tests.support.leases import World

USUAL = 200


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(os, "fsync", lambda _fd: None)  # the same logic, without the disk
    caplog.set_level(logging.CRITICAL, "engine.keeper")


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """In memory where that is possible: a lease writes its small files a hundred times."""
    memory = "/dev/shm"
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else tmp_path) as folder:
        yield Path(folder)


def live(home: Path, seeds: range, *, fail: bool) -> tuple[int, list[int], list[str]]:
    """How many could be saved at the lowest rate; which of them were not; what was called safe and was not."""
    possible, lost, false = 0, [], []
    for seed in seeds:
        world = World(home / f"{seed}-{fail}", seed, fail=fail)
        world.go()
        false += [f"seed {seed}: {text}" for text in world.false_safe]
        if world.possible and not fail:
            possible += 1
            if not all(run.safe for run in world.runs):
                lost.append(seed)
    return possible, lost, false


def test_whatever_could_be_saved_is_saved(home: Path) -> None:
    possible, lost, false = live(home, range(USUAL), fail=False)
    assert lost == [] and false == []
    assert possible > USUAL / 2


def test_nothing_is_called_safe_that_is_not_whatever_fails(home: Path) -> None:
    _possible, _lost, false = live(home, range(1000, 1100), fail=True)
    assert false == []


@pytest.mark.soak
def test_a_thousand_leases(home: Path) -> None:
    possible, lost, false = live(home, range(2000, 2700), fail=False)
    assert lost == [] and false == [] and possible > 350
    assert live(home, range(3000, 3300), fail=True)[2] == []


def test_it_takes_the_lowest_rate_and_both_clocks(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The world is hard enough: without one of the precautions something is lost in it."""
    with monkeypatch.context() as patch:
        usual = schedule.Work.seconds
        patch.setattr(schedule.Work, "seconds", lambda self, _speed, **how: usual(self, "mid", **how))
        assert live(home / "a", range(4), fail=False)[1]
    monkeypatch.setattr(clock, "left", lambda end, _relative, _anchor, at: Left(end - at.wall))
    assert live(home / "b", range(6, 11), fail=False)[1]
