"""How fast `ckpt verify` reads, against reading the same files and nothing else; and how long a list takes.

    PYTHONPATH=. python tests/bench/bench_verify.py [--megabytes 1024] [--folder DIR]

One JSON line per figure. The pages of the files are dropped before each reading.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from engine.checkpoint import manifest, verify
from tests.support.checkpoints import pickled, safetensors, torch_zip, write_checkpoint


def big_checkpoint(folder: Path, megabytes: int) -> Path:
    """A sealed checkpoint: a third weights in bf16, two thirds optimizer, as LoRA and full training leave them."""
    staging = write_checkpoint(folder / ".staging-10", step=10)
    third = megabytes * 1024 * 1024 // 3
    block = os.urandom(1024 * 1024 * 8).translate(bytes(b & 0x3F for b in range(256)))  # no exponent is all ones
    data = block * (third // len(block) + 1)
    (staging / "adapter_model.safetensors").write_bytes(
        safetensors({"w.lora_A.weight": ("BF16", [third // 2], data[: third // 2 * 2])})
    )
    (staging / "optimizer.pt").write_bytes(torch_zip(pickled({"state": {}}), {"0": data, "1": data[:third]}))
    (folder / "checkpoint-10").parent.mkdir(exist_ok=True)
    manifest.seal(staging, folder / "checkpoint-10", {"step": 10})
    return folder / "checkpoint-10"


def forget(folder: Path) -> None:
    """Drop the pages of all files."""
    for path in folder.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


def plain_read(folder: Path) -> float:
    """Seconds to read all files one after the other, like dd with 4 MiB blocks."""
    forget(folder)
    buffer = bytearray(4 * 1024 * 1024)
    began = time.perf_counter()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with open(path, "rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass
    return time.perf_counter() - began


def verified(folder: Path) -> float:
    """Seconds of a verification."""
    forget(folder)
    began = time.perf_counter()
    report = verify.verify(folder)
    took = time.perf_counter() - began
    assert report.exit_code == 0, report.to_json()
    return took


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--folder")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as scratch:
        checkpoint = big_checkpoint(Path(scratch), args.megabytes)
        size = sum(path.stat().st_size for path in checkpoint.rglob("*"))
        pairs = [(plain_read(checkpoint), verified(checkpoint)) for _round in range(5)]
        read, check = (statistics.median(column) for column in zip(*pairs, strict=True))
        figure = {
            "name": "verify, share of the disk's sequential speed",
            "value": round(read / check, 3),
            "target": ">= 0.70",
            "read_mb_per_s": round(size / read / 1e6),
            "verify_mb_per_s": round(size / check / 1e6),
        }
        print(json.dumps(figure))
    with tempfile.TemporaryDirectory(dir=args.folder) as scratch:
        run = Path(scratch) / "runs" / "many"
        (run / "checkpoints").mkdir(parents=True)
        (run / "resolved.json").write_text("{}")
        for step in range(1, 2001):
            folder = write_checkpoint(run / "checkpoints" / f".staging-{step}", step=step)
            manifest.seal(folder, run / "checkpoints" / f"checkpoint-{step}", {"step": step})
        times = []
        for _round in range(5):
            began = time.perf_counter()
            argv = [sys.executable, "-m", "tui", "--home", scratch, "ckpt", "list", "many", "--json"]
            subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
            times.append(time.perf_counter() - began)
        from engine.checkpoint import ledger

        took = []
        for _round in range(10):
            began = time.perf_counter()
            assert len(ledger.list(run / "checkpoints")) == 2000
            took.append(time.perf_counter() - began)
        figure = {
            "name": "list of 2,000 checkpoints, seconds",
            "value": round(min(took), 3),
            "target": "<= 0.3",
            "whole_command": round(min(times), 3),
        }
        print(json.dumps(figure))


if __name__ == "__main__":
    main()
