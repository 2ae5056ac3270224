"""Long loops, run by hand: a run must not notice what happens to whoever watches it."""

from __future__ import annotations

import fcntl
import os
import pty
import random
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path

import pytest

from engine import journal
from engine.run import launch, status
from engine.workspace import RunFolder, Workspace

pytestmark = [pytest.mark.soak, pytest.mark.heavy, pytest.mark.timeout(1800)]
STEPS = 200
KILLS = 50
APP = [sys.executable, "-P", "-m", "tui"]


def losses(run: RunFolder) -> list[tuple[int, float]]:
    return [(e["step"], e["loss"]) for e in journal.read_all(run.journal) if e["event"] == "log" and "loss" in e]


def wait_for_end(run: RunFolder, seconds: float = 900) -> str:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        state = str(status.summary(run)["state"])
        if state in ("done", "failed", "stopped", "lost"):
            return state
        time.sleep(0.5)
    raise AssertionError(status.status(run))


def watch_in_a_terminal(workspace: Workspace, run: RunFolder) -> subprocess.Popen[bytes]:
    """The app on a pseudo-terminal of 120x40, whose output is read so that it never waits for us."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    app = subprocess.Popen(
        [*APP, "--home", str(workspace.root), "watch", run.name, "--no-tmux"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        env={**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"},
    )
    os.close(theirs)

    def drain() -> None:
        try:
            while os.read(ours, 65536):
                pass
        except OSError:
            pass
        os.close(ours)

    threading.Thread(target=drain, daemon=True).start()
    return app


def test_killing_the_app_leaves_the_losses_as_they_are(house: Path) -> None:
    workspace = Workspace(house / "ft").prepare()
    undisturbed = launch.start(workspace, "demo", [f"max_steps={STEPS}"], name="undisturbed").run
    assert wait_for_end(undisturbed) == "done"
    watched = launch.start(workspace, "demo", [f"max_steps={STEPS}"], name="watched").run
    chance = random.Random(7)
    kills_during_the_run = 0
    for _ in range(KILLS):
        app = watch_in_a_terminal(workspace, watched)
        time.sleep(chance.uniform(0.0, 2.0))
        app.send_signal(signal.SIGKILL)
        app.wait()
        kills_during_the_run += status.summary(watched)["state"] in ("starting", "running", "saving")
    assert wait_for_end(watched) == "done"
    assert losses(watched) == losses(undisturbed)
    assert losses(watched)[-1][0] == STEPS
    print(f"killed {KILLS} times, {kills_during_the_run} of them while it trained; {len(losses(watched))} losses equal")


def test_a_run_outlives_its_tmux_server(house: Path) -> None:
    workspace = Workspace(house / "ft").prepare()
    tmux = ["tmux", "-L", f"ftui-soak-{os.getpid()}", "-f", "/dev/null"]
    command = " ".join([*APP, "--home", str(workspace.root), "demo", "--steps", str(STEPS), "--no-tmux"])
    subprocess.run([*tmux, "new-session", "-d", "-x", "120", "-y", "40", command], check=True)
    try:
        deadline = time.monotonic() + 120
        while not (runs := workspace.runs()) or (status.summary(runs[0])["step"] or 0) < 20:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert "LOSS" in subprocess.run([*tmux, "capture-pane", "-p"], capture_output=True, text=True).stdout
    finally:
        subprocess.run([*tmux, "kill-server"], check=False)
    followed = subprocess.run(
        [*APP, "--home", str(workspace.root), "watch", runs[0].name], capture_output=True, text=True, timeout=900
    )
    assert followed.returncode == 0, followed.stderr
    assert f"done at step {STEPS}" in followed.stderr
    assert [step for step, _ in losses(runs[0])][-1] == STEPS
