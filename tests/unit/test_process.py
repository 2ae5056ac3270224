"""Who is alive: pids are reused, zombies hold theirs, and a name may hold anything."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from engine import process
from engine.process import ProcessId


def wait_for(condition, timeout: float = 10.0):
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)
    return value


def test_own_process_is_alive_and_survives_json() -> None:
    me = ProcessId.current()
    assert me.pid == os.getpid()
    assert me.alive()
    assert ProcessId.from_json(me.to_json()) == me


@pytest.mark.parametrize("value", [None, 7, "x", {}, {"pid": "a", "start": 1, "boot": ""}, {"pid": 1, "start": 2}])
def test_what_is_no_process_reads_back_as_none(value: object) -> None:
    assert ProcessId.from_json(value) is None


def test_a_reused_pid_and_another_boot_are_not_the_process() -> None:
    me = ProcessId.current()
    assert not ProcessId(me.pid, me.start + 1, me.boot).alive()
    assert not ProcessId(me.pid, me.start, "another-boot").alive()
    assert not ProcessId(me.pid, me.start + 1, me.boot).send(signal.SIGKILL)  # or this test would end here


def test_a_zombie_is_dead_though_its_pid_answers() -> None:
    child = subprocess.Popen(["sleep", "60"])
    known = ProcessId.of(child.pid)
    assert known.alive()
    child.send_signal(signal.SIGKILL)
    wait_for(lambda: (stat := process.read_stat(child.pid)) and stat.state == "Z")
    os.kill(child.pid, 0)  # the pid is still taken
    assert not known.alive()
    child.wait()
    assert not known.alive()
    with pytest.raises(ProcessLookupError):
        ProcessId.of(child.pid)


def test_a_name_with_parentheses_and_spaces_does_not_shift_the_fields(tmp_path: Path) -> None:
    program = tmp_path / "a) Z 1 ("
    shutil.copy("/bin/sleep", program)
    child = subprocess.Popen([program, "60"])
    try:
        wait_for(lambda: b") Z 1 (" in Path(f"/proc/{child.pid}/stat").read_bytes())
        stat = process.read_stat(child.pid)
        assert stat is not None
        assert stat.parent == os.getpid()
        assert stat.state in "SR"
        assert ProcessId.of(child.pid).alive()
    finally:
        child.kill()
        child.wait()


def test_marked_finds_a_process_that_forked_away(tmp_path: Path) -> None:
    env = {**os.environ, "FTUI_CHILD": "mark-of-this-test"}
    subprocess.run(["setsid", "--fork", "sleep", "60"], env=env, check=True)
    found = wait_for(lambda: process.marked("FTUI_CHILD", "mark-of-this-test"))
    assert process.marked("FTUI_CHILD", "mark-of-this") == []
    assert process.end_all(lambda: process.marked("FTUI_CHILD", "mark-of-this-test"), grace=5)
    assert not any(one.alive() for one in found)


def test_end_all_kills_what_ignores_the_signal() -> None:
    code = "import signal, sys, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert child.stdout is not None and child.stdout.readline() == b"up\n"
    target = ProcessId.of(child.pid)
    started = time.monotonic()
    assert process.end_all(lambda: [target] if target.alive() else [], grace=0.3)
    assert 0.3 <= time.monotonic() - started < 3
    assert child.wait() == -signal.SIGKILL
    child.stdout.close()


def test_descendants_are_found_below_below() -> None:
    child = subprocess.Popen(["sh", "-c", "sh -c 'sleep 60; true'; true"], start_new_session=True)
    try:
        found = wait_for(lambda: len(pids := process.descendants(child.pid)) == 2 and pids)
        names = {Path(f"/proc/{pid}/comm").read_text().strip() for pid in found}
        assert names == {"sh", "sleep"}
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def test_end_all_wakes_what_was_stopped() -> None:
    child = subprocess.Popen(["sleep", "60"])
    target = ProcessId.of(child.pid)
    target.send(signal.SIGSTOP)
    wait_for(lambda: (stat := process.read_stat(child.pid)) and stat.state == "T")
    started = time.monotonic()
    assert process.end_all(lambda: [target] if target.alive() else [], grace=30)
    assert time.monotonic() - started < 10
    assert child.wait() == -signal.SIGTERM


def test_a_write_that_fails_names_its_file_and_keeps_the_old_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from engine import files

    def full(_fd: int, _data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "a.json"
    path.write_text("1")
    monkeypatch.setattr(files, "write_all", full)
    with pytest.raises(OSError) as raised:
        files.write_json(path, 2)
    assert raised.value.filename == str(path)
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir() if p.is_file()] == [("a.json", "1")]
