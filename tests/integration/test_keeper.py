"""The workspace's background process: one at a time, back from files alone, and no run's parent."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine import keeper
from engine.journal import read_all
from engine.process import read_stat
from engine.run import control, launch, resuming, status
from engine.workspace import Workspace
from tests.support.runs import StandIn, at_step, ended, supervisor_of, wait_for


@pytest.fixture
def workspace(house: Path) -> Workspace:
    return Workspace(house / "ft").prepare()


@pytest.fixture
def stand_in(house: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    made = StandIn(house / "ft", monkeypatch)
    yield made
    made.clear()


def test_one_keeper_however_many_ask_at_once(workspace: Workspace) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom engine import keeper\nfrom engine.workspace import Workspace\n"
        "print(keeper.ensure(Workspace(Path(sys.argv[1]))).pid)"
    )
    command = [sys.executable, "-c", code, str(workspace.root)]
    asking = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    pids = {process.communicate(timeout=60)[0].strip() for process in asking}
    assert len(pids) == 1
    known = keeper.running(workspace)
    assert known is not None and str(known.pid) in pids
    stat = read_stat(known.pid)
    assert stat is not None and stat.session != os.getsid(0)
    document = keeper.status(workspace)
    assert document["running"] and document["pid"] == known.pid and document["live_runs"] == 0
    assert keeper.stop(workspace)
    assert not known.alive()
    assert keeper.status(workspace)["running"] is False
    assert not keeper.stop(workspace)


def test_it_is_back_after_a_kill_and_ends_when_idle_or_without_its_workspace(workspace: Workspace) -> None:
    first = keeper.ensure(workspace)
    assert first.send(signal.SIGKILL)
    wait_for(lambda: not first.alive())
    assert not keeper.status(workspace)["running"]
    second = keeper.ensure(workspace, idle=0.5)
    assert second != first
    wait_for(lambda: not second.alive(), what="the idle exit")
    third = keeper.ensure(workspace)
    shutil.rmtree(workspace.root)
    wait_for(lambda: not third.alive(), what="the exit after the workspace was deleted")


def test_a_lost_run_is_noticed_cleared_and_noted_once(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    run = stand_in.start("a", steps=5000)
    at_step(run, 2)
    process = keeper.ensure(stand_in.workspace)
    wait_for(lambda: keeper.status(stand_in.workspace)["live_runs"] == 1)
    ranks = launch.leftovers(run)
    supervisor_of(run).send(signal.SIGKILL)
    notices = stand_in.workspace.keeper_dir / "notices.jsonl"
    wait_for(lambda: read_all(notices), what="the notice")
    wait_for(lambda: not any(rank.alive() for rank in ranks), what="the end of the ranks")
    notice = read_all(notices)[0]
    assert (notice["kind"], notice["run"]) == ("lost", "a")
    assert read_all(run.events)[-1]["event"] == "lost"
    assert status.summary(run)["state"] == "lost"
    process.send(signal.SIGKILL)
    wait_for(lambda: not process.alive())
    keeper.ensure(stand_in.workspace)
    wait_for(lambda: keeper.status(stand_in.workspace)["live_runs"] == 0)
    assert len(read_all(notices)) == 1, "a new keeper does not say it again"
    stand_in.plan(steps=80)
    resuming.resume(run)
    assert ended(run)["state"] == "done"


def test_neither_ends_with_the_other(stand_in: StandIn) -> None:
    process = keeper.ensure(stand_in.workspace)
    run = stand_in.start("a", steps=5000)
    at_step(run, 1)
    process.send(signal.SIGKILL)
    wait_for(lambda: not process.alive())
    before = run.read_state()["step"]
    at_step(run, before + 3)
    process = keeper.ensure(stand_in.workspace)
    control.send(run, "stop")
    assert ended(run)["state"] == "stopped"
    assert process.alive()
    assert not (stand_in.workspace.keeper_dir / "notices.jsonl").read_text()


def test_the_command_line_twin(workspace: Workspace) -> None:
    def ftui(do: str) -> dict:
        command = [sys.executable, "-m", "tui", "--json", "keeper", do]
        return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    assert ftui("status")["running"] is False
    started = ftui("start")
    assert started["running"] and started["pid"] == ftui("start")["pid"]
    assert ftui("stop")["running"] is False


def test_what_a_killed_command_left_half_made_is_removed_in_the_end(workspace: Workspace) -> None:
    old, new = workspace.runs_dir / ".new-1-1", workspace.runs_dir / ".new-2-2"
    for folder in (old, new):
        folder.mkdir()
        (folder / "state.json").write_text("{}")
    os.utime(old, (1, 1))
    keeper.ensure(workspace)
    wait_for(lambda: not old.exists())
    assert new.exists()
