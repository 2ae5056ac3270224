"""Starting the workspace's keeper: a program above this folder, known here by its command line and its state file."""

from __future__ import annotations

import sys
import time

from engine.errors import FtuiError
from engine.files import read_json
from engine.process import ProcessId
from engine.text import _
from engine.workspace import Workspace

IDLE_S = 300.0
START_S = 30.0


def running_keeper(workspace: Workspace) -> ProcessId | None:
    """The workspace's keeper, where it is alive."""
    state = read_json(workspace.keeper_dir / "state.json")
    process = ProcessId.from_json(state.get("process")) if isinstance(state, dict) else None
    return process if process is not None and process.alive() else None


def ensure_keeper(workspace: Workspace, *, idle: float = IDLE_S) -> ProcessId:
    """The workspace's keeper; started when it is not there.

    Raises:
        FtuiError: it does not come up.
    """
    from engine.process.daemon import daemonize, own_environment

    deadline = time.monotonic() + START_S
    workspace.prepare()
    while True:
        if (process := running_keeper(workspace)) is not None:
            return process
        try:
            return daemonize(
                [sys.executable, "-m", "engine.keeper", str(workspace.root), "--idle", str(idle)],
                name=_("the keeper"),
                env=own_environment(),
                log=workspace.keeper_dir / "keeper.log",
                timeout=START_S,
            )
        except FtuiError as error:
            if error.kind != "already_running" or time.monotonic() > deadline:
                raise
            time.sleep(0.1)  # another command was faster; its keeper writes state.json in a moment
