"""Real runs of the training program: a home with the built-in model in it, run folders, the launcher."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.files import write_json
from engine.journal import read_all
from engine.train import builtin
from engine.train.launcher import command
from engine.workspace import RunFolder, Workspace

RECIPE: dict[str, Any] = {
    "model_name_or_path": "builtin:tiny",
    "dataset_path": "builtin:support",
    "method": "lora",
    "device": "cpu",
    "test_size": 0.05,
    "seed": 42,
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 1,
    "learning_rate": 1e-3,
    "logging_steps": 1,
    "max_length": 64,
    "assistant_only_loss": True,
    "gradient_checkpointing": False,
    "lora_r": 4,
    "lora_dropout": 0.1,
    "save_strategy": "no",
    "dtype": "float32",
}


@pytest.fixture(scope="session")
def tiny_home(tmp_path_factory: pytest.TempPathFactory, shared_cache: Path) -> Workspace:
    """A workspace whose cache holds the built-in model."""
    root = tmp_path_factory.mktemp("tiny-home")
    (root / "cache").symlink_to(shared_cache)
    workspace = Workspace(root).prepare()
    subprocess.run(
        [sys.executable, "-m", "engine.train.builtin", str(root)],
        env={**os.environ, "PYTHONSAFEPATH": "1"},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return workspace


def tiny_model(workspace: Workspace) -> Path:
    """The folder of the built-in model."""
    return builtin.model_path("builtin:tiny", workspace.cache_dir)


class Started:
    """One start of a run's ranks by the launcher."""

    def __init__(self, run: RunFolder, *, nproc: int = 1, **options: Any) -> None:
        self.run = run
        extra = options.pop("env", {})
        argv, env = command(run, python=sys.executable, nproc=nproc, **options)
        self.process = subprocess.Popen(
            argv,
            env={**env, **extra},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        """The journal's events, or those of one kind."""
        return [event for event in read_all(self.run.journal) if kind in (None, event["event"])]

    def until(self, condition: Callable[[], Any], timeout: float = 120) -> Any:
        """Wait until the condition holds; its value."""
        deadline = time.monotonic() + timeout
        while not (value := condition()):
            if time.monotonic() > deadline or (self.process.poll() is not None and not condition()):
                raise AssertionError(f"the run did not get there; its log ends:\n{self.log()[-3000:]}")
            time.sleep(0.02)
        return value

    def step(self, number: int) -> None:
        """Wait until the run has logged a step of this number or later."""
        self.until(lambda: any(event["step"] >= number for event in self.events("log")))

    def finish(self, timeout: float = 180) -> int:
        """Wait for the launcher; its exit code."""
        return self.process.wait(timeout)

    def log(self, rank: int = 0) -> str:
        path = self.run.logs / f"rank-{rank}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def ranks(self) -> list[int]:
        """Pids of the ranks that live."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                arguments = (entry / "cmdline").read_bytes().split(b"\0")
                zombie = (entry / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
            except OSError:
                continue
            ours = b"engine.train" in arguments and os.fsencode(self.run.path) in arguments
            if ours and b"torch.distributed.run" not in arguments and not zombie:
                found.append(int(entry.name))
        return found

    def gone(self, timeout: float = 60) -> bool:
        """Whether no rank lives any more, waiting for it."""
        deadline = time.monotonic() + timeout
        while self.ranks():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True

    def end(self) -> None:
        """Kill what is left."""
        for pid in [self.process.pid, *self.ranks()]:
            try:
                os.kill(pid, 9)
            except ProcessLookupError:
                continue
        self.process.wait()


class Runs:
    """Makes run folders and starts them; everything is stopped at the end of the test."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.started: list[Started] = []

    def make(self, name: str, **changes: Any) -> RunFolder:
        """A run folder with RECIPE and the changes as its resolved recipe."""
        run = RunFolder(self.workspace.runs_dir / name)
        run.path.mkdir(parents=True)
        recipe = {**RECIPE, **changes}
        recipe.setdefault("global_batch_size", None)
        write_json(run.resolved, {"format": 1, "run": run.name, "recipe": recipe, "origin": {}})
        return run

    def start(self, run: RunFolder, **options: Any) -> Started:
        """Start the ranks."""
        started = Started(run, **options)
        self.started.append(started)
        return started


@pytest.fixture
def train_runs(tiny_home: Workspace, tmp_path: Path) -> Iterator[Runs]:
    """Makes and starts real runs in a workspace of the test's own, with the built-in model in its cache."""
    workspace = Workspace(tmp_path / "ft")
    workspace.root.mkdir(exist_ok=True)
    workspace.cache_dir.symlink_to(tiny_home.cache_dir)
    runs = Runs(workspace)
    yield runs
    for started in runs.started:
        started.end()


def losses(run: RunFolder) -> dict[int, tuple[Any, ...]]:
    """Step to loss, gradient norm and learning rate; the newest attempt wins."""
    return {
        event["step"]: (event["loss"], event["grad_norm"], event["learning_rate"], event["tokens_seen"])
        for event in read_all(run.journal)
        if event["event"] == "log"
    }
