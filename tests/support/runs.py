"""Starting real supervisors over the stand-in rank program, and waiting for what they do."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from engine.files import Lock, write_json
from engine.journal import read_all
from engine.process import ProcessId
from engine.run import launch, status
from engine.run.gpus import Placement
from engine.run.statefile import fresh
from engine.run.status import ENDED, summary
from engine.workspace import RunFolder, Workspace

PROGRAM = Path(__file__).with_name("rank_program.py")
T = TypeVar("T")


def wait_for(condition: Callable[[], T], timeout: float = 20.0, what: str = "") -> T:
    """The first true value of `condition`."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        assert time.monotonic() < deadline, f"did not happen in time: {what or condition}"
        time.sleep(0.02)
    return value


class StandIn:
    """Runs whose ranks are the stand-in program."""

    def __init__(self, home: Path, patch: pytest.MonkeyPatch) -> None:
        self.workspace = Workspace(home).prepare()
        self.patch = patch
        shebang = home / "rank-python"
        shebang.write_text(f"#!/bin/sh\nexec {sys.executable} {PROGRAM}\n")
        shebang.chmod(0o755)
        self.python = str(shebang)

    def plan(self, **plan: Any) -> None:
        """What the ranks of runs started (or resumed) from now on do."""
        self.patch.setenv("FTUI_TEST_RANK", json.dumps({"steps": 20, **plan}))
        self.patch.setenv("FTUI_PYTHON", self.python)

    def below_a_launcher(self) -> None:
        """From now on the rank is a child of what the supervisor starts, as with torchrun."""
        script = Path(self.python)
        script.write_text(script.read_text().replace("exec ", "RANK=0 ") + "exit $?\n")

    def folder(self, name: str, **recipe: Any) -> RunFolder:
        """A run folder as `ftui run` makes it, without the recipe checks."""

        def fill(folder: RunFolder, final: str) -> None:
            for path in (folder.logs, folder.data, folder.checkpoints):
                path.mkdir()
            write_json(
                folder.resolved, {"format": 1, "run": final, "recipe": {"device": "cpu", **recipe}, "origin": {}}
            )
            write_json(folder.state, fresh(final, supervisor=ProcessId.current().to_json(), device="cpu"))

        return self.workspace.claim_run(name, "run", fill)

    def start(
        self, name: str, *, max_restarts: int = 3, recipe: dict[str, Any] | None = None, **plan: Any
    ) -> RunFolder:
        """A run with a live supervisor."""
        self.plan(**plan)
        run = self.folder(name, **(recipe or {}))
        lock = Lock(run.lock)
        assert lock.acquire()
        try:
            launch.supervise(run, lock, Placement((), 1, ()), python=self.python, max_restarts=max_restarts)
        finally:
            lock.release()
        return run

    def clear(self) -> None:
        """End what a failed test left running."""
        for run in self.workspace.folders():
            if status.is_alive(run) and supervisor_of(run) != ProcessId.current():
                supervisor_of(run).send(signal.SIGKILL)
            launch.reap(run, grace=0)


def supervisor_of(run: RunFolder) -> ProcessId:
    """The run's supervisor as state.json names it."""
    process = ProcessId.from_json(run.read_state()["supervisor"])
    assert process is not None
    return process


def ended(run: RunFolder, timeout: float = 20.0) -> dict[str, Any]:
    """Wait for the run's end; its state.json."""
    wait_for(lambda: summary(run)["state"] in ENDED, timeout, f"the end of {run.name}")
    return run.read_state()


def at_step(run: RunFolder, step: int) -> None:
    """Wait until the supervisor has seen the step."""
    wait_for(lambda: (run.read_state().get("step") or 0) >= step, what=f"step {step}")


def events(run: RunFolder) -> list[str]:
    """The names of the run's events in order."""
    return [event["event"] for event in read_all(run.events)]
