"""Programs that outlive their starter: nobody's child, no terminal, and their first error is the starter's."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from engine.errors import FtuiError
from engine.files import Lock
from engine.process import ProcessId, read_stat
from engine.process.daemon import READY_FD, daemonize, own_environment

READY = "from engine.process.daemon import report_ready, report_failure\n"


def daemon(code: str, log: Path, **more) -> ProcessId:
    return daemonize([sys.executable, "-c", READY + code], name="the test's program", log=log, **more)


def end(process: ProcessId) -> None:
    assert process.send(signal.SIGKILL)
    while process.alive():
        time.sleep(0.01)


def test_it_is_nobodys_child_and_has_no_terminal(tmp_path: Path) -> None:
    log = tmp_path / "log"
    code = (
        "import os, sys\nprint(os.readlink('/proc/self/fd/0'), sorted(os.listdir('/proc/self/fd')))\n"
        f"print({READY_FD!r} in os.environ, flush=True)\n"
        f"report_ready()\nprint({READY_FD!r} in os.environ, sorted(os.listdir('/proc/self/fd')), flush=True)\n"
        "import time; time.sleep(60)"
    )
    process = daemon(code, log)
    try:
        stat = read_stat(process.pid)
        assert stat is not None
        assert stat.parent != os.getpid()
        assert stat.session not in (os.getsid(0), process.pid)  # not a leader: it can never get a terminal
        while len(lines := log.read_text().splitlines()) < 3:
            time.sleep(0.01)
        assert lines[0].startswith("/dev/null")
        assert lines[1] == "True"
        assert lines[2].startswith("False"), "the report closes the pipe and forgets its number"
    finally:
        end(process)


def test_a_folder_of_the_users_does_not_shadow_ours(tmp_path: Path) -> None:
    trap, harmless = tmp_path / "project", tmp_path / "plugins"
    (trap / "engine").mkdir(parents=True)
    (trap / "engine" / "__init__.py").write_text("raise SystemExit('shadowed')")
    harmless.mkdir()
    given = {**os.environ, "PYTHONPATH": os.pathsep.join([".", str(trap), str(harmless)])}
    env = own_environment(given)
    assert env["PYTHONPATH"] == str(harmless)
    end(daemon("report_ready()\nimport time; time.sleep(60)", tmp_path / "log", env=env, cwd=trap))


def test_an_error_it_reports_is_the_starters_error(tmp_path: Path) -> None:
    code = (
        "from engine.errors import UsageError\n"
        "report_failure(UsageError('no such port', where='here', fix='take another', kind='port'))"
    )
    with pytest.raises(FtuiError) as caught:
        daemon(code, tmp_path / "log")
    error = caught.value
    assert (error.what, error.where, error.fix, error.kind, error.exit_code) == (
        "no such port", "here", "take another", "port", 2,
    )  # fmt: skip


def test_one_that_dies_first_is_explained_by_its_log(tmp_path: Path) -> None:
    with pytest.raises(FtuiError) as caught:
        daemon("raise SystemExit('the disk is on fire')", tmp_path / "log")
    assert "the disk is on fire" in caught.value.what
    assert caught.value.where == str(tmp_path / "log")


def test_one_that_is_never_ready_is_killed(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    with pytest.raises(FtuiError, match="not ready"):
        daemon(
            f"import os, time; open({str(pid_file)!r}, 'w').write(str(os.getpid())); time.sleep(60)",
            tmp_path / "log",
            timeout=1.5,
        )
    deadline = time.monotonic() + 5
    while (stat := read_stat(int(pid_file.read_text()))) is not None and not stat.dead:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FtuiError, match="nothing-here"):
        daemonize([str(tmp_path / "nothing-here")], name="it", log=tmp_path / "log")


def test_it_goes_on_holding_a_lock_that_it_was_given(tmp_path: Path) -> None:
    lock = Lock(tmp_path / "lock")
    assert lock.acquire()
    process = daemon("report_ready()\nimport time; time.sleep(60)", tmp_path / "log", pass_fds=[lock.fileno()])
    lock.release()
    try:
        assert not Lock(tmp_path / "lock").acquire()
    finally:
        end(process)
    again = Lock(tmp_path / "lock")
    assert again.acquire()
    again.release()
