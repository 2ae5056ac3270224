"""One real run through its whole life: real torch ranks, real signals, a user's folder that is called like ours."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from engine.journal import read_all
from engine.process import ProcessId, descendants, read_stat
from engine.run import control, launch, resuming, status
from engine.workspace import RunFolder
from tests.support.runs import ended, events, supervisor_of, wait_for

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(900)]
LOADING_S = 300.0  # generous: two cores shared with other tests


@pytest.fixture
def run(house: Path, builtin_cache: Path) -> Iterator[RunFolder]:
    """A run started from a folder whose `engine` would break everything that imported it."""
    trap = house / "project"
    (trap / "engine").mkdir(parents=True)
    (trap / "engine" / "__init__.py").write_text("raise SystemExit('a user folder shadowed the engine')")
    started = subprocess.run(
        [sys.executable, "-P", "-m", "tui", "--json", "run", "demo", "max_steps=100000", "save_steps=5",
         "logging_steps=1", "eval_strategy=no", "save_total_limit=4", "--name", "real"],
        cwd=trap, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert started.returncode == 0, started.stderr
    folder = RunFolder(Path(json.loads(started.stdout)["path"]))
    yield folder
    if status.is_alive(folder):
        supervisor_of(folder).send(signal.SIGKILL)
    launch.reap(folder, grace=0)


def rank_of(run: RunFolder) -> ProcessId:
    """The process that trains, below the launcher."""
    for pid in descendants(run.read_state()["launcher"]["pid"]):
        if b"engine.train" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return ProcessId.of(pid)
    raise AssertionError("no rank")


def training(run: RunFolder, attempt: int, steps: int) -> None:
    """Wait until the attempt has trained for some steps."""
    wait_for(
        lambda: run.read_state().get("attempt") == attempt and run.read_state()["state"] in ("running", "saving"),
        LOADING_S,
        f"attempt {attempt}",
    )
    wait_for(
        lambda: sum(e["event"] == "log" and e["attempt"] == attempt for e in read_all(run.journal)) >= steps,
        LOADING_S,
        f"{steps} steps of attempt {attempt}",
    )


def test_the_life_of_a_run(run: RunFolder) -> None:
    training(run, attempt=1, steps=7)
    rank = rank_of(run)
    environment = Path(f"/proc/{rank.pid}/environ").read_bytes().split(b"\0")
    assert {b"PYTHONSAFEPATH=1", b"HF_HUB_DISABLE_TELEMETRY=1", f"FTUI_RUN={run.path}".encode()} <= set(environment)
    stat = read_stat(rank.pid)
    assert stat is not None and stat.session not in (os.getsid(0), supervisor_of(run).pid)
    assert run.hardware.exists() and read_all(run.hardware)[-1]["host"]["memory_ranks"] > 100e6
    before = run.read_state()["last_checkpoint"]
    answer = control.send(run, "save")
    wait_for(lambda: any(e["event"] == "request" and e["id"] == answer["id"] for e in read_all(run.journal)), LOADING_S)
    wait_for(lambda: run.read_state()["last_checkpoint"] != before, LOADING_S, "the save")

    # a rank is killed: started again from the newest checkpoint
    assert rank.send(signal.SIGKILL)
    training(run, attempt=2, steps=3)
    restart = next(event for event in read_all(run.events) if event["event"] == "restart")
    resumed = int(restart["resumed_from"].rsplit("-", 1)[1])
    start = next(e for e in read_all(run.journal) if e["event"] == "start" and e["attempt"] == 2)
    assert start["step"] == resumed > 0
    assert run.read_state()["restarts"] == 1

    # the supervisor is killed: the run is lost, its ranks save and end, and it can be resumed
    left = [supervisor_of(run), rank_of(run), ProcessId.of(run.read_state()["launcher"]["pid"])]
    left[0].send(signal.SIGKILL)
    wait_for(lambda: status.summary(run)["state"] == "lost")
    wait_for(lambda: not any(process.alive() for process in left), 60, "the end of the ranks")
    assert launch.leftovers(run) == []
    last = [event for event in read_all(run.journal) if event["event"] == "end"][-1]
    assert (last["outcome"], last["saved_step"]) == ("stopped", last["step"]), "nothing was lost with the supervisor"

    resuming.resume(run)
    training(run, attempt=3, steps=2)
    start = next(e for e in read_all(run.journal) if e["event"] == "start" and e["attempt"] == 3)
    assert start["step"] == last["saved_step"]

    # TERM to the supervisor: stop with a save
    supervisor_of(run).send(signal.SIGTERM)
    state = ended(run, LOADING_S)
    assert (state["state"], state["exit_code"], state["error"]) == ("stopped", 75, None)
    assert state["last_checkpoint"]["step"] == state["step"]
    assert events(run)[-2:] == ["rank_exit", "stopped"]
    logs = [event for event in read_all(run.journal) if event["event"] == "log"]
    for attempt in (1, 2, 3):
        steps = [event["step"] for event in logs if event["attempt"] == attempt]
        assert all(after == step + 1 for step, after in pairwise(steps)), "no step is missing or told twice"
    losses = {attempt: {e["step"]: e["loss"] for e in logs if e["attempt"] == attempt} for attempt in (1, 2)}
    shared = losses[1].keys() & losses[2].keys()
    assert all(losses[1][step] == losses[2][step] for step in shared), "what was trained again came out the same"
