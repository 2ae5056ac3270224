"""Is a resumed run the run that it would have been? `python -m tests.support.resume_matrix` prints the table.

For each method, sharding and packing one run goes to its end with a checkpoint at every step; then it is taken up
again from one in the middle of an epoch and from one at its end, and the figures of the steps after it are compared,
bit by bit.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.files import write_json
from engine.journal import read_all
from engine.workspace import RunFolder, Workspace
from tests.support import matrix
from tests.support.train import Runs

STEPS = 8
ROWS = 32  # four steps an epoch, or about as many packed
FIGURES = ("loss", "grad_norm", "learning_rate")


@dataclass(frozen=True)
class Resumed:
    """A run taken up again: how far apart its figures are from those of the run that was not stopped."""

    where: str
    step: int
    compared: int
    apart: float
    error: str = ""

    def __str__(self) -> str:
        if self.error or not self.compared:
            return f"failed: {self.error or 'no steps'}"
        return "bitwise" if self.apart == 0 else f"{self.apart:.1e}"


def rows(path: Path, count: int) -> Path:
    """The first conversations of the built-in data."""
    from engine.train.builtin import dataset_path

    lines = dataset_path("builtin:support").read_text(encoding="utf-8").splitlines()[:count]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def figures(run: RunFolder, attempt: int) -> dict[int, list[Any]]:
    """Step to loss, gradient norm and learning rate of one attempt."""
    return {
        e["step"]: [e.get(key) for key in FIGURES]
        for e in read_all(run.journal)
        if e["event"] == "log" and e["attempt"] == attempt
    }


def places(run: RunFolder) -> dict[str, int]:
    """A step in the middle of an epoch and one at its end."""
    epochs = {}
    for path in run.checkpoints.glob("checkpoint-*"):
        epochs[int(path.name.partition("-")[2])] = json.loads((path / "trainer_state.json").read_text())["epoch"]
    ends = [step for step, epoch in sorted(epochs.items()) if float(epoch).is_integer() and step < STEPS]
    return {"mid": 2} | ({"end": ends[0]} if ends else {})


def resume(runs: Runs, wanted: matrix.Cell, run: RunFolder, where: str, step: int, ranks: int) -> Resumed:
    """Take a run up again from one of its checkpoints, on this many ranks, and compare."""
    recipe = {**run.read_resolved()["recipe"], "save_strategy": "no"}
    recipe["gradient_accumulation_steps"] = matrix.BATCH // (recipe["per_device_train_batch_size"] * ranks)
    if ranks == 1:
        recipe["sharding"] = "none"
    write_json(run.resolved, {"format": 1, "run": run.name, "recipe": recipe, "origin": {}})
    attempt = max(e["attempt"] for e in read_all(run.journal)) + 1
    started = runs.start(
        run,
        nproc=ranks,
        attempt=attempt,
        resume_from=run.checkpoints / f"checkpoint-{step}",
        env=matrix.environment(wanted.sharding, runs.workspace.cache_dir),
    )
    code = started.finish(600)
    error = "" if code == 0 else next((o for o in _errors(run)), str(code))
    before, after = figures(run, 1), figures(run, attempt)
    apart = max((_apart(before[n], after[n]) for n in after if n in before), default=float("nan"))
    if not error and set(after) != {n for n in before if n > step}:
        error = f"steps {sorted(after)}"
    return Resumed(where, step, len(after), apart, error)


def _apart(one: list[Any], other: list[Any]) -> float:
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


def _errors(run: RunFolder) -> list[str]:
    return [str(json.loads(path.read_text())["message"])[:80] for path in sorted(run.logs.glob("rank-*.error.json"))]


def cell(folder: Path, method: str, sharding: str, *, packing: bool, **changes: Any) -> matrix.Cell:
    """A cell of the table: dropout on, so that the random states count."""
    options: dict[str, Any] = {
        "max_steps": STEPS,
        "save_steps": 1,
        "dataset_path": str(rows(folder / f"rows-{packing}.jsonl", ROWS * (3 if packing else 1))),
        "test_size": 0,
        "packing": packing,
        "max_length": 256 if packing else 64,
        "assistant_only_loss": False,
        "attn_implementation": "sdpa",
        "lora_dropout": 0.1,
    }
    return matrix.cell("SFT", method, sharding, folder, **{**options, **changes})


def check(runs: Runs, folder: Path, method: str, sharding: str, *, packing: bool) -> list[Resumed]:
    """Run one cell and take it up again from both places."""
    wanted = cell(folder, method, sharding, packing=packing)
    name = f"{method}-{sharding}-{'packed' if packing else 'plain'}".lower()
    done = matrix.run(runs, wanted, name=name, timeout=900)
    run = done.started.run
    if done.code:
        return [Resumed("mid", 0, 0, float("nan"), done.error or str(done.code))]
    found = [resume(runs, wanted, run, where, step, wanted.ranks) for where, step in places(run).items()]
    shutil.rmtree(run.path, ignore_errors=True)
    return found


def main() -> int:
    """Run the matrix and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--method", nargs="*", default=["LoRA", "QLoRA", "full"])
    parser.add_argument("--sharding", nargs="*", default=["none", "ddp", "fsdp2", "zero3"])
    parser.add_argument("--packing", nargs="*", default=["off", "on"])
    parser.add_argument("--cache", type=Path, help="a workspace's cache with the built-in model")
    args = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        home = root / "ft"
        home.mkdir()
        if args.cache:
            (home / "cache").symlink_to(args.cache)
        runs = Runs(Workspace(home).prepare())
        print(
            "| method | sharding | packing | mid-epoch | at its end | seconds |\n|---|---|---|---|---|---|", flush=True
        )
        for sharding in args.sharding:
            for method in args.method:
                for packing in args.packing:
                    began = time.monotonic()
                    found = {r.where: str(r) for r in check(runs, root, method, sharding, packing=packing == "on")}
                    cells = (method, sharding, packing, found.get("mid", "-"), found.get("end", "-"))
                    print("| " + " | ".join(cells) + f" | {time.monotonic() - began:.0f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
