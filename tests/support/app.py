"""The app on a workspace of made-up runs, at a fixed time."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from engine.workspace import Workspace
from tests.support.fake_run import BASE_TIME, FakeRun

NOW = BASE_TIME + 7000.0
DAY = 86400.0
HOUR = 3600.0
OUT_OF_MEMORY = {
    "kind": "out_of_memory",
    "message": "out of memory on GPU 0: 79.1 of 80.0 GB were in use when 2.4 GB more were asked for",
    "where": "rank 0",
    "fix": "halve per_device_train_batch_size, or set gradient_checkpointing: true",
}


def stop_clock(patch: pytest.MonkeyPatch, now: float = NOW) -> None:
    """The list's clock stands still, in UTC; the list is read often, so that tests need not wait for it."""
    patch.setattr("tui.widgets.run_table.clock", lambda: now)
    patch.setattr("tui.app.LISTING_S", 0.1)
    patch.setenv("TZ", "UTC")
    time.tzset()


def some_runs(workspace: Workspace) -> dict[str, FakeRun]:
    """Five runs, one in each state that matters."""
    runs: dict[str, FakeRun] = {}

    def made(name: str, ago: float, **given: object) -> FakeRun:
        runs[name] = run = FakeRun(workspace.root, name, **given)  # type: ignore[arg-type]
        run.write_state(created=NOW - ago, started=NOW - ago, updated=NOW - ago + HOUR)
        return run

    run = made("llama-70b-lora", 2 * HOUR)
    gpu = {"index": 0, "name": "NVIDIA H100 80GB HBM3", "uuid": "GPU-0"}
    run.run.hardware.write_bytes(orjson.dumps({"time": NOW, "gpus": [gpu]}) + b"\n")
    saved = {"step": 1200, "path": "checkpoints/checkpoint-1200", "time": NOW}
    run.write_state(step=1240, loss=1.032, eval_loss=1.118, eta_s=12060.0, last_checkpoint=saved)

    run = made("qwen3-8b-qlora", DAY, state="done", max_steps=2000, gpus=1, recipe={"method": "qlora", "lora_r": 16})
    run.write_state(step=2000, loss=0.871, eval_loss=0.902, ended=NOW - DAY + 5 * HOUR)

    run = made("qwen3-8b-smoke", 2 * DAY, state="failed", max_steps=2000, gpus=1)
    run.write_state(step=311, loss=2.204, ended=NOW - 2 * DAY + HOUR, error=OUT_OF_MEMORY)

    run = made("demo-2", 3 * DAY, state="stopped", max_steps=200, gpus=0, recipe={"method": "lora", "lora_r": 8})
    saved = {"step": 120, "path": "checkpoints/checkpoint-120", "time": NOW}
    run.write_state(step=120, loss=2.31, eval_loss=2.4, ended=NOW - 3 * DAY + HOUR, last_checkpoint=saved)

    run = made("demo-1", 4 * DAY, max_steps=200, gpus=0, live=False, recipe={"method": "full"})
    run.write_state(step=20, loss=4.31)
    return runs


async def until(condition: Callable[[], object], pilot, *, limit: float = 10.0) -> None:
    """Let the app work until `condition` holds."""
    end = time.monotonic() + limit
    while not condition():
        if time.monotonic() > end:
            raise AssertionError("it did not come to that")
        await pilot.pause(0.02)


def workspace_at(home: Path) -> Workspace:
    """A workspace in the test's home folder: screens show it as `~/ft`, wherever the test runs."""
    return Workspace(home / "home" / "ft").prepare()
