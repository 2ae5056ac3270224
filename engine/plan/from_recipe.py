"""A recipe as a planner request: the resolved recipe's keys, and what the engine makes of them."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

from engine.plan.plan import Result, plan
from engine.plan.request import parse
from engine.plan.servers import user_file
from engine.recipe.builtin import folder

SAME = (
    "method", "task", "lora_r", "lora_dropout", "use_dora", "optim", "max_length", "per_device_train_batch_size",
    "gradient_accumulation_steps", "gradient_checkpointing", "attn_implementation", "packing", "sharding",
    "cpu_offload", "num_machines", "num_train_epochs", "kbit_prepare", "bf16_master", "fp8",
)  # fmt: skip
STACK = "5"  # the transformers that the engine trains with
SAMPLE = 2000  # rows that a file's lengths are taken from
BYTES_PER_TOKEN = 4.0
BUCKET = 32  # tokens


def values(resolved: dict[str, Any], *, num_gpus: int) -> dict[str, Any]:
    """The request's fields.

    Args:
        resolved: what `engine.recipe.resolve` gives.
        num_gpus: GPUs that will train, on all machines.
    """
    request: dict[str, Any] = {k: resolved[k] for k in SAME if resolved.get(k) is not None}
    request["model"] = resolved.get("model_name_or_path")
    request["num_gpus"] = max(1, num_gpus)
    request["transformers"] = STACK
    if request.get("attn_implementation") is None:
        request.pop("attn_implementation", None)
    for name in ("lora_target_modules", "lora_modules_to_save"):
        if resolved.get(name):
            request[name] = resolved[name]
    if request.get("method") == "full":
        request.pop("lora_r", None)
    else:  # `bf16_master` speaks of trained weights; a frozen base has the type that it is loaded in
        request["bf16_master"] = "fp32" if resolved.get("dtype") in ("float32", "fp32") else "bf16"
    if request.get("method") == "qlora":
        if resolved.get("load_in_8bit"):
            request["quant"] = "int8"
        else:
            kind = resolved.get("bnb_4bit_quant_type") or "nf4"
            nested = resolved.get("use_bnb_nested_quant", True)
            request["quant"] = "fp4" if kind == "fp4" else ("nf4-dq" if nested else "nf4")
        request["lora_dtype"] = "bf16"  # TRL casts adapters on a quantised base
    if resolved.get("eval_strategy") not in (None, "no", False):
        request["per_device_eval_batch_size"] = resolved.get("per_device_eval_batch_size")
    steps = resolved.get("max_steps")
    if isinstance(steps, int) and steps > 0:
        request["max_steps"] = steps
    request["loss"] = "liger" if resolved.get("use_liger_kernel") else "chunked"  # TRL computes it in chunks itself
    if resolved.get("backend") == "unsloth":
        request["framework"] = "unsloth"
    kept = resolved.get("save_total_limit")
    if isinstance(kept, int) and kept > 0:
        request["checkpoints_kept"] = kept
    if request.get("num_gpus") == 1 and request.get("sharding") in ("ddp", "fsdp2", "zero2", "zero3", "pipeline"):
        request["sharding"] = "auto"
    if request.get("sharding") == "none" and request["num_gpus"] > 1:
        request["sharding"] = "auto"
    return request


def plan_of(resolved: dict[str, Any], *, num_gpus: int, gpu: str | None, gpu_memory_gb: float | None) -> Result:
    """The plan of a resolved recipe on given cards: what a launcher asks before it starts.

    `result.problems` is empty when it fits; `result.request.sharding` is what `sharding: auto` became.

    Raises:
        UsageError: the model is not known, or a value makes no sense.
    """
    return plan(parse(held_against(resolved, num_gpus, gpu, gpu_memory_gb)), user=user_file())


def held_against(
    resolved: dict[str, Any], num_gpus: int, gpu: str | None, gpu_memory_gb: float | None
) -> dict[str, Any]:
    """The request's fields with the cards that it is held against and the lengths of its data."""
    request = values(resolved, num_gpus=num_gpus) | {"gpu": gpu, "gpu_memory_gb": gpu_memory_gb}
    found = lengths(resolved.get("dataset_path"))
    if found:
        request |= {"length_histogram": found, "lengths_estimated": True}
    return {key: value for key, value in request.items() if value is not None}


NOT_IN_RECIPES = frozenset({"server", "gpu", "loss"})  # other machines; losses that the trainer does not offer


def recipe_changes(change: dict[str, Any], given: dict[str, Any]) -> dict[str, Any] | None:
    """The recipe's keys that take a piece of advice; None where a recipe cannot say it.

    Args:
        change: the `change` of a row of advice.
        given: what the recipe itself says: where it does not give the accumulation, that is derived.
    """
    if NOT_IN_RECIPES & set(change):
        return None
    keys = dict(change)
    if given.get("gradient_accumulation_steps") is None:
        keys.pop("gradient_accumulation_steps", None)
    return keys


def lengths(path: str | Path | None) -> list[tuple[int, int]] | None:
    """The lengths of a local JSON-lines file, from its first rows and its size: about four bytes a token.

    An estimate for the time and for packing; preparing the data counts them.
    """
    if not path:
        return None
    file = folder() / "data" / "support.jsonl" if path == "builtin:support" else Path(path)
    if file.suffix not in (".jsonl", ".json") or not file.is_file():
        return None
    counts: Counter[int] = Counter()
    seen = rows = 0
    with file.open("rb") as stream:
        for line in itertools.islice(stream, SAMPLE):
            if line.strip():
                tokens = max(1, round(len(line) / BYTES_PER_TOKEN))
                counts[-(-tokens // BUCKET) * BUCKET] += 1
                rows += 1
            seen += len(line)
    if not rows:
        return None
    scale = file.stat().st_size / seen
    return [(length, max(1, round(number * scale))) for length, number in sorted(counts.items())]
