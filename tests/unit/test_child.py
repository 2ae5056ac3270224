"""Supervised children: real processes that ignore TERM, leave grandchildren, fill logs, fall ill and crash."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from engine.process import ProcessId, marked, read_stat
from engine.process.child import Child, Exit, Health, Restart, http_probe


def python(code: str) -> list[str]:
    return [sys.executable, "-S", "-c", code]


def poll_until(child: Child, condition, timeout: float = 10.0) -> list[Exit]:
    """Poll the child until the condition holds; the lives that ended meanwhile."""
    ended = []
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        if (result := child.poll()) is not None:
            ended.append(result)
        time.sleep(0.01)
    return ended


def end(child: Child) -> None:
    child.stop(grace=0)
    child.wait(5)
    assert not child.running


def test_environment_folder_log_and_exit_code(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "child.log"
    code = "import os, sys; print(os.environ['X'], os.getcwd()); print('bad', file=sys.stderr); sys.exit(7)"
    child = Child(python(code), env={"X": "value", "PATH": os.environ["PATH"]}, cwd=tmp_path, log=log)
    child.start()
    ended = child.wait(10)
    assert ended is not None and (ended.code, ended.signal, ended.ok) == (7, None, False)
    assert sorted(log.read_text().splitlines()) == ["bad", f"value {tmp_path}"]
    assert not child.running and not child.restarting


def test_group_and_session_are_its_own() -> None:
    for own_session in (False, True):
        child = Child(["sleep", "60"], new_session=own_session)
        pid = child.start().pid
        stat = read_stat(pid)
        assert stat is not None
        assert stat.group == pid
        assert stat.session == (pid if own_session else os.getsid(0))
        end(child)


def test_a_program_that_is_not_there_is_an_error_at_the_start(tmp_path: Path) -> None:
    child = Child([str(tmp_path / "nothing")])
    with pytest.raises(FileNotFoundError):
        child.start()
    assert not child.running


def test_stop_kills_what_ignores_term_after_the_grace(tmp_path: Path) -> None:
    log = tmp_path / "log"
    child = Child(
        python("import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"),
        log=log,
    )
    child.start()
    poll_until(child, lambda: log.read_text() == "up\n")
    started = time.monotonic()
    child.stop(grace=0.4)
    ended = child.wait(10)
    assert ended is not None and ended.signal_name == "SIGKILL"
    assert 0.4 <= time.monotonic() - started < 3


@pytest.mark.parametrize("how", ["stopped", "crashed"])
def test_no_grandchild_is_left_in_whatever_session(tmp_path: Path, how: str) -> None:
    log = tmp_path / "log"
    code = (
        "import subprocess, sys, time\n"
        "stubborn = 'import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(60)'\n"
        "subprocess.Popen([sys.executable, '-S', '-c', stubborn], start_new_session=True)\n"
        "subprocess.run(['setsid', '--fork', 'sleep', '60'])\n"
        "print('up', flush=True)\n"
        f"{'time.sleep(60)' if how == 'stopped' else 'sys.exit(3)'}"
    )
    child = Child(python(code), log=log, grace=0.5)
    child.start()
    poll_until(child, lambda: "up" in log.read_text())
    assert len(child.strays()) == 2
    if how == "stopped":
        child.stop()
    ended = child.wait(10)
    assert ended is not None
    assert (ended.signal_name, ended.code) == (("SIGTERM", None) if how == "stopped" else (None, 3))
    assert marked(*child.mark) == []


def test_the_child_ends_with_its_supervisor(tmp_path: Path) -> None:
    code = (
        "import sys, time\nfrom engine.process.child import Child\n"
        "child = Child(['sleep', '60'])\nprint(child.start().pid, flush=True)\ntime.sleep(60)"
    )
    supervisor = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert supervisor.stdout is not None
    sleeping = ProcessId.of(int(supervisor.stdout.readline()))
    assert sleeping.alive()
    supervisor.kill()
    supervisor.wait()
    supervisor.stdout.close()
    deadline = time.monotonic() + 5
    while sleeping.alive():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_the_log_is_rotated_while_the_child_writes_on(tmp_path: Path) -> None:
    log = tmp_path / "log"
    code = "import sys, time\nfor n in range(400): print(f'{n:05d}' + 'x' * 94, flush=True); time.sleep(0.001)"
    child = Child(python(code), log=log, log_limit=10_000)
    child.start()
    assert poll_until(child, lambda: not child.running)[0].ok
    old = log.with_name("log.1")
    assert old.stat().st_size > 10_000
    assert log.stat().st_size < 40_000
    lines = log.read_text().splitlines()
    assert all(len(line) == 99 for line in lines), "no hole and no torn line after the cut"


def test_restart_backs_off_and_gives_up() -> None:
    child = Child(python("import sys; sys.exit(1)"), restart=Restart(2, first=0.1, longest=0.15))
    started = time.monotonic()
    child.start()
    ended = poll_until(child, lambda: not child.running and not child.restarting)
    assert [one.code for one in ended] == [1, 1, 1]
    assert child.starts == 3
    assert time.monotonic() - started >= 0.25


def test_stop_cancels_a_waiting_restart() -> None:
    child = Child(python("import sys; sys.exit(1)"), restart=Restart(5, first=30))
    child.start()
    poll_until(child, lambda: child.restarting)
    child.stop()
    assert not child.restarting
    assert child.poll() is None and child.starts == 1


def test_back_off_doubles_up_to_its_longest_and_a_long_life_is_forgiven() -> None:
    restart = Restart(4, first=1, longest=3, forgive_after=100)
    assert [restart.next_delay(1) for _ in range(5)] == [1, 2, 3, 3, None]
    assert restart.next_delay(101) == 1


def test_an_unhealthy_child_is_ended_and_started_again(tmp_path: Path) -> None:
    answer = [True]
    child = Child(
        ["sleep", "60"],
        health=Health(lambda: answer[0], every=0.05, start_timeout=5, failures=2),
        restart=Restart(1, first=0.05),
    )
    first = child.start()
    assert child.healthy is None
    poll_until(child, lambda: child.healthy)
    answer[0] = False
    ended = poll_until(child, lambda: child.starts == 2)
    assert ended[0].signal_name == "SIGTERM"
    assert not first.alive()
    answer[0] = True
    poll_until(child, lambda: child.healthy)
    end(child)


def test_a_child_that_never_becomes_healthy_is_ended() -> None:
    child = Child(["sleep", "60"], health=Health(lambda: False, every=0.05, start_timeout=0.3))
    child.start()
    ended = child.wait(10)
    assert ended is not None and ended.signal_name == "SIGTERM" and ended.seconds >= 0.3


def test_http_probe_over_a_unix_socket(tmp_path: Path) -> None:
    code = (
        "import http.server, socketserver, sys\n"
        "class S(socketserver.UnixStreamServer):\n"
        "    def get_request(self): return (super().get_request()[0], ('local', 0))\n"
        "class H(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self): self.send_response(500 if 'ill' in self.path else 404); self.end_headers()\n"
        "S(sys.argv[1], H).serve_forever()\n"
    )
    path = Path(os.environ["XDG_RUNTIME_DIR"]) / "probe.sock"
    child = Child([*python(code), str(path)], log=tmp_path / "log")
    probe = http_probe("http://probe/", socket=path)
    assert not probe()
    child.start()
    poll_until(child, probe)
    assert not http_probe("http://probe/ill", socket=path)()
    end(child)
    assert not probe()
