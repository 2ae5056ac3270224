"""The supervisor's parts by themselves: progress, requests, explanations of a failure, GPU events."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.files import read_json, write_json
from engine.journal import JournalWriter, read_all
from engine.process.child import Exit
from engine.run import failure, progress, sampler
from engine.run.progress import Progress
from engine.run.requests import Requests
from engine.run.sampler import Sampler
from engine.workspace import RunFolder


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "r")
    folder.logs.mkdir(parents=True)
    return folder


# Progress


def test_progress_from_start_to_end(run: RunFolder) -> None:
    seen = Progress(run, attempt=2)
    seen.take(
        [{"event": "log", "attempt": 1, "step": 900, "loss": 9.0}, {"event": "end", "attempt": 1, "outcome": "failed"}]
    )
    assert seen.take_changes() == {} and seen.outcome is None
    seen.take([{"event": "start", "attempt": 2, "step": 40, "max_steps": 100}])
    assert seen.take_changes() == {"step": 40, "state": "running", "phase": "train", "max_steps": 100}
    seen.take(
        [
            {
                "event": "log",
                "attempt": 2,
                "step": 50,
                "loss": 1.5,
                "epoch": 0.5,
                "tokens_per_s": 10.0,
                "step_time_s": 2.0,
            },
            {"event": "eval", "attempt": 2, "step": 50, "eval_loss": 1.7},
            {"event": "save_begin", "attempt": 2, "step": 50},
        ]
    )
    changes = seen.take_changes()
    assert changes["eta_s"] == 100.0  # one line has no pace yet: the step's own time counts
    assert (changes["state"], changes["phase"], changes["eval_loss"], changes["loss"]) == ("saving", "save", 1.7, 1.5)
    path = str(run.checkpoints / "checkpoint-50")
    seen.take([{"event": "save", "attempt": 2, "step": 50, "path": path, "seconds": 2.1, "time": 5.0}])
    changes = seen.take_changes()
    assert changes["last_checkpoint"] == {"step": 50, "path": "checkpoints/checkpoint-50", "time": 5.0}
    assert (changes["state"], changes["phase"]) == ("running", "train")
    assert seen.news == [{"event": "checkpoint", "step": 50, "seconds": 2.1}]
    seen.take([{"event": "end", "attempt": 2, "step": 60, "outcome": "stopped", "saved_step": 60}])
    assert (seen.outcome, seen.saved_step, seen.step) == ("stopped", 60, 60)


def test_the_remaining_time_follows_our_own_clock_not_the_journals(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    seen = Progress(run, attempt=1)
    seen.take([{"event": "start", "step": 0, "max_steps": 100}])
    wall = 5000.0
    for step in range(1, 41):
        clock[0] += 3.0
        wall -= 100.0  # somebody sets the clock back, again and again
        seen.take([{"event": "log", "step": step, "time": wall, "step_time_s": 1.0}])
    assert seen.take_changes()["eta_s"] == pytest.approx(180.0)  # evaluations between the steps are in the pace


def test_a_loss_that_is_no_number_any_more_is_not_the_last_good_one(run: RunFolder) -> None:
    seen = Progress(run, attempt=1)
    seen.take([{"event": "log", "step": 1, "loss": 2.0}, {"event": "log", "step": 2, "loss": None}])
    assert seen.take_changes()["loss"] is None


def test_the_time_that_would_be_lost_is_that_since_the_checkpoint_by_the_journal(run: RunFolder) -> None:
    seen = Progress(run, attempt=2)
    own = {"attempt": 2}
    seen.take([{"event": "phase", "time": 50.0, **own, "phase": "load"}])
    assert "unsaved_s" not in seen.changes
    seen.take(
        [{"event": "start", "time": 100.0, "step": 40, **own}, {"event": "log", "time": 130.0, "step": 50, **own}]
    )
    assert seen.changes["unsaved_s"] == 30.0
    seen.take([{"event": "save", "time": 141.0, "step": 52, "path": "checkpoints/checkpoint-52", **own}])
    assert (seen.changes["step"], seen.changes["unsaved_s"]) == (52, 0.0)  # between two lines of the log
    assert seen.changes["last_checkpoint"]["step"] == 52
    seen.take([{"event": "eval", "time": 150.5, "step": 52, "eval_loss": 1.0, **own}])
    assert seen.changes["unsaved_s"] == 9.5
    seen.take([{"event": "log", "time": 0.0, "step": 53, **own}])  # the clock was set back
    assert seen.changes["unsaved_s"] == 0.0


def test_an_evaluation_that_came_to_nothing_ends_with_the_next_step(run: RunFolder) -> None:
    seen = Progress(run, attempt=1)
    seen.take([{"event": "start", "step": 0}, {"event": "request", "step": 4, "id": 1, "do": "evaluate"}])
    seen.take([{"event": "log", "step": 4, "loss": 2.0}])
    assert seen.evaluating and seen.take_changes()["phase"] == "evaluate"
    seen.take([{"event": "log", "step": 5, "loss": 2.0}])
    assert not seen.evaluating and seen.take_changes()["phase"] == "train"


@pytest.mark.parametrize(
    "event",
    [{}, {"event": None}, {"event": "log"}, {"event": "log", "step": "x"}, {"event": "unheard"}, {"event": "save"}],
)
def test_odd_events_do_no_harm(run: RunFolder, event: dict[str, Any]) -> None:
    Progress(run, attempt=1).take([event])


# Requests


def test_requests_go_out_one_at_a_time_with_rising_ids(run: RunFolder) -> None:
    requests = Requests(run)
    assert [requests.add("save"), requests.add("evaluate"), requests.add("save")] == [1, 2, 1]
    requests.send_next(answered=0)
    assert read_json(run.request) == {"format": 1, "id": 1, "do": "save"}
    requests.send_next(answered=0)
    assert read_json(run.request)["id"] == 1, "the ranks have not seen it yet"
    requests.send_next(answered=1)
    assert read_json(run.request) == {"format": 1, "id": 2, "do": "evaluate"}
    requests.add("save")
    assert requests.add("stop", first=True) == 4
    requests.send_next(answered=1)
    assert read_json(run.request) == {"format": 1, "id": 4, "do": "stop"}, "a stop waits for nobody"


def test_ids_go_on_rising_in_the_next_attempt_and_nothing_old_is_left(run: RunFolder) -> None:
    JournalWriter(run.journal).append("request", id=7, do="save")
    write_json(run.request, {"format": 1, "id": 9, "do": "stop"})
    requests = Requests(run)
    requests.reset()
    assert not run.request.exists()
    assert requests.add("save") == 10


def test_a_request_that_cannot_be_written_is_tried_again(run: RunFolder) -> None:
    run.request.mkdir()
    requests = Requests(run)
    requests.add("save")
    requests.send_next(answered=0)
    run.request.rmdir()
    requests.send_next(answered=0)
    assert read_json(run.request)["do"] == "save"


# Failures


def report(run: RunFolder, rank: int, **fields: Any) -> None:
    write_json(run.logs / f"rank-{rank}.error.json", {"format": 1, "attempt": 1, "time": 1.0, "exit_code": 1, **fields})


def test_the_first_rank_that_failed_explains_it(run: RunFolder) -> None:
    report(run, 0, time=20.0, kind="crash", message="the other side closed the connection")
    report(run, 1, time=10.0, kind="out_of_memory", message="CUDA out of memory", fix="use a smaller batch")
    report(run, 2, time=1.0, attempt=9, kind="crash", message="another attempt")
    (run.logs / "rank-3.error.json").write_text("{torn")
    error = failure.explain(run, 1, Exit(1, None, 5.0))
    assert (error["kind"], error["message"], error["fix"]) == (
        "out_of_memory",
        "CUDA out of memory",
        "use a smaller batch",
    )
    assert not failure.is_final(error)


@pytest.mark.parametrize(
    ("log", "ended", "message"),
    [
        ("Traceback (most recent call last):\n  File 'x'\nModuleNotFoundError: No module named 'trl'\n[E] end\n",
         Exit(1, None, 1.0), "ModuleNotFoundError: No module named 'trl'"),
        ("  exitcode  : -9 (pid: 77)\n", Exit(1, None, 1.0), "a training process was ended by SIGKILL"),
        ("", Exit(None, 11, 1.0), "a training process was ended by SIGSEGV"),
        ("all is well\n", Exit(3, None, 1.0), "training ended with exit code 3 and gave no reason"),
    ],
)  # fmt: skip
def test_without_a_report_the_launchers_log_explains_it(run: RunFolder, log: str, ended: Exit, message: str) -> None:
    (run.logs / "launcher.log").write_text(log)
    error = failure.explain(run, 1, ended)
    assert error["message"] == message
    assert error["where"] == str(run.logs / "launcher.log")
    assert ("dmesg" in error["fix"]) == ("SIGKILL" in message)


def test_an_environment_without_torch_is_named_and_not_tried_again(run: RunFolder) -> None:
    with open(run.logs / "launcher.log", "w") as log:  # a bare interpreter says it itself
        subprocess.run([sys.executable, "-I", "-S", "-m", "torch.distributed.run"], stderr=log)
    error = failure.explain(run, 1, Exit(1, None, 0.1))
    assert error["kind"] == "environment" and "FTUI_PYTHON" in error["fix"]
    assert failure.is_final(error)


@pytest.mark.parametrize(
    ("error", "final"),
    [
        ({"kind": "data", "exit_code": 1}, True),
        ({"kind": "conflict", "exit_code": 2}, True),
        ({"kind": "x", "exit_code": 3}, True),
        ({"kind": "crash", "exit_code": 1}, False),
    ],
)
def test_what_would_come_out_the_same_is_not_tried_again(error: dict[str, Any], final: bool) -> None:
    assert failure.is_final(error) is final


# Hardware


def gpu(state: str = "ok", **fields: Any) -> list[dict[str, Any]]:
    return [{"index": 3, "uuid": "GPU-3", "state": state, "xid": None, "ecc_errors": 0, **fields}]


def test_gpu_events_are_told_once(run: RunFolder) -> None:
    seen = Sampler(run)
    story = [
        gpu(),
        gpu(),
        gpu(xid=79),
        gpu("lost"),
        gpu("lost"),
        gpu(),
        gpu(ecc_errors=2),
        gpu(ecc_errors=2),
        gpu(xid=31),
    ]
    told = [[event["what"] for event in seen.compare(samples)] for samples in story]
    assert told == [[], [], ["xid"], ["lost"], [], ["back"], ["ecc"], [], ["xid"]]


def test_a_sample_a_second_and_the_file_is_rotated(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "ROTATE_AT", 500)
    seen = Sampler(run)
    for _ in range(3):
        seen.tick(os.getpid())
        seen.tick(os.getpid())  # not due
        seen._next = 0.0
    seen.close()
    old, new = read_all(run.hardware.with_name("hardware.jsonl.1")), read_all(run.hardware)
    assert len(old) + len(new) == 3 and old and new
    assert new[-1]["host"]["memory_ranks"] > 0
    assert new[-1]["disk"]["free"] > 0


def test_hardware_that_fails_in_any_way_is_no_reason_to_stop(run: RunFolder, caplog: pytest.LogCaptureFixture) -> None:
    run.hardware.mkdir()  # cannot be opened as a file
    seen = Sampler(run)
    for _ in range(3):
        assert seen.tick(None) == []
        seen._next = 0.0
    assert len(caplog.records) == 1, "said once, not each second"
    seen.close()
