"""The loss guard and the watchdog by themselves: what trips them, how often, and what never does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from engine.process import ProcessId
from engine.recipe.own import OWN
from engine.run import guard, watchdog
from engine.run.guard import LossGuard, Trip
from engine.run.recovery import Recovery
from engine.run.watchdog import StackDump, Watchdog
from engine.workspace import RunFolder


def trips(losses: list[float | None], first: int = 1, **recipe: Any) -> list[Trip]:
    watch = LossGuard(recipe)
    events = ({"event": "log", "step": first + i, "loss": loss} for i, loss in enumerate(losses))
    return [trip for event in events if (trip := watch.take(event)) is not None]


def test_the_defaults_are_those_of_the_recipe() -> None:
    assert {key: OWN[key]["default"] for key in guard.DEFAULTS} == guard.DEFAULTS


def test_a_spike_that_stays_trips_once_and_again_after_it_was_over() -> None:
    calm, high = [1.0, 1.1] * 15, [3.0] * 5
    (trip,) = trips(calm + high + [3.1] * 10)
    assert (trip.what, trip.action, trip.step, trip.back_to) == ("spike", "warn", 35, 30)
    assert trip.value == pytest.approx(3.0) and trip.limit == pytest.approx(2.1)
    assert "jumped to 3.000 at step 35" in trip.describe()
    assert len(trips(calm + high + calm * 2 + high)) == 2


@pytest.mark.parametrize(
    "losses",
    [
        [1.0] * 40 + [9.0] * 4 + [1.0] * 10,  # four in a row are noise
        [5.0 / (1 + i) for i in range(60)],
        [0.01] * 30 + [0.05] * 10,  # next to nothing, five times
        [1.0] * 10 + [9.0] * 20,  # too early to know what is usual
    ],
)
def test_what_is_no_spike(losses: list[float]) -> None:
    assert trips(losses) == []


def test_a_loss_that_is_no_number_trips_once() -> None:
    (trip,) = trips([1.0, 1.0, None, None], on_nan="rollback")
    assert (trip.what, trip.action, trip.step, trip.back_to) == ("nan", "rollback", 3, 2)
    assert trip.error()["kind"] == "loss_not_finite"


def test_evaluations_that_rise() -> None:
    watch = LossGuard({"eval_rise_patience": 2, "on_eval_rise": "stop"})
    told = [watch.take({"event": "eval", "step": s, "eval_loss": x}) for s, x in
            [(10, 2.0), (20, 1.5), (30, 1.6), (40, 1.55), (50, 1.6), (60, 1.4)]]  # fmt: skip
    assert [trip and (trip.step, trip.back_to, trip.limit) for trip in told] == [None] * 3 + [(40, 20, 1.5), None, None]
    assert "none since step 20 was below 1.500" in told[3].describe()
    assert LossGuard({"on_eval_rise": "ignore", "eval_rise_patience": 1}).take({"event": "eval"}) is None


@pytest.mark.parametrize("event", [{}, {"event": "log"}, {"event": "log", "step": 3}, {"event": "eval", "step": "x"}])
def test_odd_events_do_no_harm(event: dict[str, Any], tmp_path: Path) -> None:
    assert LossGuard({}).take(event) is None
    Watchdog(RunFolder(tmp_path), {}, sys.executable).take(event)


# What follows on a crash


def test_crashes_are_tried_again_with_growing_delays_and_never_twice_at_one_step() -> None:
    recovery = Recovery(max_restarts=3, max_rollbacks=1)
    crash = {"kind": "crash", "exit_code": 1}
    assert [recovery.after_crash(crash, step, 5.0) for step in (10, 20, 30)] == [(1.0, ""), (2.0, ""), (4.0, "")]
    assert recovery.after_crash(crash, 40, 5.0) == (None, "limit")
    assert Recovery(3, 0).after_crash(crash, None, 5.0) == (None, "same_step")  # before training began: as it was
    assert Recovery(3, 0).after_crash({"kind": "data"}, 10, 5.0) == (None, "final")
    recovery = Recovery(3, 1)
    assert recovery.after_crash(crash, 10, 5.0)[0] and recovery.after_crash(crash, 10, 5.0) == (None, "same_step")


def test_rollbacks_are_counted_and_forget_what_came_later() -> None:
    recovery = Recovery(3, 1)
    assert recovery.rollback(40) and recovery.at_most == 40
    assert not recovery.rollback(20)
    assert recovery.after_crash({"kind": "loss_not_finite"}, 50, 5.0, rolled_back=True) == (1.0, "")
    recovery.saved()
    assert recovery.at_most is None


# The watchdog


class Clock:
    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        patch.setattr(watchdog.time, "monotonic", lambda: self.now)


def watched(folder: Path, clock: Clock, **recipe: Any) -> Watchdog:
    (folder / "logs").mkdir()
    dog = Watchdog(RunFolder(folder), {"hang_after_s": 30.0, "hang_factor": 20.0, **recipe}, sys.executable)
    dog.take({"event": "start", "step": 0})
    for step in range(1, 9):
        clock.now += 2.0
        dog.take({"event": "log", "step": step, "step_time_s": 2.0})
        assert dog.silent_s() is None
    return dog


def silence(dog: Watchdog, clock: Clock, seconds: float) -> float | None:
    for _ in range(round(seconds)):
        clock.now += 1.0
        silent = dog.silent_s()
    return silent


def test_silence_for_many_steps_is_a_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    dog = watched(tmp_path, clock)
    assert dog.limit == 40.0  # twenty times what a step takes: more than the floor
    assert silence(dog, clock, 40) is None
    assert silence(dog, clock, 1) == 41.0


def test_a_heartbeat_is_a_sign_of_life_and_loading_saving_and_our_own_pauses_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    dog = watched(tmp_path, clock)
    silence(dog, clock, 35)
    dog.heartbeat.touch()  # an evaluation of many batches
    assert silence(dog, clock, 35) is None
    dog.take({"event": "save_begin", "step": 8})
    assert silence(dog, clock, 300) is None
    dog.take({"event": "save", "step": 8})
    assert silence(dog, clock, 35) is None
    clock.now += 500.0  # the container was paused
    assert dog.silent_s() is None
    assert silence(dog, clock, 45) is not None
    dog.take({"event": "end", "step": 8, "outcome": "done"})
    assert silence(dog, clock, 500) is None  # it writes its result
    loading = Watchdog(RunFolder(tmp_path), {"hang_after_s": 5.0}, sys.executable)
    assert silence(loading, clock, 100) is None


def test_it_can_be_turned_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    assert silence(watched(tmp_path, clock, hang_after_s=0.0), clock, 1000) is None


def test_a_rank_without_a_handler_survives_the_dump(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    run = RunFolder(tmp_path)
    env = {**os.environ, "FTUI_RUN": str(tmp_path), "RANK": "3"}
    child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"], env=env)
    try:
        dump = StackDump(run, 2, ProcessId.current(), "/nowhere/python")
        while (files := dump.poll()) is None:
            time.sleep(0.05)
        assert [path.name for path in files] == ["hang-2-rank-3.txt"]
        assert f"process {child.pid}" in files[0].read_text() and "thread" in files[0].read_text()
        assert child.poll() is None
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
