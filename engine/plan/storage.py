"""Host memory and disk: loading, offloading and merging; the base model, checkpoints and what is made of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from engine.plan import optimizers
from engine.plan.layers import BF16, FP32
from engine.plan.memory import Memory
from engine.plan.request import Request
from engine.plan.state import adapter_parameters

PROCESS = 4e9  # host memory of one rank: Python, torch, CUDA's host side
SHARD = 5e9  # a shard of a model's files
FREE = 0.05  # of a drive that stays free
ROW_BYTES = 8  # of one stored token: ids and mask


@dataclass(frozen=True)
class Storage:
    """Bytes on disk and in host memory."""

    base: float
    checkpoint: float
    kept: int
    merged: float
    merged_fp8: float
    tokenised: float
    host_load: float
    host_run: float
    host_merge: float

    @property
    def checkpoints(self) -> float:
        """All checkpoints at the worst moment: those kept, the best one, and the one being written."""
        return self.checkpoint * (self.kept + 2)

    @property
    def total(self) -> float:
        """Everything on disk at the worst moment."""
        return self.base + self.checkpoints + self.merged + self.tokenised

    @property
    def host(self) -> float:
        """The largest need of host memory."""
        return max(self.host_load, self.host_run, self.host_merge)


def checkpoint_bytes(r: Request) -> float:
    """A checkpoint from which a run goes on: trained weights and the optimizer's state, never gradients."""
    rule = optimizers.rule(r.optim)
    if r.method == "full":
        trained = float(r.shape.parameters)
        wide = FP32 if r.bf16_master == "fp32" else BF16
        weights = wide * trained
        if r.sharding in ("zero1", "zero2", "zero3"):
            weights += BF16 * trained  # DeepSpeed writes the bf16 weights beside its fp32 master
    else:
        trained = adapter_parameters(r)
        wide = BF16 if r.lora_dtype == "bf16" else FP32
        weights = wide * trained
    tables = rule.tables * wide * float(r.shape.embedding) if r.method == "full" else 0.0
    return weights + trained * rule.full_bytes(wide) + tables


def storage(r: Request, m: Memory, train_tokens: float | None) -> Storage:
    """Disk and host memory of a request."""
    parameters = float(r.shape.parameters)
    base = BF16 * parameters
    shard = min(SHARD, base)
    ranks = r.num_gpus / r.num_machines
    if r.sharding in ("fsdp1", "fsdp2", "zero3") or (r.sharding != "ddp" and r.num_gpus > 1):
        load = base * (2 if r.method == "full" and r.bf16_master == "fp32" else 1)  # rank 0 reads, the others receive
    else:
        load = ranks * shard  # each rank streams one shard of the files at a time
    run = 0.0
    if r.cpu_offload:
        wide = FP32 if r.method != "full" or r.bf16_master == "fp32" else BF16
        rule = optimizers.rule(r.optim)
        run = m.state.trained * (wide + rule.full_bytes(wide))
        if r.sharding in ("fsdp1", "fsdp2"):
            run += m.state.trained * wide  # FSDP offloads gradients too
            if r.method != "full":
                run += base
        run += 2 * BF16 * float(r.shape.widest.parameters) * ranks  # pinned buffers
    elif optimizers.rule(r.optim).paged:
        run = m.state.trained * optimizers.rule(r.optim).full_bytes(FP32)
    if r.framework == "unsloth" and r.gradient_checkpointing:
        run += BF16 * r.shape.hidden * r.shape.layers * r.tokens * ranks
    if r.num_gpus == 1:  # a checkpoint's optimizer state is read here on its way to the GPU
        load = max(load, checkpoint_bytes(r))
    processes = PROCESS * ranks
    merge = 0.0 if r.method == "full" else 2 * shard + 2 * BF16 * float(r.shape.widest.parameters)
    return Storage(
        base=base, checkpoint=checkpoint_bytes(r), kept=r.checkpoints_kept, merged=base,
        merged_fp8=float(r.shape.linear_weights) + BF16 * (parameters - r.shape.linear_weights),
        tokenised=ROW_BYTES * (train_tokens or 0.0), host_load=load + processes, host_run=run + processes,
        host_merge=merge,
    )  # fmt: skip


def spread(s: Storage, drives_tb: tuple[float, ...]) -> dict[str, Any] | None:
    """How the files lie on a server's drives: on one where they fit, checkpoints one after another otherwise.

    Returns:
        `fits`, `drives` (how many the checkpoints need), `per_drive` (checkpoints that one drive holds), `each` (those
        that each gets), or None when the drives are not known.
    """
    if not drives_tb:
        return None
    room = [d * 1e12 * (1 - FREE) for d in drives_tb]
    count = s.kept + 2
    fixed = s.base + s.merged + s.tokenised
    if s.total <= max(room):
        return {"fits": True, "drives": 1, "per_drive": count, "reason": None, "each": [count] + [0] * (len(room) - 1)}
    # The first drive has the base, the merged output and what is left for checkpoints; the others have checkpoints.
    places = [math.floor(max(0.0, r - (fixed if i == 0 else 0.0)) / s.checkpoint) for i, r in enumerate(room)]
    each: list[int] = []
    for number in places:
        each.append(min(number, count - sum(each)))
    fits = room[0] >= fixed and sum(each) == count
    used = sum(number > 0 for number in each)
    return {
        "fits": fits, "drives": used if fits else len(room), "per_drive": max(places), "reason": "spread", "each": each,
    }  # fmt: skip
