"""Kills at random moments, by hand: `FTUI_SOAK=100 pytest tests/integration/test_soak_supervisor.py`."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from engine.errors import GateError
from engine.journal import read_all
from engine.process import ProcessId
from engine.run import launch, resuming, status
from tests.support.runs import StandIn, ended, supervisor_of, wait_for


@pytest.mark.soak
@pytest.mark.skipif(not os.environ.get("FTUI_SOAK"), reason="set FTUI_SOAK to the number of kills")
@pytest.mark.timeout(3600)
def test_a_run_survives_any_number_of_kills(house: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(os.environ.get("FTUI_SOAK_SEED", "1"))
    stand_in = StandIn(house / "ft", monkeypatch)
    kills = int(os.environ["FTUI_SOAK"])
    steps = 60 * kills
    run = stand_in.start("a", steps=steps, save_every=7, max_restarts=1000)
    try:
        for _ in range(kills):
            time.sleep(chance.uniform(0.0, 1.5))
            state = run.read_state()
            if status.summary(run)["state"] == "done":
                break
            victim = chance.choice(("supervisor", "launcher"))
            process = ProcessId.from_json(state.get(victim))
            if process is None or not process.alive():
                continue
            process.send(signal.SIGKILL)
            if victim == "launcher":
                continue
            wait_for(lambda: status.summary(run)["state"] in ("lost", "done"))
            if status.summary(run)["state"] == "done":
                break
            try:
                resuming.resume(run)
            except GateError:  # killed before the first checkpoint
                pytest.skip("killed too early with this seed; take another")
        state = ended(run, 300)
        assert (state["state"], state["step"]) == ("done", steps), state["error"]
        wait_for(lambda: not supervisor_of(run).alive())
        assert launch.leftovers(run) == []
        logs = [event for event in read_all(run.journal) if event["event"] == "log"]
        told = {event["step"]: event["loss"] for event in logs}
        assert sorted(told) == list(range(1, steps + 1))
        for event in logs:
            assert told[event["step"]] == event["loss"]
    finally:
        stand_in.clear()
