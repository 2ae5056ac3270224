"""What a post-mortem and the list of checkpoints cost. Prints one JSON line a figure; run by hand.

`PYTHONPATH=. python tests/bench/bench_supervision.py`
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine.checkpoint.manifest import seal
from engine.files import write_json
from engine.run import diagnose
from engine.run.statefile import fresh
from engine.workspace import RunFolder
from tests.support.checkpoints import write_checkpoint
from tui.sources.checkpoint_source import CheckpointSource

LINES, CHECKPOINTS = 400_000, 2000


def timed(work: Callable[[], Any]) -> tuple[float, float]:
    """Seconds of processor and of the wall."""
    before, began = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
    work()
    after = resource.getrusage(resource.RUSAGE_SELF)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return round(used, 4), round(time.monotonic() - began, 4)


def main() -> None:
    """Measure in a folder of its own."""
    folder = Path(tempfile.mkdtemp())
    run = RunFolder(folder / "runs" / "a")
    run.logs.mkdir(parents=True)
    run.checkpoints.mkdir()
    write_json(run.resolved, {"recipe": {"per_device_train_batch_size": 4, "save_total_limit": 2000}, "origin": {}})
    write_json(run.state, fresh("a", state="failed", step=5, error={"kind": "crash", "message": "x"}))
    log = run.logs / "rank-0.log"
    line = "step of a log that goes on and on, with some eighty characters in each of its lines\n"
    log.write_text(line * LINES + "RuntimeError: CUDA error: uncorrectable ECC error encountered\n")
    diagnose.diagnose(run)
    cpu, wall = timed(lambda: diagnose.diagnose(run))
    read_cpu, _read_wall = timed(log.read_bytes)
    print(json.dumps({"what": "post-mortem", "log_mb": log.stat().st_size / 1e6, "cpu_s": cpu, "wall_s": wall,
                      "reading_the_log_cpu_s": read_cpu}))  # fmt: skip
    source = write_checkpoint(folder / "source", 1)
    for step in range(1, CHECKPOINTS + 1):
        staging = run.checkpoints / f".staging-{step}"
        staging.mkdir()
        for path in source.iterdir():
            os.link(path, staging / path.name)
        seal(staging, run.checkpoints / f"checkpoint-{step}", {"step": step, "attempt": 1})
    listing = CheckpointSource(run)
    for what in ("first listing", "listing when nothing changed"):
        cpu, wall = timed(listing.poll)
        print(json.dumps({"what": what, "checkpoints": CHECKPOINTS, "cpu_s": cpu, "wall_s": wall}))
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
