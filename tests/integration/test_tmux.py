"""The app in a real tmux. An outer tmux server plays the user's terminal; ftui makes its session on an inner one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine import journal
from engine.run import status
from engine.workspace import Workspace
from tests.support.app import some_runs, workspace_at
from tui import tmux

pytestmark = [
    pytest.mark.tmux,
    pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux"),
]
ROOT = Path(__file__).parents[2]
FTUI = [sys.executable, "-P", "-m", "tui"]


class Server:
    """One tmux server with a socket folder of its own."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700)
        self.folder = folder

    def environment(self) -> dict[str, str]:
        return {**os.environ, "TMUX_TMPDIR": str(self.folder), "TERM": "xterm-256color"}

    def __call__(self, *arguments: str, check: bool = True) -> str:
        done = subprocess.run(["tmux", *arguments], env=self.environment(), capture_output=True, text=True)
        if check and done.returncode != 0:
            raise AssertionError(f"tmux {arguments}: {done.stderr}")
        return done.stdout.strip("\n")

    def screen(self, target: str = "") -> str:
        return self("capture-pane", "-p", *(["-t", target] if target else []), check=False)

    def sessions(self) -> list[str]:
        return self("list-sessions", "-F", "#{session_name}", check=False).splitlines()

    def kill(self) -> None:
        self("kill-server", check=False)


class Terminal:
    """The user's terminal: a pane of the outer server, in which commands are run."""

    def __init__(self, outer: Server, inner: Server) -> None:
        self.outer, self.inner = outer, inner

    def open(self, *command: str, size: tuple[int, int] = (120, 40), inside: str | None = None, **env: str) -> None:
        """Run a command in a new terminal; `inside`: as if in a pane of that tmux."""
        variables = {"TMUX_TMPDIR": str(self.inner.folder), "TERM": "xterm-256color", **env}
        if inside is not None:
            variables["TMUX"] = inside
        words = ["env", "-u", "TMUX", "-u", "TMUX_PANE", *(f"{k}={v}" for k, v in variables.items()), *command]
        self.outer("-f", "/dev/null", "new-session", "-d", "-s", "user", "-x", str(size[0]), "-y", str(size[1]), *words)
        self.outer("set-option", "-t", "user", "status", "off")

    def resize(self, width: int, height: int) -> None:
        self.outer("resize-window", "-t", "user", "-x", str(width), "-y", str(height))

    def keys(self, *keys: str) -> None:
        self.outer("send-keys", "-t", "user", *keys)

    def screen(self) -> str:
        return self.outer.screen("user:")

    def is_open(self) -> bool:
        return "user" in self.outer.sessions()


def wait(condition: Callable[[], object], limit: float = 20.0, screen: Callable[[], str] | None = None) -> None:
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end, f"it did not come to that\n{screen() if screen else ''}"
        time.sleep(0.05)


@pytest.fixture
def servers(house: Path) -> Iterator[tuple[Server, Server]]:
    folder = Path(tempfile.mkdtemp(prefix="ft-"))  # short: a socket's path has 107 bytes
    outer, inner = Server(folder / "o"), Server(folder / "i")
    try:
        yield outer, inner
    finally:
        outer.kill()
        inner.kill()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def inner(servers: tuple[Server, Server]) -> Server:
    return servers[1]


@pytest.fixture
def terminal(servers: tuple[Server, Server]) -> Terminal:
    return Terminal(*servers)


@pytest.fixture
def workspace(house: Path) -> Workspace:
    workspace = workspace_at(house)
    some_runs(workspace)
    return workspace


def app_pid(server: Server, session: str = "ftui") -> int:
    """The app in the session's first pane: the child of the shell that started it."""
    shell = server("list-panes", "-t", f"={session}:", "-F", "#{pane_pid}").splitlines()[0]
    return int(Path(f"/proc/{shell}/task/{shell}/children").read_text().split()[0])


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_start_detach_attach_resize_quit(terminal: Terminal, inner: Server, workspace: Workspace) -> None:
    bare = {"LANG": "C", "LC_ALL": "", "TERM": "xterm-of-tomorrow"}  # a bare server, a terminal that it does not know
    terminal.open(*FTUI, "--home", str(workspace.root), FTUI_MARK="first 'shell'", COLORTERM="truecolor", **bare)
    wait(lambda: "llama-70b-lora" in terminal.screen())
    assert "● running" in terminal.screen()  # UTF-8 all the way
    assert inner.sessions() == ["ftui"]
    assert inner("show-options", "-v", "-t", "ftui", tmux.HOME_OPTION) == str(workspace.root)
    assert inner("show-options", "-v", "-t", "ftui", "status") == "off"
    assert inner("show-options", "-sv", "escape-time") == "10"  # the server is ours
    assert "38;2;" in inner("capture-pane", "-p", "-e", "-t", "ftui")  # 24-bit color
    app = app_pid(inner)
    environment = Path(f"/proc/{app}/environ").read_bytes().split(b"\0")
    assert b"FTUI_MARK=first 'shell'" in environment
    assert b"COLUMNS" not in {entry.partition(b"=")[0] for entry in environment}
    runtime = Path(os.environ["XDG_RUNTIME_DIR"])
    assert not list(runtime.glob("ftui-*.env"))  # read and removed

    terminal.keys("C-b", "d")
    wait(lambda: not terminal.is_open())
    assert alive(app)

    terminal.open(*FTUI, "--home", str(workspace.root), size=(80, 24))
    wait(lambda: "llama-70b-lora" in terminal.screen())
    assert app_pid(inner) == app and inner.sessions() == ["ftui"]

    for width, height in ((80, 24), (40, 10), (200, 50)):
        terminal.resize(width, height)
        wait(lambda w=width: inner("display-message", "-p", "-t", "ftui:", "#{window_width}") == str(w))
        wait(lambda: "llama-70b-lora" in terminal.screen() and "● running" in terminal.screen())
        lines = terminal.screen().splitlines()
        assert len(lines) <= height and all(len(line) <= width for line in lines)

    terminal.keys("q")
    wait(lambda: not terminal.is_open())
    assert not alive(app) and inner.sessions() == []


def test_the_connection_dies_the_app_stays(terminal: Terminal, inner: Server, workspace: Workspace) -> None:
    terminal.open(*FTUI, "--home", str(workspace.root))
    wait(lambda: "llama-70b-lora" in terminal.screen())
    app = app_pid(inner)
    terminal.outer.kill()
    time.sleep(0.5)
    assert alive(app)
    assert "llama-70b-lora" in inner.screen("ftui")


@pytest.mark.parametrize("ignored", [False, True])
def test_without_tmux_a_dead_connection_ends_it_quietly(
    terminal: Terminal, inner: Server, workspace: Workspace, ignored: bool, tmp_path: Path
) -> None:
    pid_file = tmp_path / "pid"
    trap = "trap '' HUP; " if ignored else ""  # as nohup does
    script = f'{trap}echo $$ >{pid_file}; exec "$@"'
    terminal.open("sh", "-c", script, "sh", *FTUI, "--no-tmux", "--home", str(workspace.root))
    wait(lambda: "llama-70b-lora" in terminal.screen())
    app = int(pid_file.read_text())
    assert inner.sessions() == []
    terminal.outer.kill()
    wait(lambda: not alive(app), limit=6)
    log = workspace.logs_dir / "ftui.log"
    assert not log.exists() or "Traceback" not in log.read_text()


def test_what_goes_on_and_how_to_come_back_is_said_in_the_shell(
    terminal: Terminal, inner: Server, workspace: Workspace, house: Path
) -> None:
    """After a detach and after q; the folder of whoever comes back is the one whose recipes are offered."""
    shell = ["sh", "-c", '"$@"; echo "code $?"; cd "$0"; "$@"; echo "code $?"; sleep 60']
    there = house / "there"
    there.mkdir()
    (there / "of-mine.yaml").write_text("method: lora\nmodel_name_or_path: builtin:tiny\n")
    terminal.open(*shell, str(there), *FTUI, "--home", str(workspace.root), PYTHONPATH=str(ROOT))
    wait(lambda: "demo-2" in terminal.screen())
    terminal.keys("n")
    wait(lambda: "new run ─" in terminal.screen() and "./ is" in terminal.screen())
    assert "of-mine" not in terminal.screen()
    terminal.keys("Escape")
    wait(lambda: "new run ─" not in terminal.screen(), screen=terminal.screen)
    terminal.keys("C-b", "d")
    wait(lambda: inner("show-options", "-qv", "-t", "ftui", tmux.FOLDER_OPTION) == str(there), screen=terminal.screen)
    wait(lambda: "demo-2" in terminal.screen())
    terminal.keys("n")
    wait(lambda: "./of-mine.yaml" in terminal.screen() and "there" in terminal.screen(), screen=terminal.screen)
    terminal.keys("Escape")
    wait(lambda: "new run ─" not in terminal.screen(), screen=terminal.screen)
    terminal.keys("q")
    wait(lambda: terminal.screen().count("code 0") == 2, screen=terminal.screen)
    assert terminal.screen().count("llama-70b-lora goes on; `ftui` shows it again.") == 2
    assert inner.sessions() == []


def test_another_workspace_gets_a_session_of_its_own(
    terminal: Terminal, inner: Server, workspace: Workspace, house: Path
) -> None:
    terminal.open(*FTUI, "--home", str(workspace.root))
    wait(lambda: "llama-70b-lora" in terminal.screen())
    terminal.keys("C-b", "d")
    wait(lambda: not terminal.is_open())
    other = Workspace(house / "other").prepare()
    terminal.open(*FTUI, "--home", str(other.root))
    wait(lambda: "No runs yet" in terminal.screen())
    names = sorted(inner.sessions())
    assert names[0] == "ftui" and names[1].startswith("ftui-") and len(names) == 2
    terminal.keys("C-b", "d")
    wait(lambda: not terminal.is_open())
    terminal.open(*FTUI, "--home", str(other.root))
    wait(lambda: "No runs yet" in terminal.screen())
    assert sorted(inner.sessions()) == names


def test_a_server_of_the_user_keeps_its_options(terminal: Terminal, inner: Server, workspace: Workspace) -> None:
    inner("-f", "/dev/null", "new-session", "-d", "-s", "ftui-of-mine", "sleep", "60")
    inner("rename-session", "-t", "ftui-of-mine", "ftui")  # the name is taken by a session that is not ours
    before = inner("show-options", "-s"), inner("show-options", "-g")
    terminal.open(*FTUI, "--home", str(workspace.root))
    wait(lambda: "llama-70b-lora" in terminal.screen())
    assert (inner("show-options", "-s"), inner("show-options", "-g")) == before
    assert len(inner.sessions()) == 2 and "ftui" in inner.sessions()
    assert inner("show-options", "-v", "-t", "ftui", "status", check=False) == ""


def test_no_tmux_inside_tmux(terminal: Terminal, inner: Server, workspace: Workspace) -> None:
    terminal.open(*FTUI, "--home", str(workspace.root), inside="/tmp/somewhere,1,0")
    wait(lambda: "llama-70b-lora" in terminal.screen())
    assert inner.sessions() == []
    terminal.keys("q")
    wait(lambda: not terminal.is_open())


def test_watching_a_run_opens_a_window_beside_the_list(terminal: Terminal, inner: Server, workspace: Workspace) -> None:
    terminal.open(*FTUI, "--home", str(workspace.root))
    wait(lambda: "qwen3-8b-qlora" in terminal.screen())
    terminal.keys("C-b", "d")
    wait(lambda: not terminal.is_open())
    terminal.open(*FTUI, "--home", str(workspace.root), "watch", "demo-2")
    wait(lambda: "demo-2" in terminal.screen() and "qwen3-8b-qlora" not in terminal.screen())
    assert len(inner("list-windows", "-t", "=ftui").splitlines()) == 2
    terminal.keys("q")
    wait(lambda: "qwen3-8b-qlora" in terminal.screen())  # back in the list


def test_nothing_is_written_while_nothing_changes(
    terminal: Terminal, inner: Server, workspace: Workspace, tmp_path: Path
) -> None:
    some = tmp_path / "bytes"
    terminal.open(*FTUI, "--home", str(workspace.root))
    wait(lambda: "llama-70b-lora" in terminal.screen())
    time.sleep(1.0)
    inner("pipe-pane", "-t", "ftui:", f"cat >{some}")
    time.sleep(3.0)
    assert some.exists() and some.stat().st_size == 0


def test_no_terminal_is_one_clear_line(workspace: Workspace) -> None:
    done = subprocess.run(
        [*FTUI, "--home", str(workspace.root)], stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert done.returncode == 2 and "ftui watch" in done.stderr and "Traceback" not in done.stderr


def test_what_goes_wrong_in_the_session_can_be_read(
    terminal: Terminal, inner: Server, workspace: Workspace, house: Path
) -> None:
    config = house / "home" / ".config" / "ftui" / "settings.yaml"
    config.parent.mkdir(parents=True)
    config.write_text("refresh_hz: 99\n")
    terminal.open(*FTUI, "--home", str(workspace.root))
    wait(lambda: "enter closes this" in terminal.screen())
    assert "error:" in terminal.screen() and "refresh_hz" in terminal.screen()
    assert "Traceback" not in terminal.screen()
    terminal.keys("Enter")
    wait(lambda: not terminal.is_open())
    assert inner.sessions() == []


@pytest.mark.heavy
def test_a_run_started_in_the_app_outlives_tmux(
    terminal: Terminal, inner: Server, house: Path, builtin_cache: Path
) -> None:
    """From nothing to a run in a few keys; tmux is killed under it; it is watched again to its end."""
    workspace = Workspace(house / "ft").prepare()
    home = ["--home", str(workspace.root)]
    terminal.open(*FTUI, *home)
    wait(lambda: "No runs yet" in terminal.screen())
    terminal.keys("n")
    wait(lambda: "nothing wrong" in terminal.screen())
    terminal.keys("Tab", "Tab", "Tab", "Tab")
    terminal.keys("-l", "max_steps=12 save_steps=4")
    wait(lambda: "save_steps=4" in terminal.screen())
    terminal.keys("Enter")
    wait((workspace.runs_dir / "demo-1").exists, limit=30, screen=terminal.screen)
    run = workspace.find("demo-1")
    wait(lambda: (run.read_state().get("step") or 0) >= 2, limit=120)
    inner.kill()
    wait(lambda: not terminal.is_open())
    assert status.is_alive(run)
    terminal.open(*FTUI, *home, "watch", "demo-1")
    wait(lambda: run.read_state().get("state") == "done", limit=120)
    wait(lambda: "done" in terminal.screen() and "12/12" in terminal.screen())
    steps = [event["step"] for event in journal.read_all(run.journal) if event["event"] == "log"]
    assert steps == sorted(set(steps)) and steps[-1] == 12
    assert {event["attempt"] for event in journal.read_all(run.journal)} == {1}
    terminal.keys("q")
    wait(lambda: not terminal.is_open())
