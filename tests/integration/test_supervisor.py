"""Real supervisors, real signals, real sockets; the ranks are a stand-in without torch (see rank_program)."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.errors import FtuiError, GateError, UsageError
from engine.files import read_json
from engine.journal import read_all
from engine.process import ProcessId
from engine.run import control, launch, resuming, status
from engine.workspace import RunFolder
from tests.support.runs import StandIn, at_step, ended, events, supervisor_of, wait_for
from tui.sources.run_source import RunSource


@pytest.fixture
def stand_in(house: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    made = StandIn(house / "ft", monkeypatch)
    yield made
    made.clear()


def gone(*processes: ProcessId | None) -> bool:
    return not any(process is not None and process.alive() for process in processes)


def test_a_run_from_start_to_done(stand_in: StandIn) -> None:
    run = stand_in.start("a", steps=30, save_every=10, step_time=0.06)  # slow enough to be seen running
    supervisor = supervisor_of(run)
    state = wait_for(lambda: (s := run.read_state())["state"] == "running" and s)
    launcher = ProcessId.from_json(state["launcher"])
    assert launcher is not None and launcher.alive()
    assert (state["max_steps"], state["device"], state["attempt"]) == (30, "cpu", 1)
    state = ended(run)
    assert (state["state"], state["step"], state["exit_code"], state["error"]) == ("done", 30, 0, None)
    assert state["last_checkpoint"]["step"] == 30
    assert state["last_checkpoint"]["path"] == "checkpoints/checkpoint-30"
    assert state["loss"] == pytest.approx(0.1)
    wait_for(lambda: gone(supervisor, launcher))
    assert not run.control.exists()
    assert events(run) == [
        "supervisor_started", "launched", "running", "checkpoint", "checkpoint", "checkpoint", "rank_exit", "done",
    ]  # fmt: skip
    row = status.status(run)
    assert row["at_risk"]["steps"] == 0 and row["eta_s"] is None
    assert [e["event"] for e in row["events"]] == events(run)


def test_save_evaluate_and_stop_through_the_socket(stand_in: StandIn) -> None:
    run = stand_in.start("a", steps=5000)
    at_step(run, 3)
    assert oct(run.control.stat().st_mode)[-3:] == "600"
    assert control.send(run, "status")["state"]["run"] == "a"
    first = control.send(run, "save")
    second = control.send(run, "evaluate")
    assert (first["state"], second["id"]) == ("requested", first["id"] + 1)
    wait_for(lambda: run.read_state()["eval_loss"])
    assert [(e["id"], e["do"]) for e in read_all(run.journal) if e["event"] == "request"] == [
        (1, "save"),
        (2, "evaluate"),
    ]
    assert status.at_risk(run)["steps"] >= 0
    control.send(run, "stop")
    state = ended(run)
    assert (state["state"], state["exit_code"]) == ("stopped", 75)
    assert state["last_checkpoint"]["step"] == state["step"]
    with pytest.raises(FtuiError, match="not running") as caught:
        control.send(run, "save")
    assert "ftui resume a" in str(caught.value.fix)


def test_requests_while_the_ranks_load_wait_and_a_stop_then_has_nothing_to_save(stand_in: StandIn) -> None:
    run = stand_in.start("a", steps=5000, load_time=0.5)
    control.send(run, "save")
    assert not run.request.exists()
    wait_for(lambda: run.read_state()["last_checkpoint"])
    assert read_json(run.request)["do"] == "save"
    control.send(run, "stop")
    ended(run)
    other = stand_in.start("b", steps=5000, load_time=60)
    control.send(other, "stop")
    state = ended(other)
    assert (state["state"], state["exit_code"], state["step"]) == ("stopped", 1, 0)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_a_signal_to_the_supervisor_stops_with_a_save(stand_in: StandIn, name: str) -> None:
    run = stand_in.start("a", steps=5000)
    at_step(run, 2)
    supervisor_of(run).send(signal.Signals[name])
    state = ended(run)
    assert (state["state"], state["exit_code"]) == ("stopped", 75)
    assert state["last_checkpoint"]["step"] == state["step"]
    assert "signal" in events(run)


def test_stop_now_does_not_wait_for_a_rank_that_hangs(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    run = stand_in.start("a", steps=5000, child=True)
    at_step(run, 2)
    assert len(launch.leftovers(run)) == 2
    started = time.monotonic()
    control.send(run, "stop_now")
    state = ended(run, timeout=30)
    assert state["state"] == "stopped"
    assert time.monotonic() - started < 20
    assert launch.leftovers(run) == []


def test_a_crash_is_restarted_from_the_newest_checkpoint(stand_in: StandIn) -> None:
    run = stand_in.start("a", steps=30, save_every=5, crash={"1": 12}, how="kill")
    state = ended(run)
    assert (state["state"], state["attempt"], state["restarts"], state["error"]) == ("done", 2, 1, None)
    starts = [event for event in read_all(run.journal) if event["event"] == "start"]
    assert [(e["attempt"], e["step"]) for e in starts] == [(1, 0), (2, 10)]
    restart = next(event for event in read_all(run.events) if event["event"] == "restart")
    assert restart["resumed_from"].endswith("checkpoint-10")
    first_exit = next(event for event in read_all(run.events) if event["event"] == "rank_exit")
    assert first_exit["signal"] == "SIGKILL"


def test_the_error_of_a_crash_is_not_that_of_the_run_that_goes_on(stand_in: StandIn) -> None:
    run = stand_in.start("a", steps=5000, crash={"1": 6})
    assert wait_for(lambda: run.read_state().get("error"))["message"] == "RuntimeError: the stand-in fell over"
    wait_for(lambda: run.read_state()["state"] == "running" and run.read_state()["attempt"] == 2)
    assert run.read_state()["error"] is None
    control.send(run, "stop_now")
    assert ended(run)["state"] == "stopped"


@pytest.mark.parametrize(
    ("crash", "how", "attempts", "message"),
    [
        pytest.param({"1": 12, "2": 12}, "exit", 2, "RuntimeError: the stand-in fell over", id="twice at one step"),
        pytest.param({"1": 12}, "data", 1, "data at 12", id="data error"),
        pytest.param({"1": 6, "2": 11, "3": 16}, "out_of_memory", 2, "out_of_memory at 11", id="cap"),
    ],
)
def test_what_is_not_restarted(stand_in: StandIn, crash: dict, how: str, attempts: int, message: str) -> None:
    run = stand_in.start("a", steps=30, save_every=5, crash=crash, how=how, max_restarts=1)
    state = ended(run)
    assert (state["state"], state["attempt"], state["exit_code"]) == ("failed", attempts, 1)
    assert state["error"]["message"] == message
    assert "Traceback" not in json.dumps(state["error"])
    assert Path(state["error"]["where"]).exists()
    if how == "data":  # it can be resumed once the cause is gone
        stand_in.plan(steps=30, save_every=5)
        again = resuming.resume(run)
        assert ended(run)["state"] == "done"
        assert again.run.read_state()["attempt"] == 2


def test_a_killed_supervisor_is_lost_and_its_ranks_save_and_end(stand_in: StandIn) -> None:
    run = stand_in.start("a", steps=5000)
    at_step(run, 3)
    state = run.read_state()
    launcher = ProcessId.from_json(state["launcher"])
    supervisor_of(run).send(signal.SIGKILL)
    wait_for(lambda: status.summary(run)["state"] == "lost")
    assert run.read_state()["state"] == "running"  # "lost" is never written
    with pytest.raises(FtuiError, match="lost"):
        control.send(run, "save")
    wait_for(lambda: gone(launcher))
    assert launch.leftovers(run) == []
    stand_in.plan(steps=60, save_every=1000)
    resumed = resuming.resume(run)
    state = ended(run)
    assert (state["state"], state["attempt"]) == ("done", 2)
    assert resumed.pid == state["supervisor"]["pid"]
    assert "resumed" in events(run)


def test_a_lost_run_whose_rank_hangs_is_cleared_before_the_resume(stand_in: StandIn, monkeypatch) -> None:
    monkeypatch.setattr(launch, "REAP_GRACE_S", 0.5)
    run = stand_in.start("a", steps=5000, save_every=2, child=True)
    at_step(run, 5)
    supervisor_of(run).send(signal.SIGKILL)
    wait_for(lambda: status.summary(run)["state"] == "lost")
    wait_for(lambda: len(launch.leftovers(run)) == 1)
    launch.reap(run, grace=0.3)
    assert launch.leftovers(run) == []


def test_resume_refuses_what_makes_no_sense(stand_in: StandIn) -> None:
    run = stand_in.start("a", steps=5000, save_every=1000)
    at_step(run, 1)
    with pytest.raises(UsageError, match="already"):
        resuming.resume(run)
    control.send(run, "stop_now")
    ended(run)
    for checkpoint in run.checkpoints.iterdir():
        (checkpoint / "MANIFEST.json").unlink()
    with pytest.raises(GateError, match="no complete checkpoint") as caught:
        resuming.resume(run)
    assert caught.value.exit_code == 4 and "ftui run" in str(caught.value.fix)
    done = stand_in.start("b", steps=2)
    ended(done)
    with pytest.raises(UsageError, match="done"):
        resuming.resume(done)


def test_a_resumed_run_begins_with_the_figures_of_its_checkpoint(stand_in: StandIn) -> None:
    """Not with those of a step that was lost, and not with none: the list, the status and the screen say the same."""
    run = stand_in.start("a", max_restarts=0, steps=5000, save_every=4, step_time=0.1, crash={"1": 11})
    state = ended(run)
    saved = state["last_checkpoint"]["step"]
    assert (state["step"], saved) == (10, 8) and 0.1 < status.status(run)["at_risk"]["seconds"] < 1.0
    stand_in.plan(steps=5000, load_time=30)
    resuming.resume(run)
    row, full = status.summary(run), status.status(run)
    assert (row["step"], row["loss"]) == (saved, 3.0 / saved)
    assert full["loss"] == row["loss"] == RunSource(run).poll().numbers.loss
    assert full["at_risk"] == {"steps": 0, "seconds": 0.0, "money": None}
    earlier = run.read_state()["earlier_s"]
    assert earlier == pytest.approx(state["ended"] - state["started"])
    control.send(run, "stop")
    assert ended(run)["earlier_s"] == earlier


def test_a_damaged_checkpoint_is_skipped_and_named(stand_in: StandIn) -> None:
    run = stand_in.start("a", steps=5000, save_every=4)
    at_step(run, 9)
    control.send(run, "stop")
    last = ended(run)["last_checkpoint"]["step"]
    (run.checkpoints / f"checkpoint-{last}" / "optimizer.pt").write_text("short")
    stand_in.plan(steps=last + 2)
    resuming.resume(run)
    assert ended(run)["state"] == "done"
    resumed = next(event for event in read_all(run.events) if event["event"] == "resumed")
    assert not resumed["resumed_from"].endswith(f"-{last}")
    assert any(f"checkpoint-{last}" in text and "optimizer.pt" in text for text in resumed["skipped"])


def test_a_killed_launcher_is_a_crash_though_its_ranks_saved_and_ended_in_order(stand_in: StandIn) -> None:
    script = Path(stand_in.python)
    script.write_text(script.read_text().replace("exec ", "") + "exit $?\n")  # the ranks are now below a launcher
    run = stand_in.start("a", steps=60)
    at_step(run, 5)
    launcher = ProcessId.from_json(run.read_state()["launcher"])
    assert launcher is not None and len(launch.leftovers(run)) == 2
    launcher.send(signal.SIGKILL)
    state = ended(run)
    assert (state["state"], state["attempt"]) == ("done", 2)
    ends = [(event["outcome"], event["saved_step"]) for event in read_all(run.journal) if event["event"] == "end"]
    assert ends[0][0] == "stopped" and ends[1] == ("done", 60)
    restart = next(event for event in read_all(run.events) if event["event"] == "restart")
    assert restart["resumed_from"].endswith(f"-{ends[0][1]}")


def test_of_two_resumes_at_once_exactly_one_wins(stand_in: StandIn) -> None:
    run = stand_in.start("a", steps=5000)
    at_step(run, 2)
    control.send(run, "stop")
    ended(run)
    code = (
        "import sys\nfrom pathlib import Path\nfrom engine.errors import FtuiError\nfrom engine.run import resuming\n"
        "from engine.workspace import RunFolder\n"
        "try:\n    print('won', resuming.resume(RunFolder(Path(sys.argv[1]))).pid)\n"
        "except FtuiError as error:\n    print(error.kind, error.exit_code)\n"
    )
    both = [
        subprocess.Popen([sys.executable, "-c", code, str(run.path)], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    said = sorted(process.communicate(timeout=60)[0].strip() for process in both)
    assert said[0] == "already_running 2"
    assert said[1] == f"won {supervisor_of(run).pid}"
    control.send(run, "stop")
    assert ended(run)["attempt"] == 2


def test_the_session_of_the_starter_may_end(stand_in: StandIn) -> None:
    stand_in.plan(steps=5000)
    run = stand_in.folder("a")
    code = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom engine.files import Lock\n"
        "from engine.run import launch\nfrom engine.run.gpus import Placement\nfrom engine.workspace import RunFolder\n"
        "run = RunFolder(Path(sys.argv[1]))\nlock = Lock(run.lock)\nlock.acquire()\n"
        "launch.supervise(run, lock, Placement((), 1, ()), python=sys.argv[2], max_restarts=0)\n"
        "os.killpg(0, signal.SIGHUP)\n"
    )
    starter = subprocess.run([sys.executable, "-c", code, str(run.path), stand_in.python], start_new_session=True)
    assert starter.returncode == -signal.SIGHUP
    at_step(run, 5)
    assert status.is_alive(run)
    control.send(run, "stop")
    assert ended(run)["state"] == "stopped"


def test_a_training_python_that_is_not_there_fails_at_once(stand_in: StandIn) -> None:
    stand_in.python = "/nowhere/python"
    with pytest.raises(FtuiError, match="cannot be started") as caught:
        stand_in.start("a")
    assert "FTUI_PYTHON" in str(caught.value.fix)
    run = RunFolder(stand_in.workspace.runs_dir / "a")
    assert status.summary(run)["state"] == "failed"
    assert run.read_state()["error"]["where"] == "/nowhere/python"


def test_a_starter_that_dies_leaves_a_lost_run_and_not_a_live_one(stand_in: StandIn) -> None:
    stand_in.plan()
    run = stand_in.folder("a")
    child = subprocess.Popen(["sleep", "60"])
    state = {**run.read_state(), "supervisor": ProcessId.of(child.pid).to_json()}
    run.state.write_text(json.dumps(state))
    assert status.summary(run)["state"] == "starting"
    child.kill()
    child.wait()
    assert status.summary(run)["state"] == "lost"


def test_a_long_path_gets_a_short_socket(stand_in: StandIn) -> None:
    run = stand_in.start("a" + "x" * 90, steps=5000)
    state = wait_for(lambda: (s := run.read_state())["control"] and s)
    assert len(os.fsencode(run.control)) > 100 > len(state["control"])
    assert state["control"].startswith(os.environ["XDG_RUNTIME_DIR"])
    at_step(run, 1)
    control.send(run, "stop")
    ended(run)
    wait_for(lambda: not Path(state["control"]).exists())


def test_clients_that_stall_do_not_stall_the_run(stand_in: StandIn) -> None:
    run = stand_in.start("a", steps=5000)
    at_step(run, 1)
    stalled = [socket.socket(socket.AF_UNIX) for _ in range(3)]
    for client in stalled:
        client.connect(str(run.control))
        client.sendall(b'{"do": "sta')
    before = run.read_state()["step"]
    assert control.send(run, "status", timeout=3)["ok"]
    wait_for(lambda: run.read_state()["step"] > before + 5)
    for client in stalled:
        client.close()
    control.send(run, "stop")
    ended(run)


def test_two_runs_at_once_do_not_meet(stand_in: StandIn) -> None:
    runs = [stand_in.start(name, steps=40) for name in ("a", "b")]
    threads = [threading.Thread(target=ended, args=(run,)) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for run in runs:
        assert run.read_state()["state"] == "done"
        assert [event["step"] for event in read_all(run.journal) if event["event"] == "log"] == list(range(1, 41))


def test_a_full_disk_does_not_end_the_supervisor(house: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = house / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("cannot mount a small disk here")
    stand_in = StandIn(disk / "ft", monkeypatch)
    try:
        run = stand_in.start("a", steps=5000)
        at_step(run, 2)
        supervisor = supervisor_of(run)
        for _ in range(4):  # a file that was being replaced gives a page back
            with open(disk / "ballast", "ab", buffering=0) as file, pytest.raises(OSError, match="space"):
                while True:
                    file.write(b"x" * 4096)
            time.sleep(0.2)
        before = run.read_state()
        time.sleep(2)
        assert supervisor.alive() and run.read_state() == before, "the old state stays whole when no new one fits"
        assert control.send(run, "status")["state"]["state"] == "running"
        (disk / "ballast").unlink()
        at_step(run, before["step"] + 20)
        control.send(run, "stop")
        state = ended(run)
        assert (state["state"], state["last_checkpoint"]["step"]) == ("stopped", state["step"])
    finally:
        stand_in.clear()
        wait_for(lambda: subprocess.run(["umount", disk], capture_output=True).returncode == 0)


def test_a_state_file_that_cannot_be_written_is_said_once(stand_in: StandIn) -> None:
    run = stand_in.start("a", steps=5000)
    at_step(run, 2)
    run.state.unlink()
    run.state.mkdir()
    time.sleep(1.2)
    run.state.rmdir()
    wait_for(lambda: run.read_state().get("state") == "running")
    assert (run.logs / "supervisor.log").read_text().count("state.json not written") == 1
    control.send(run, "stop")
    assert ended(run)["state"] == "stopped"


def test_a_supervisor_by_hand_does_not_start_an_ended_run_again(stand_in: StandIn) -> None:
    run = stand_in.start("a", steps=2)
    before = ended(run)
    wait_for(lambda: gone(supervisor_of(run)))
    done = subprocess.run([sys.executable, "-m", "engine.run.supervisor", str(run.path)], timeout=30)
    assert done.returncode == 2
    assert run.read_state() == before
