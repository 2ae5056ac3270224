"""What the supervisor does against hangs and bad losses, with real processes; the ranks are the stand-in."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.errors import FtuiError
from engine.journal import read_all
from engine.run import control, launch
from engine.workspace import RunFolder
from tests.support.runs import StandIn, at_step, ended, events, supervisor_of, wait_for


@pytest.fixture
def stand_in(house: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    made = StandIn(house / "ft", monkeypatch)
    yield made
    made.clear()


def event(run: RunFolder, name: str) -> dict[str, Any]:
    return next(event for event in read_all(run.events) if event["event"] == name)


def starts(run: RunFolder) -> list[tuple[int, int]]:
    return [(e["attempt"], e["step"]) for e in read_all(run.journal) if e["event"] == "start"]


def test_a_hang_is_seen_its_stacks_are_kept_and_the_run_goes_on(stand_in: StandIn) -> None:
    stand_in.below_a_launcher()
    quick = {"hang_after_s": 1.0, "hang_factor": 1.0}
    run = stand_in.start("a", steps=20, save_every=5, hang={"1": 13}, recipe=quick)
    state = ended(run, 40)
    assert (state["state"], state["attempt"]) == ("done", 2)
    assert starts(run) == [(1, 0), (2, 10)]
    seen = event(run, "hang")
    assert (seen["step"], seen["attempt"]) == (12, 1) and seen["seconds"] >= 1.0
    (name,) = event(run, "stacks")["files"]
    stack = (run.path / name).read_text()
    assert "wait_for_ever" in stack and "thread" in stack
    assert launch.leftovers(run) == []


def test_a_hang_at_the_same_step_twice_ends_the_run_and_says_so(stand_in: StandIn) -> None:
    quick = {"hang_after_s": 0.7, "hang_factor": 1.0}
    run = stand_in.start("a", steps=20, save_every=5, hang={"1": 8, "2": 8}, recipe=quick)
    state = ended(run, 40)
    assert (state["state"], state["attempt"], state["exit_code"]) == ("failed", 2, 1)
    assert (state["error"]["kind"], state["error"]["given_up"]) == ("hang", "same_step")
    assert event(run, "given_up")["reason"] == "same_step"


SPIKE = {str(step): 9.0 for step in range(41, 60)}
CALM = {str(step): 1.0 for step in range(1, 41)}


def test_a_spike_warns_and_the_run_goes_on(stand_in: StandIn) -> None:
    run = stand_in.start("a", steps=60, step_time=0.005, losses=CALM | SPIKE)
    assert ended(run)["state"] == "done"
    seen = event(run, "guard")
    assert (seen["what"], seen["action"], seen["step"], seen["back_to"]) == ("spike", "warn", 45, 40)


def test_a_spike_stops_with_everything_saved(stand_in: StandIn) -> None:
    run = stand_in.start("a", steps=5000, losses=CALM | SPIKE, recipe={"on_loss_spike": "stop"})
    state = ended(run)
    assert (state["state"], state["exit_code"]) == ("stopped", 75)
    assert state["error"]["kind"] == "loss_spike"


def test_a_spike_rolls_back_to_before_it_and_a_second_one_ends_the_run(stand_in: StandIn) -> None:
    run = stand_in.start("a", steps=5000, save_every=12, losses=CALM | SPIKE, recipe={"on_loss_spike": "rollback"})
    state = ended(run, 40)
    assert starts(run)[:2] == [(1, 0), (2, 36)]
    assert state["state"] == "failed" and state["error"]["kind"] == "loss_spike"
    assert state["attempt"] == 2 and state["error"]["given_up"] == "same_step"


def test_a_loss_that_is_no_number_ends_the_run_without_a_save(stand_in: StandIn) -> None:
    run = stand_in.start("a", steps=5000, save_every=12, step_time=0.1, losses={"13": None})
    state = ended(run)
    assert (state["state"], state["error"]["kind"]) == ("failed", "loss_not_finite")
    assert state["last_checkpoint"]["step"] == 12


def test_the_ranks_own_report_of_such_a_loss_can_roll_back(stand_in: StandIn) -> None:
    plan = {"steps": 30, "save_every": 5, "crash": {"1": 13}, "how": "loss_not_finite"}
    run = stand_in.start("a", recipe={"on_nan": "rollback"}, **plan)
    assert (ended(run)["state"], starts(run)) == ("done", [(1, 0), (2, 10)])
    run = stand_in.start("b", **plan)
    state = ended(run)
    assert (state["state"], state["attempt"], state["error"]["given_up"]) == ("failed", 1, "final")


def test_evaluations_that_rise_stop_the_run_when_asked_to(stand_in: StandIn) -> None:
    evals = {"5": 2.0, "10": 2.1, "15": 2.2}
    run = stand_in.start("a", steps=5000, evals=evals, recipe={"on_eval_rise": "stop", "eval_rise_patience": 2})
    state = ended(run)
    assert (state["state"], state["exit_code"], state["error"]["kind"]) == ("stopped", 75, "eval_rise")


def test_after_a_crash_a_checkpoint_whose_content_changed_is_not_gone_on_from(stand_in: StandIn) -> None:
    run = stand_in.start("a", steps=40, save_every=5, crash={"1": 23}, step_time=0.1)
    newest = run.checkpoints / "checkpoint-20"
    wait_for((newest / "MANIFEST.json").exists)
    data = bytearray((newest / "optimizer.pt").read_bytes())
    data[len(data) // 2] ^= 0xFF  # the same size: names and sizes say nothing
    (newest / "optimizer.pt").write_bytes(data)
    assert ended(run, 40)["state"] == "done"
    assert starts(run) == [(1, 0), (2, 15)]
    assert "checkpoint-20: " in event(run, "restart")["skipped"][0]


def test_a_stop_that_nobody_took_is_not_carried_out_later(stand_in: StandIn) -> None:
    run = stand_in.start("a", steps=5000)
    at_step(run, 2)
    supervisor = supervisor_of(run)
    supervisor.send(signal.SIGSTOP)
    try:
        with pytest.raises(FtuiError, match="lapsed and will not be carried out"):
            control.send(run, "stop", timeout=0.5)
    finally:
        supervisor.send(signal.SIGCONT)
    threading.Event().wait(1.0)
    assert control.send(run, "status")["state"]["state"] == "running"
    assert "control" not in events(run)
    control.send(run, "stop_now")
    assert ended(run)["state"] == "stopped"
