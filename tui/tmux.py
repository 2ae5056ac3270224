"""Opening the app inside tmux, so that it is still there after the connection died.

The app has a session of its own on the user's ordinary tmux server. Only that session's options are set; server
options (which would change the user's other sessions) only where this call is what starts the server.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from engine.text import _
from engine.workspace import Workspace

SESSION = "ftui"
CLIENT = ["tmux", "-u"]  # -u: a bare server has no UTF-8 locale set, and tmux would write _ for every sign
HOME_OPTION = "@ftui_home"  # which workspace a session shows: two workspaces never meet in one session
FOLDER_OPTION = "@ftui_folder"  # where the user stood when the session was joined again
# What describes the terminal or the shell, not the user's wishes (LINES and COLUMNS would freeze the size).
NOT_PASSED = {"TERM", "TERM_PROGRAM", "TERM_PROGRAM_VERSION", "TMUX", "TMUX_PANE", "SHLVL"} | {
    *("PWD", "OLDPWD", "LINES", "COLUMNS", "_")
}
# tmux takes 24-bit color from the program and rounds it for each client, so inside it is always right to send it.
INSIDE = {"COLORTERM": "truecolor"}
TERMINFO = ("/etc/terminfo", "/lib/terminfo", "/usr/share/terminfo", "/usr/local/share/terminfo", "/usr/lib/terminfo")
# Reads the environment from a file (a command line can be read by every user of the machine), then runs the app. The
# session ends with it, so what the app says when it fails must be read first.
BOOT = """
[ -r "$1" ] && . "$1"
rm -f "$1"; hint=$2; shift 2
"$@"; code=$?
case $code in 0|129|130|143) ;; *) printf "\\n%s " "$hint"; read -r _ ;; esac
exit $code
"""


def usable() -> bool:
    """Whether the app should be put into tmux: it is installed, and this terminal is not a multiplexer already."""
    if os.environ.get("TMUX") or os.environ.get("STY") or os.environ.get("TERM") == "dumb":
        return False
    return sys.stdin.isatty() and sys.stdout.isatty() and shutil.which("tmux") is not None


def known_terminal(term: str) -> str:
    """`term`, or the most general one where this machine has no terminfo for it (tmux would refuse to start).

    New terminals bring a TERM of their own, which a server does not know.
    """
    folders = [os.environ.get("TERMINFO", ""), *os.environ.get("TERMINFO_DIRS", "").split(":")]
    folders += [os.path.expanduser("~/.terminfo"), *TERMINFO]  # noqa: PTH111 - a home that cannot be found is no error
    places = [Path(folder) for folder in folders if folder]
    if not term or not any(place.is_dir() for place in places):
        return term
    known = any((place / first / term).exists() for place in places for first in (term[0], f"{ord(term[0]):x}"))
    return term if known else "xterm-256color"


def show(argv: Sequence[str], workspace: Workspace) -> int | None:
    """Show the app in a tmux client until that ends or is detached; its exit code, None where there is no tmux for it.

    Args:
        argv: the command to show (`["watch", RUN]`), [] for the list of runs.
        workspace: the workspace; its session is found again by it.
    """
    if not usable():
        return None
    arguments = plan(argv, workspace, _sessions())
    # The server keeps the environment of the client that starts it, for every pane to come.
    environment = {name: value for name, value in os.environ.items() if name not in ("LINES", "COLUMNS")}
    environment["TERM"] = known_terminal(os.environ.get("TERM", ""))
    sys.stdout.flush()
    sys.stderr.flush()
    with subprocess.Popen(arguments, env=environment) as client:
        return _wait(client)


def _wait(client: subprocess.Popen[bytes]) -> int:
    """Wait as if this process were the client: what is asked of us is asked of it, and its stop is ours."""
    asked: list[int] = []

    def pass_on(number: int, _frame: object) -> None:
        asked.append(number)
        os.kill(client.pid, number)  # not send_signal: that looks first whether it has ended, and so takes our wait

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGTERM, signal.SIGHUP)}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        while True:
            _pid, status = os.waitpid(client.pid, os.WUNTRACED)
            if not os.WIFSTOPPED(status):
                break
            os.kill(os.getpid(), signal.SIGSTOP)  # for the shell; until its `fg`
            os.kill(client.pid, signal.SIGCONT)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    client.returncode = os.waitstatus_to_exitcode(status)
    return 128 + asked[0] if asked else client.returncode


def is_open(workspace: Workspace) -> bool:
    """Whether a session shows this workspace."""
    return session_for(str(workspace.root), _sessions() or {})[1]


def users_folder() -> Path | None:
    """The folder in which the user typed `ftui` last, where the session stands in an older one."""
    if not os.environ.get("TMUX") or shutil.which("tmux") is None:
        return None
    asked = ["tmux", "show-options", "-qv", FOLDER_OPTION]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, timeout=2, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    folder = done.stdout.rstrip("\n")
    return Path(folder) if folder else None


def plan(argv: Sequence[str], workspace: Workspace, sessions: dict[str, str] | None) -> list[str]:
    """The tmux command line.

    Args:
        argv: the command to show.
        workspace: the workspace.
        sessions: name of each session to the workspace it shows; None when no server runs.
    """
    home = str(workspace.root)
    name, exists = session_for(home, sessions or {})
    if exists and not argv:
        here = ["set-option", "-t", f"={name}:", FOLDER_OPTION, _folder(), ";"]
        return [*CLIENT, *here, "attach-session", "-t", f"={name}"]
    inner = [sys.executable, "-P", "-m", "tui", "--home", home, "--no-tmux", *argv]
    boot = ["sh", "-c", BOOT, "ftui", str(_environment_file()), _("enter closes this"), *inner]
    if exists:
        # The session shows something else already: this one gets a window beside it.
        window = ["new-window", "-t", f"={name}:", "-n", argv[-1], "-c", _folder(), *boot]
        return [*CLIENT, *window, ";", "attach-session", "-t", f"={name}"]
    return [
        *CLIENT,
        *["new-session", "-A", "-s", name, "-c", _folder(), *boot],
        *[";", "set-option", "-t", name, HOME_OPTION, home],
        *[";", "set-option", "-t", name, "status", "off"],
        *[";", "set-option", "-t", name, "mouse", "on"],
        *(_server_options() if sessions is None else []),
    ]


def session_for(home: str, sessions: dict[str, str]) -> tuple[str, bool]:
    """The session's name for a workspace and whether it exists: `ftui`, or with a hash where that one is taken."""
    for name, shown in sessions.items():
        if shown == home:
            return name, True
    if SESSION not in sessions:
        return SESSION, False
    digest = hashlib.sha256(home.encode()).hexdigest()[:8]
    return f"{SESSION}-{digest}", False


def _sessions() -> dict[str, str] | None:
    """The running server's sessions with the workspace each shows; None when there is no server."""
    done = subprocess.run(
        ["tmux", "list-sessions", "-F", f"#{{session_name}}\t#{{{HOME_OPTION}}}"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        return None
    return dict(line.partition("\t")[::2] for line in done.stdout.splitlines())


def _server_options() -> list[str]:
    """A short wait after escape, the clipboard, and 24-bit color where this terminal says it has it."""
    options = [";", "set-option", "-s", "escape-time", "10", ";", "set-option", "-s", "set-clipboard", "on"]
    term = os.environ.get("TERM", "")
    if term and os.environ.get("COLORTERM", "").lower() in ("truecolor", "24bit"):
        options += [";", "set-option", "-sa", "terminal-features", f",{term}:RGB"]
    return options


def _folder() -> str:
    try:
        return str(Path.cwd())
    except FileNotFoundError:  # the folder the shell stood in was removed
        return "/"


def _environment_file() -> Path:
    """The caller's whole environment as a private shell file: the tmux server's may be days old."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    folder = runtime if runtime and os.access(runtime, os.W_OK | os.X_OK) else None
    fd, path = tempfile.mkstemp(prefix="ftui-", suffix=".env", dir=folder)
    values = {**os.environ, **INSIDE}
    with os.fdopen(fd, "w", encoding="utf-8", errors="surrogateescape") as file:
        for name, value in values.items():
            if name.isidentifier() and name.isascii() and name not in NOT_PASSED:
                file.write(f"export {name}={shlex.quote(value)}\n")
    return Path(path)


def copy(text: str) -> bool:
    """Hand `text` to tmux, which passes it on to the terminal's clipboard; False outside tmux or where it refuses.

    A program's own OSC 52 is dropped by tmux unless `set-clipboard on`; `load-buffer -w` works with the default too.
    """
    if not os.environ.get("TMUX") or shutil.which("tmux") is None:
        return False
    try:
        done = subprocess.run(
            ["tmux", "load-buffer", "-w", "-"], input=text.encode(), capture_output=True, timeout=2, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
