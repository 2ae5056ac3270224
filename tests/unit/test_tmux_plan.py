"""Which tmux command line opens the app: the session by workspace, nothing secret on the line."""

from __future__ import annotations

import io
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from engine.workspace import Workspace
from tui import tmux

HOME = "/data/ft"


def test_the_session_is_found_by_its_workspace() -> None:
    assert tmux.session_for(HOME, {}) == ("ftui", False)
    assert tmux.session_for(HOME, {"ftui": HOME, "mine": ""}) == ("ftui", True)
    other, exists = tmux.session_for("/other", {"ftui": HOME})
    assert other.startswith("ftui-") and not exists
    assert tmux.session_for("/other", {"ftui": HOME, other: "/other"}) == (other, True)
    assert tmux.session_for(HOME, {other: "/other"}) == ("ftui", False)


def test_server_options_only_with_a_server_of_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLORTERM", "truecolor")
    new = tmux.plan([], Workspace(Path(HOME)), None)
    assert "escape-time" in new and ",xterm-256color:RGB" in new
    beside = tmux.plan([], Workspace(Path(HOME)), {"mine": ""})
    assert "escape-time" not in beside and "terminal-features" not in beside and "-g" not in beside
    assert tmux.plan([], Workspace(Path(HOME)), {"ftui": HOME})[-3:] == ["attach-session", "-t", "=ftui"]


def test_the_environment_travels_in_a_private_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("AWKWARD", "it's $HOME\n`two` lines")
    monkeypatch.setenv("COLUMNS", "80")
    line = tmux.plan(["watch", "demo-1"], Workspace(Path(HOME)), None)
    assert not any("hf_secret" in word for word in line)
    file = Path(line[line.index("sh") + 4])
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    start = line.index("sh")
    boot = line[start : start + 6]
    show = ["sh", "-c", 'printf "%s|%s|%s" "$HF_TOKEN" "$AWKWARD" "$COLUMNS"']
    bare = {"PATH": os.environ["PATH"]}
    done = subprocess.run([*boot, *show], env=bare, capture_output=True, text=True)
    assert done.stdout == "hf_secret|it's $HOME\n`two` lines|"
    assert not file.exists()
    again = subprocess.run([*boot, *show], env=bare, capture_output=True, text=True)  # the file is gone: start anyway
    assert again.returncode == 0 and again.stdout == "||"


@pytest.mark.parametrize("name", ["TMUX", "STY"])
def test_not_inside_a_multiplexer(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr("sys.stdout", Terminal())
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setenv("TERM", "xterm")
    assert tmux.usable()
    monkeypatch.setenv(name, "1")
    assert not tmux.usable()
    monkeypatch.delenv(name)
    monkeypatch.setenv("TERM", "dumb")
    assert not tmux.usable()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("shutil.which", lambda _name: None)
    assert not tmux.usable()


def test_a_terminal_that_this_machine_does_not_know(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "xterm-mine").touch()
    (tmp_path / "67").mkdir()
    (tmp_path / "67" / "ghost").touch()
    monkeypatch.setenv("TERMINFO", str(tmp_path))
    assert tmux.known_terminal("xterm-mine") == "xterm-mine"
    assert tmux.known_terminal("ghost") == "ghost"
    assert tmux.known_terminal("xterm-of-tomorrow") == "xterm-256color"
    assert tmux.known_terminal("") == ""


def waiting(script: str) -> subprocess.Popen[bytes]:
    """A process of ours that waits for a client which does what the script says."""
    code = "import subprocess, sys; from tui import tmux; "
    code += "sys.exit(tmux._wait(subprocess.Popen(['sh', '-c', sys.argv[1]])))"
    return subprocess.Popen([sys.executable, "-c", code, script], stdout=subprocess.PIPE, process_group=0)


def test_the_clients_exit_code_and_its_stop_are_ours() -> None:
    process = waiting("kill -TSTP $$; exit 7")
    _pid, told = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(told)  # the shell gets its prompt back
    os.killpg(process.pid, signal.SIGCONT)
    assert process.wait(10) == 7


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_reaches_the_client(number: signal.Signals) -> None:
    process = waiting("echo $$; exec sleep 60")
    assert process.stdout is not None
    client = int(process.stdout.readline())
    process.send_signal(number)
    assert process.wait(10) == 128 + number
    assert not Path(f"/proc/{client}").exists()


def test_the_folder_of_whoever_joins_again_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    line = tmux.plan([], Workspace(Path(HOME)), {"ftui": HOME})
    assert line[line.index(tmux.FOLDER_OPTION) + 1] == str(tmp_path)
