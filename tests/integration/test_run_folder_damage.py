"""What a run and its readers make of a run folder that is copied, moved, deleted or emptied under them."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine import journal
from engine.errors import FtuiError
from engine.files import write_json
from engine.run import control, launch, resuming, status
from engine.workspace import RunFolder
from tests.support.runs import StandIn, at_step, ended, events, supervisor_of, wait_for


@pytest.fixture
def stand_in(house: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    made = StandIn(house / "ft", monkeypatch)
    yield made
    made.clear()


def test_a_copy_of_a_running_run_is_lost_and_its_commands_do_not_reach_the_original(stand_in: StandIn) -> None:
    run = stand_in.start("a", steps=2000, save_every=5)
    at_step(run, 10)
    copy = RunFolder(run.path.with_name("b"))
    shutil.copytree(run.path, copy.path, ignore=shutil.ignore_patterns("control.sock"))
    assert status.summary(copy)["state"] == "lost"
    for request in ("stop", "stop_now", "save"):
        with pytest.raises(FtuiError) as caught:
            control.send(copy, request)
        assert caught.value.kind == "not_running"
    assert status.summary(run)["state"] in status.LIVE
    linked = RunFolder(stand_in.workspace.root / "link")
    linked.path.symlink_to(run.path)
    assert control.send(linked, "status")["ok"], "another name of the same folder is no copy"
    control.send(run, "stop_now")
    ended(run)
    control.send(resuming.resume(copy).run, "stop_now")  # from its own checkpoints
    ended(copy)


def test_a_run_whose_folder_goes_away_ends_and_leaves_no_ghost(stand_in: StandIn) -> None:
    moved = stand_in.start("moved", steps=5000, save_every=5)
    deleted = stand_in.start("deleted", steps=5000, save_every=5)
    at_step(moved, 6)
    at_step(deleted, 6)
    supervisors = [supervisor_of(moved), supervisor_of(deleted)]
    elsewhere = RunFolder(moved.path.with_name("elsewhere"))
    moved.path.rename(elsewhere.path)
    deleted.path.rename(deleted.path.with_name(".doomed"))  # at once, as no rmtree is
    shutil.rmtree(deleted.path.with_name(".doomed"))
    heir = stand_in.start("moved", steps=5000)  # another run takes the name at once
    wait_for(lambda: not any(process.alive() for process in supervisors), 30, "the ends of both")
    assert not deleted.path.exists()
    state = elsewhere.read_state()
    assert (state["state"], state["error"]["kind"]) == ("failed", "moved")
    assert launch.leftovers(deleted) == []
    before = heir.read_state()["step"]
    at_step(heir, before + 5)
    assert heir.read_state()["attempt"] == 1
    assert control.send(heir, "stop_now")["ok"], "its socket was not taken away"
    ended(heir)
    control.send(resuming.resume(elsewhere).run, "stop_now")
    ended(elsewhere)


def test_files_deleted_while_the_run_goes_on_come_back(stand_in: StandIn) -> None:
    run = stand_in.start("a", steps=5000)
    at_step(run, 3)
    for path in (run.journal, run.events, run.hardware, run.state, run.control):
        path.unlink()
    run.control.write_text("in the way")
    before = wait_for(lambda: run.read_state().get("step"))
    at_step(run, before + 3)
    assert wait_for(lambda: run.control.read_text() and _answers(run), 15, "a new socket")
    assert control.send(run, "stop")["ok"]
    assert ended(run)["exit_code"] == 75
    assert events(run)[-1] == "stopped"
    assert (journal.last(run.journal) or {})["event"] == "end"


def test_an_evaluation_without_data_is_refused(stand_in: StandIn) -> None:
    run = stand_in.start("a", steps=5000)
    at_step(run, 2)
    for recipe, refused in (({"test_size": 0.0}, True), ({"test_size": 0.1}, False), ({}, False)):
        write_json(run.resolved, {"format": 1, "recipe": {"eval_dataset_path": None, **recipe}})
        if refused:
            with pytest.raises(FtuiError, match="no data to evaluate"):
                control.send(run, "evaluate")
        else:
            assert control.send(run, "evaluate")["ok"]
    control.send(run, "stop_now")
    ended(run)


def _answers(run: RunFolder) -> bool:
    try:
        return bool(control.send(run, "status")["ok"])
    except FtuiError:
        return False


def test_a_run_that_ends_on_a_full_disk_says_so(house: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = house / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], capture_output=True).returncode != 0:
        pytest.skip("cannot mount a small disk here")
    stand_in = StandIn(disk / "ft", monkeypatch)
    try:
        run = stand_in.start("a", steps=5000, max_restarts=0, crash={"1": 40})
        at_step(run, 2)
        supervisor = supervisor_of(run)
        for _ in range(8):  # a file that was being replaced gives a page back
            with open(disk / "ballast", "ab", buffering=0) as file, pytest.raises(OSError, match="space"):
                while True:
                    file.write(b"x" * 4096)
            time.sleep(0.1)
        wait_for(lambda: not supervisor.alive(), what="the end of the supervisor")
        state = run.read_state()
        assert (state["state"], state["error"]["kind"]) == ("failed", "disk_full")
        assert "resume a" in state["error"]["fix"]
    finally:
        stand_in.clear()
        wait_for(lambda: subprocess.run(["umount", disk], capture_output=True).returncode == 0)
