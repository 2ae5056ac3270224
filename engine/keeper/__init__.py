"""The workspace's background process: it watches over what outlives a command and belongs to no single run.

One per workspace (keeper.lock), started by whichever command needs it, back from files alone after a kill. Runs do not
depend on it nor it on them: killing either never stops the other. It stays while a run is alive and ends by itself
after `IDLE_S` without one. It may import everything below it in the engine; no torch.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

from engine.errors import FtuiError
from engine.files import read_json
from engine.process import ProcessId, end_all
from engine.text import _
from engine.workspace import Workspace

IDLE_S = 300.0
START_S = 30.0


def running(workspace: Workspace) -> ProcessId | None:
    """The workspace's keeper, where it is alive."""
    state = read_json(workspace.keeper_dir / "state.json")
    process = ProcessId.from_json(state.get("process")) if isinstance(state, dict) else None
    return process if process is not None and process.alive() else None


def ensure(workspace: Workspace, *, idle: float = IDLE_S) -> ProcessId:
    """The workspace's keeper; started when it is not there.

    Raises:
        FtuiError: it does not come up.
    """
    from engine.process.daemon import daemonize

    deadline = time.monotonic() + START_S
    workspace.prepare()
    while True:
        if (process := running(workspace)) is not None:
            return process
        try:
            return daemonize(
                [sys.executable, "-m", "engine.keeper", str(workspace.root), "--idle", str(idle)],
                name=_("the keeper"),
                env={**os.environ, "PYTHONSAFEPATH": "1"},
                log=workspace.keeper_dir / "keeper.log",
                timeout=START_S,
            )
        except FtuiError as error:
            if error.kind != "already_running" or time.monotonic() > deadline:
                raise
            time.sleep(0.1)  # another command was faster; its keeper writes state.json in a moment


def stop(workspace: Workspace, timeout: float = 10.0) -> bool:
    """End the keeper; False when there was none. Runs go on."""
    process = running(workspace)
    if process is None:
        return False
    end_all(lambda: [process] if process.alive() else [], grace=timeout, number=signal.SIGTERM)
    return True


def status(workspace: Workspace) -> dict[str, Any]:
    """Whether the keeper runs, since when, when it last looked, and how many runs it watches."""
    state = read_json(workspace.keeper_dir / "state.json")
    state = state if isinstance(state, dict) else {}
    process = running(workspace)
    return {
        "home": str(workspace.root),
        "running": process is not None,
        "pid": process.pid if process else None,
        "since": state.get("started") if process else None,
        "heartbeat": state.get("heartbeat"),
        "live_runs": state.get("live_runs") if process else None,
        "idle_exit_s": state.get("idle_exit_s") if process else None,
    }
