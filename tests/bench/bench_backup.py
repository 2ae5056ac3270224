"""Backups against `rclone copy` on a loopback server: speed, memory, a pass with nothing to do, and the forecast.

    python tests/bench/bench_backup.py [upload|noop|forecast] [--gigabytes 4] [--files 16] [--rate 400e6]

`upload` sends the same set by turns with `rclone copy` and with a pass of ours (hashing, commit and proof included),
on the disk's own speed and through a link of --rate bytes a second. One JSON line a figure.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import psutil

from engine.backup.rclone import Daemon, binary
from engine.checkpoint.manifest import seal
from engine.workspace import RunFolder
from tests.support import backups
from tests.support.fault_proxy import FaultProxy

BUCKET = "bench"


def say(**figures: Any) -> None:
    print(json.dumps({"load": os.getloadavg()[0], **figures}), flush=True)


def run_of(home: Path, gigabytes: float, files: int) -> RunFolder:
    """A run with one checkpoint of equal files."""
    run = backups.make_run(home, steps=())
    staging = run.checkpoints / ".staging-10"
    staging.mkdir()
    block = os.urandom(1 << 20)
    for number in range(files):
        with open(staging / f"model-{number:05d}.safetensors", "wb") as file:
            for index in range(int(gigabytes * 1024 / files)):
                file.write(number.to_bytes(4, "big") + index.to_bytes(4, "big") + block[8:])
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
        (staging / name).write_text(name)
    (staging / "trainer_state.json").write_text("{}")
    seal(staging, run.checkpoints / "checkpoint-10", {"step": 10, "world_size": 1, "attempt": 1})
    return run


class Peak:
    """The highest resident memory of this process, and of all rclone processes below it."""

    def __init__(self) -> None:
        self.own = self.children = 0
        self._stop = threading.Event()
        self._base = psutil.Process().memory_info().rss
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        own = psutil.Process()
        while not self._stop.wait(0.1):
            self.own = max(self.own, own.memory_info().rss - self._base)
            total = 0
            for child in own.children(recursive=True):
                try:
                    if "rcd" in child.cmdline():
                        total += child.memory_info().rss
                except psutil.Error:
                    continue
            self.children = max(self.children, total)

    def end(self) -> None:
        self._stop.set()
        self._thread.join()


def rclone_copy(run: RunFolder, remote: str, *flags: str) -> float:
    """Seconds that `rclone copy` takes for the checkpoint."""
    argv = [binary(), "copy", str(run.checkpoints / "checkpoint-10"), remote, "--transfers", "4"]
    argv += ["--s3-chunk-size", "16M", "--s3-upload-cutoff", "16M", "--s3-no-check-bucket", *flags]
    began = time.monotonic()
    subprocess.run(argv, check=True)
    return time.monotonic() - began


def upload(args: argparse.Namespace, folder: Path) -> None:
    run = run_of(folder / "ft", args.gigabytes, args.files)
    size = sum(path.stat().st_size for path in run.checkpoints.rglob("*") if path.is_file())
    served = folder / "srv"
    (served / BUCKET).mkdir(parents=True)
    with backups.serve_s3(served) as port, FaultProxy(port) as proxy:
        for rate in [None, args.rate] if args.rate else [None]:
            proxy.rate = rate
            where = proxy.port if rate else port
            conf = backups.conf(folder / "rclone.conf", s3=where)
            os.environ["RCLONE_CONFIG"] = str(conf)
            times: dict[str, list[float]] = {"rclone": [], "rclone_no_md5": [], "ours": []}
            memory = []
            for number in range(args.turns):
                turn = f"{number}-{rate}"  # the server remembers what was deleted behind its back
                times["rclone"].append(rclone_copy(run, f"s3:{BUCKET}/a{turn}"))
                times["rclone_no_md5"].append(rclone_copy(run, f"s3:{BUCKET}/b{turn}", "--s3-disable-checksum"))
                shutil.rmtree(run.path / "backup", ignore_errors=True)
                peak = Peak()
                with Daemon(conf) as daemon:
                    began = time.monotonic()
                    outcome = backups.back_up(run, daemon, f"s3:{BUCKET}/c{turn}")
                    times["ours"].append(time.monotonic() - began)
                peak.end()
                assert outcome.ok
                memory.append((peak.own, peak.children))
                for child in (served / BUCKET).iterdir():
                    shutil.rmtree(child)
            best = {name: min(values) for name, values in times.items()}
            say(
                figure="upload",
                link=rate,
                gigabytes=size / 1e9,
                seconds=best,
                share_of_rclone=best["rclone"] / best["ours"],
                share_of_rclone_without_md5=best["rclone_no_md5"] / best["ours"],
                own_mb=max(own for own, _c in memory) / 1e6,
                rclone_mb=max(children for _own, children in memory) / 1e6,
            )


def noop(args: argparse.Namespace, folder: Path) -> None:
    home = folder / "ft"
    run = backups.make_run(home, steps=())
    staging = run.checkpoints / ".staging-10"
    staging.mkdir()
    for number in range(2000):
        (staging / f"shard-{number:05d}.bin").write_bytes(number.to_bytes(4, "big") * 10)
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
        (staging / name).write_text(name)
    (staging / "trainer_state.json").write_text("{}")
    seal(staging, run.checkpoints / "checkpoint-10", {"step": 10, "world_size": 1, "attempt": 1})
    (folder / "srv" / BUCKET).mkdir(parents=True)
    with backups.serve_s3(folder / "srv") as port:
        os.environ["RCLONE_CONFIG"] = str(backups.conf(folder / "rclone.conf", s3=port))
        ftui = [str(Path(binary()).with_name("ftui")), "--home", str(home), "backup", "now", "demo", "--json"]
        ftui += ["--remote", f"s3:{BUCKET}"]
        times = []
        for _turn in range(1 + args.turns):
            began = time.monotonic()
            document = json.loads(subprocess.run(ftui, check=True, capture_output=True).stdout)
            times.append(time.monotonic() - began)
        assert document["sent_bytes"] == 0
        say(figure="noop", files=2000, first_s=times[0], command_s=min(times[1:]), pass_s=document["seconds"])


def forecast(args: argparse.Namespace, folder: Path) -> None:
    """The error of the time left after a tenth, and 30 s after the link got half as fast."""
    run = run_of(folder / "ft", 0.5, 8)
    (folder / "srv" / BUCKET).mkdir(parents=True)
    for halves in (False, True):
        shutil.rmtree(run.path / "backup", ignore_errors=True)
        with backups.serve_s3(folder / "srv") as port, FaultProxy(port) as proxy:
            os.environ["RCLONE_CONFIG"] = str(backups.conf(folder / "rclone.conf", s3=proxy.port))
            say(figure="forecast", halves=halves, **_forecast_error(run, proxy, halves))


def _forecast_error(run: RunFolder, proxy: FaultProxy, halves: bool) -> dict[str, float]:
    said: list[tuple[float, float]] = []
    halved: list[float] = []
    proxy.rate = 8e6

    def look(progress: Any) -> None:
        now, share = time.monotonic(), progress.through / max(1, progress.total)
        if halves and share > 0.3 and not halved:
            proxy.rate = 4e6
            halved.append(now)
        due = bool(halved) and now > halved[0] + 30 if halves else share > 0.1
        eta = progress.rate.eta(progress.total - progress.through)
        if due and not said and eta:
            said.append((now, eta[1]))

    with Daemon(Path(os.environ["RCLONE_CONFIG"])) as daemon:
        assert backups.back_up(run, daemon, f"s3:{BUCKET}/f{halves}", on_progress=look).ok
    took = time.monotonic() - said[0][0]
    return {"said_s": said[0][1], "took_s": took, "error": said[0][1] / took - 1}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", nargs="?", choices=("upload", "noop", "forecast"))
    parser.add_argument("--gigabytes", type=float, default=4.0)
    parser.add_argument("--files", type=int, default=16)
    parser.add_argument("--rate", type=float, default=100e6)
    parser.add_argument("--turns", type=int, default=2)
    args = parser.parse_args()
    for name, part in (("noop", noop), ("upload", upload), ("forecast", forecast)):
        if args.what in (None, name):
            with tempfile.TemporaryDirectory(prefix="ftui-bench-") as folder:
                os.environ["XDG_CONFIG_HOME"] = folder
                part(args, Path(folder))


if __name__ == "__main__":
    main()
