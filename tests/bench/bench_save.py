"""The writer of checkpoints against dd, torch.save and dcp.save on the same disk: `python tests/bench/bench_save.py`.

One JSON line a figure. Each comparison is made in turns in one process, and the medians are compared: a disk behind
a cache answers differently from one moment to the next.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from engine.checkpoint import ledger, manifest
from engine.train import sharded, staging, writing

PIECE = 4 << 20


def told(figure: str, value: float, **more: Any) -> None:
    """Print one figure."""
    print(
        json.dumps({"figure": figure, "value": round(value, 3), **more, "load": round(os.getloadavg()[0], 1)}),
        flush=True,
    )


def timed(work: Callable[[], Any]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


def dd(folder: Path, size: int) -> float:
    """Seconds to write as many bytes plainly, with one fsync at the end, as dd does."""
    data = os.urandom(PIECE)

    def work() -> None:
        fd = os.open(folder / "dd", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for _ in range(size // PIECE):
            os.write(fd, data)
        os.fsync(fd)
        os.close(fd)

    seconds = timed(work)
    (folder / "dd").unlink()
    return seconds


class Unhashed:
    """hashlib's stand-in, to see what hashing costs."""

    def update(self, _data: Any) -> None:
        pass

    def hexdigest(self) -> str:
        return ""


def save(folder: Path, state: Any, host: staging.HostMemory | None) -> tuple[float, float]:
    """Seconds that training waits, and seconds until all is durable."""
    fresh(folder)
    began = time.monotonic()
    if host:
        host.begin()
    capture = staging.Capture(folder, host)
    with capture.watching():
        torch.save(state, str(folder / "optimizer.pt"))
    blocked = time.monotonic() - began
    writing.write(capture.files, folder)
    return blocked, time.monotonic() - began


def fresh(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()


def writer(place: Path, megabytes: int, turns: int) -> None:
    """Our writer against dd, with and without hashing, and how long training waits."""
    state = {n: {"exp_avg": torch.randn(1 << 20), "exp_avg_sq": torch.randn(1 << 20)} for n in range(megabytes // 8)}
    size = megabytes // 8 * 8 << 20
    host = staging.HostMemory()
    host.reserve(size + PIECE)
    plain, ours, unhashed, later, blocked = [], [], [], [], []
    folder, sha256 = place / "ours", writing.hashlib.sha256
    for _turn in range(turns):
        plain.append(dd(place, size))
        ours.append(save(folder, state, None)[1])
        writing.hashlib.sha256 = Unhashed  # type: ignore[assignment]
        unhashed.append(save(folder, state, None)[1])
        writing.hashlib.sha256 = sha256
        wait, whole = save(folder, state, host)
        blocked.append(wait)
        later.append(whole)
    median = statistics.median
    told("writer over dd, speed", median(plain) / median(ours), bytes=size, mb_s=round(size / median(ours) / 1e6))
    told("hashing, share of the save", 1 - median(unhashed) / median(ours), bytes=size)
    told("training waits, share of a save in the foreground", median(blocked) / median(ours), bytes=size)
    told("best of: writer over dd, speed", min(plain) / min(ours), bytes=size)
    told("best of: training waits", min(blocked) / min(ours), bytes=size, seconds=round(min(blocked), 4))
    shutil.rmtree(folder)


def shards(place: Path, count: int, each: int, turns: int) -> None:
    """Our sharded save against stock dcp.save."""
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp

    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    state = {"model": {f"w{n}": torch.randn(each) for n in range(count)}}
    planner = sharded.Planner("shards", lambda value: [value], 0)
    folder = place / "dcp"

    def stock() -> None:
        dcp.save(state, storage_writer=dcp.FileSystemWriter(folder))

    def ours() -> None:
        capture = staging.Capture(folder)
        part = planner.add(capture, state)
        writing.write(capture.files, folder)
        writing.write([part.finish([part.results])], folder)

    theirs, mine = [], []
    for _turn in range(turns):
        fresh(folder)
        theirs.append(timed(stock))
        fresh(folder)
        mine.append(timed(ours))
    told(
        "sharded save over dcp.save, speed",
        statistics.median(theirs) / statistics.median(mine),
        tensors=count,
        kb_each=each * 4 // 1024,
        best=round(min(theirs) / min(mine), 2),
    )
    shutil.rmtree(folder)


def listing(place: Path, count: int) -> None:
    """Listing many checkpoints."""
    folder = place / "checkpoints"
    folder.mkdir()
    names = ("adapter_model.safetensors", "adapter_config.json", "optimizer.pt", "scheduler.pt", "rng_state.pth")
    files = {name: {"size": 1, "sha256": "0" * 64} for name in (*names, "trainer_state.json", "tokenizer.json")}
    for step in range(count):
        one = folder / f"checkpoint-{step}"
        one.mkdir()
        for name in files:
            (one / name).write_bytes(b"x")
        (one / manifest.NAME).write_text(json.dumps({"format": 1, "step": step, "attempt": 1, "files": files}))
    ledger.list(folder)
    seconds = [timed(lambda: ledger.list(folder)) for _turn in range(5)]
    told("listing, seconds", statistics.median(seconds), checkpoints=count, best=round(min(seconds), 3))


def main() -> int:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--at", type=Path, default=None, help="a folder on the disk to measure")
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--turns", type=int, default=7)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.at) as place:
        root = Path(place)
        listing(root, 2000)
        writer(root, args.megabytes, args.turns)
        shards(root, 4000, 16 * 1024, args.turns)
        shards(root, args.megabytes // 4, 1 << 20, args.turns)
    return 0


if __name__ == "__main__":
    sys.exit(main())
