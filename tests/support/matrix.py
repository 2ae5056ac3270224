"""The methods by the shardings, run for real: `python -m tests.support.matrix` prints the table of docs/methods.md.

Each cell is a whole run of the ranks through the launcher on the built-in model: tokenized, trained, sealed, saved.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.workspace import Workspace
from tests.support.train import Runs, Started, losses

PLUGIN = {"FTUI_ENGINE_PLUGIN": "tests.support.cpu_ranks", "PYTHONPATH": str(Path(__file__).parents[2])}
STEPS = 4
BATCH = 8  # sequences a step, over all ranks
# fp32 and no dropout: what differs between shardings is then the order of sums alone.
EXACT: dict[str, Any] = {
    "dtype": "float32",
    "lora_dropout": 0.0,
    "max_steps": STEPS,
    "global_batch_size": BATCH,
    "per_device_train_batch_size": 2,
    "eval_strategy": "no",
    "learning_rate": 1e-3,
    "bf16": False,
    "save_strategy": "steps",
    "save_steps": STEPS,
}
METHODS: dict[str, dict[str, Any]] = {
    "full": {"method": "full"},
    "LoRA": {"method": "lora"},
    "QLoRA": {"method": "qlora", "load_in_4bit": True, "use_bnb_nested_quant": True},
}
SHARDINGS = ("none", "ddp", "fsdp2", "zero2", "zero3")


@dataclass(frozen=True)
class Cell:
    """One run of the matrix."""

    task: str
    method: str
    sharding: str
    recipe: dict[str, Any] = field(hash=False)
    ranks: int = 2

    @property
    def name(self) -> str:
        return f"{self.task}-{self.method}-{self.sharding}".lower()


def preference_rows(path: Path) -> Path:
    """Pairs of answers made of the built-in conversations: the next row's answer is the worse one."""
    from engine.train.builtin import dataset_path

    rows = [json.loads(line) for line in dataset_path("builtin:support").read_text(encoding="utf-8").splitlines()]
    answers = [row["messages"][-1] for row in rows]
    with open(path, "w", encoding="utf-8") as file:
        for index, row in enumerate(rows):
            pair = {
                "prompt": row["messages"][:-1],
                "chosen": [answers[index]],
                "rejected": [answers[(index + 1) % len(rows)]],
            }
            if pair["chosen"] != pair["rejected"]:
                file.write(json.dumps(pair, ensure_ascii=False) + "\n")
    return path


def text_rows(path: Path) -> Path:
    """Plain texts made of the built-in conversations."""
    from engine.train.builtin import dataset_path

    with open(path, "w", encoding="utf-8") as file:
        for line in dataset_path("builtin:support").read_text(encoding="utf-8").splitlines():
            text = "\n".join(message["content"] for message in json.loads(line)["messages"])
            file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
    return path


def cell(task: str, method: str, sharding: str, folder: Path, **changes: Any) -> Cell:
    """A cell with its whole recipe; `folder` gets the data of tasks other than sft."""
    recipe = {**EXACT, **METHODS[method], "task": "sft", "sharding": sharding}
    ranks = 1 if sharding in ("none", "pipeline") else 2
    if method == "QLoRA" and sharding in ("fsdp2", "zero3"):
        recipe["bnb_4bit_quant_storage"] = "float32"
    if task.startswith("DPO"):
        recipe.update(task="dpo", dataset_path=str(preference_rows(folder / "pairs.jsonl")), max_length=128)
        recipe.update(precompute_ref_log_probs=task.endswith("precomputed"), assistant_only_loss=None)
    elif task.startswith("pretrain"):
        recipe.update(task="pretrain", dataset_path=str(text_rows(folder / "texts.jsonl")), packing=True)
        recipe.update(random_init=task.endswith("new"), assistant_only_loss=False, attn_implementation="sdpa")
    recipe.update(changes)
    recipe["gradient_accumulation_steps"] = recipe["global_batch_size"] // (
        recipe["per_device_train_batch_size"] * ranks
    )
    return Cell(task, method, sharding, recipe, ranks)


def everything(folder: Path) -> Iterator[Cell]:
    """All cells."""
    for method in METHODS:
        for sharding in SHARDINGS:
            yield cell("SFT", method, sharding, folder)
    for method in METHODS:
        for sharding in SHARDINGS:
            yield cell("SFT, bf16", method, sharding, folder, **bf16(method))
    for method in METHODS:
        for sharding in ("none", "ddp", "fsdp2", "zero3"):
            yield cell("DPO", method, sharding, folder)
            yield cell("DPO, precomputed", method, sharding, folder)
    for sharding in ("none", "ddp", "fsdp2", "zero3"):
        yield cell("pretrain, new", "full", sharding, folder)
        yield cell("pretrain, continued", "full", sharding, folder)


def draws_anew(wanted: Cell) -> bool:
    """Whether a cell begins with other random weights: ZeRO-3 draws them module by module, as it shards them."""
    return wanted.task == "pretrain, new" and wanted.sharding == "zero3"


def bf16(method: str) -> dict[str, Any]:
    """The precision that a recipe gets on a GPU: bf16 steps, with fp32 weights where all of them are trained."""
    if method == "full":
        return {"dtype": "float32", "bf16": True}
    storage = {"bnb_4bit_quant_storage": "bfloat16"} if method == "QLoRA" else {}
    return {"dtype": "bfloat16", "bf16": True, **storage}


def gpu_only(folder: Path) -> Iterator[Cell]:
    """What runs on GPUs alone: layers in turn, state in host memory, other precisions and kernels."""
    for method in ("LoRA", "QLoRA"):
        yield cell("SFT", method, "pipeline", folder)
    for sharding in ("fsdp2", "zero2", "zero3"):
        yield cell("SFT, offloaded", "full", sharding, folder, cpu_offload=True)
    yield cell("SFT, bf16 master", "full", "fsdp2", folder, dtype="bfloat16", bf16_master="bf16", bf16=True)
    yield cell("SFT, compiled", "LoRA", "none", folder, torch_compile=True)
    yield cell("SFT, FP8", "full", "none", folder, fp8=True, **bf16("full"))
    for optimizer in ("paged_adamw_8bit", "paged_adamw_32bit", "adamw_8bit", "adafactor", "muon"):
        yield cell(f"SFT, {optimizer}", "full", "none", folder, optim=optimizer)


def environment(sharding: str, cache: Path, gpus: int = 0) -> dict[str, str]:
    """What the ranks of a cell need; on a CPU also what the libraries leave to GPUs."""
    if gpus:
        return {**PLUGIN, "FTUI_ENGINE_PLUGIN": "tests.support.untried"}
    env = dict(PLUGIN)
    if sharding.startswith("zero"):
        env.update(FTUI_TEST_ZERO="1", DS_ACCELERATOR="cpu", TORCH_EXTENSIONS_DIR=str(cache / "torch-extensions"))
    return env


@dataclass(frozen=True)
class Outcome:
    """What became of a cell."""

    cell: Cell
    started: Started
    code: int
    seconds: float

    @property
    def losses(self) -> list[float]:
        return [values[0] for _step, values in sorted(losses(self.started.run).items())]

    @property
    def error(self) -> str:
        for path in sorted(self.started.run.logs.glob("rank-*.error.json")):
            return str(json.loads(path.read_text())["message"])
        return ""


def run(runs: Runs, wanted: Cell, *, name: str | None = None, timeout: float = 400, gpus: int = 0) -> Outcome:
    """Train one cell to its end; `gpus` is how many the machine has, 0 for the CPU."""
    recipe = {**wanted.recipe, "device": "auto"} if gpus else wanted.recipe
    folder = runs.make(name or wanted.name.replace(", ", "-").replace(" ", "-"), **recipe)
    began = time.monotonic()
    env = environment(wanted.sharding, runs.workspace.cache_dir, gpus)
    cards = range(gpus if wanted.sharding == "pipeline" else min(gpus, wanted.ranks))
    started = runs.start(folder, nproc=wanted.ranks, env=env, gpus=cards)
    return Outcome(wanted, started, started.finish(timeout), time.monotonic() - began)


def main() -> int:
    """Run the matrix and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="cells whose name contains this")
    parser.add_argument("--keep", type=Path, help="leave the runs here")
    parser.add_argument("--gpus", type=int, default=0, help="train on so many GPUs instead of the CPU")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        root = args.keep or Path(place)
        root.mkdir(parents=True, exist_ok=True)
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        runs = Runs(Workspace(root / "ft").prepare())
        reference: dict[tuple[str, str], list[float]] = {}
        failed = 0
        print(
            f"| task | method | sharding | ranks | first and last loss | apart | seconds |\n|{'---|' * 7}", flush=True
        )
        for wanted in [*everything(root), *(gpu_only(root) if args.gpus else ())]:
            few = args.gpus == 1 and (wanted.ranks > 1 or wanted.sharding == "pipeline")
            if args.only not in wanted.name or few:
                continue
            done = run(runs, wanted, gpus=args.gpus)
            ok = done.code == 0 and len(done.losses) == STEPS
            failed += not ok
            first = reference.setdefault((wanted.task, wanted.method), done.losses)
            apart = max((abs(a - b) for a, b in zip(done.losses, first, strict=False)), default=float("nan"))
            said = f"{done.losses[0]:.6f} {done.losses[-1]:.6f}" if ok else f"failed: {done.error or done.code}"
            row = (
                wanted.task,
                wanted.method,
                wanted.sharding,
                wanted.ranks,
                said,
                f"{apart:.1e}",
                f"{done.seconds:.0f}",
            )
            print("| " + " | ".join(map(str, row)) + " |", flush=True)
        return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
