"""The workspace's background process: it watches over what outlives a command and belongs to no single run.

One per workspace (keeper.lock), started by whichever command needs it, back from files alone after a kill. Runs do not
depend on it nor it on them: killing either never stops the other. It stays while a run is alive or a backup is
due and ends by itself after `IDLE_S` without. It may import everything below it in the engine; no torch.
"""

from __future__ import annotations

import signal
from typing import Any

from engine.files import read_json
from engine.process import end_all
from engine.run.background import IDLE_S, ensure_keeper, running_keeper
from engine.workspace import Workspace

__all__ = ["IDLE_S", "ensure", "running", "status", "stop"]

ensure = ensure_keeper
running = running_keeper


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
