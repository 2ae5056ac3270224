"""The watchdog, the heartbeat and the drill with the real training program on the CPU."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.journal import read_all
from engine.run import drill, launch, resuming, status
from engine.run.watchdog import ranks_of
from engine.workspace import RunFolder, Workspace
from tests.support.runs import at_step, ended, wait_for

QUICK = ["logging_steps=1", "save_steps=50", "eval_steps=1000", "max_length=64", "per_device_train_batch_size=2"]


@pytest.fixture
def home(house: Path, builtin_cache: Path) -> Iterator[Workspace]:
    workspace = Workspace(house / "ft").prepare()
    yield workspace
    for run in workspace.folders():
        if status.is_alive(run):
            os.kill(run.read_state()["supervisor"]["pid"], signal.SIGKILL)
        launch.reap(run, grace=0)


@pytest.mark.heavy
def test_a_rank_that_is_stopped_counts_as_hanging_and_a_drill_proves_the_resume(home: Workspace) -> None:
    # Steps enough that they are not all done before the rank is stopped.
    options = [*QUICK, "max_steps=300", "hang_after_s=5", "hang_factor=3", "global_batch_size=2"]
    run: RunFolder = launch.start(home, "demo", options, name="a").run
    wait_for(lambda: status.summary(run)["state"] in status.ENDED or (run.read_state().get("step") or 0) >= 5, 280)
    at_step(run, 5)
    assert (run.logs / "heartbeat").exists()
    ranks = ranks_of(run, None)
    assert [index for index, _process in ranks] == [0]
    ranks[0][1].send(signal.SIGSTOP)  # as one that hangs in a driver: it takes no signal
    state = ended(run, 240)
    assert (state["state"], state["attempt"]) == ("done", 2), state["error"]
    seen = [event for event in read_all(run.events) if event["event"] in ("hang", "stacks")]
    assert [event["event"] for event in seen] == ["hang", "stacks"]
    text = (run.path / seen[1]["files"][0]).read_text()
    assert "thread" in text and ": T" in text, "the kernel says that it was stopped"
    found = drill.drill(run, step=250, steps=4)
    assert found.passed and found.exact and found.tolerance == 0.0, found.reason
    steps = [row["step"] for row in found.compared]  # quick steps may follow before it is ended
    assert steps == list(range(251, 251 + len(steps))) and len(steps) >= 4
    assert all(row["equal"] for row in found.compared)
    with pytest.raises(Exception, match="done"):
        resuming.resume(run)
