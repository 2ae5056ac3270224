"""What one GPU holds for the whole run: weights, gradients and optimizer state, by method and sharding."""

from __future__ import annotations

from dataclasses import dataclass

from engine.plan import optimizers
from engine.plan.layers import BF16, FP32
from engine.plan.request import Request
from engine.plan.shapes import Shape

ZERO_BUCKET = 500_000_000  # DeepSpeed's reduce and prefetch buckets, elements
ZERO3_LIVE = 1_000_000_000  # stage3_max_live_parameters


@dataclass(frozen=True)
class State:
    """What stays for the whole run, on one GPU, and what a step adds to it (bytes)."""

    weights: float
    optimizer: float
    gradients: float  # once backward has ended
    step: float  # temporary at the optimizer's step
    casts: float  # bf16 copies that autocast keeps through backward
    forward_casts: float  # and those that it keeps only until forward ends
    end_casts: float  # and those that are left at the end of backward
    trained: float  # parameters that are trained, all GPUs together
    root: float = 0.0  # gathered embedding and head
    gathered: float = 0.0  # gathered layer
    gathered_grads: float = 0.0  # its gradients before they are reduced
    tail: float = 0.0  # gathered final norm and head, where they are a unit of their own
    root_grads: float = 0.0  # gradients of embedding and head while they are reduced
    buckets: float = 0.0
    adapter: float = 0.0  # the adapter's share of weights + gradients + optimizer, for the breakdown


def in_units(r: Request) -> bool:
    """FSDP2 as accelerate of transformers 5 prepares it: embedding and head are units of their own, all of it bf16."""
    return r.sharding == "fsdp2" and r.framework == "hf" and (r.transformers or 0.0) >= 5


def quantised_bytes(r: Request) -> float:
    """Bytes of one quantised weight with its constants."""
    return {
        "nf4": 0.5 + 4 / 64,  # one fp32 maximum for 64 weights
        "fp4": 0.5 + 4 / 64,
        "nf4-dq": 0.5 + 1 / 64 + 4 / (64 * 256),  # the maxima in 8 bits, with an fp32 one for 256 of them
        "gptq": 0.5 + 2.5 / 128,  # an fp16 scale and a 4-bit zero for 128 weights
        "int8": 1.0,
    }[r.quant]


def adapter_parameters(r: Request, *, fused: bool = True) -> float:
    """Parameters that an adapter trains: A and B of each matrix, DoRA's magnitudes, whole modules to save.

    Without `fused`, those on transformers 5's fused experts are left out.
    """
    total = 0
    for block in r.shape.blocks:
        for lin in block.linears:
            if lin.name in r.lora_targets and (fused or lin.copies == 1 or r.experts_quantised):
                # transformers 5's experts have gate and up in one parameter, which PEFT gives twice the rank
                twice = lin.copies > 1 and not r.experts_quantised and lin.name != "down_proj"
                sides = lin.n_in + lin.n_out * (2 if twice else 1)
                total += block.count * lin.copies * (r.lora_r * sides + (lin.n_out if r.use_dora else 0))
    if "embed_tokens" in r.lora_targets or "lm_head" in r.lora_targets:
        names = r.lora_targets & {"embed_tokens", "lm_head"}
        total += len(names) * r.lora_r * (r.shape.vocab + r.shape.hidden)
    return float(total + saved_modules(r))


def saved_modules(r: Request) -> float:
    """Parameters of `modules_to_save`, which are trained whole beside the adapter."""
    s, total = r.shape, 0
    for name in r.lora_modules_to_save:
        if name in ("embed_tokens", "lm_head"):
            total += s.vocab * s.hidden
        else:
            total += sum(b.by_name[name].parameters * b.count for b in s.blocks if name in b.by_name)
    return float(total)


def base_bytes(r: Request) -> float:
    """Bytes of all base weights, on one device."""
    s = r.shape
    parameters = float(s.parameters) + (s.vocab * s.hidden if r.untie and s.tied else 0)
    if r.method != "qlora":
        return parameters * (FP32 if r.bf16_master == "fp32" else BF16)
    quantised = quantised_weights(r)
    if r.framework == "litgpt":  # its quantisation takes the head too
        quantised += s.head
    # k-bit preparation makes the rest fp32; trainers of transformers 4 cast embedding and head back
    wide = r.kbit_prepare and (r.transformers or 0) >= 5
    return quantised * quantised_bytes(r) + (parameters - quantised) * (FP32 if wide else BF16)


def quantised_weights(r: Request) -> float:
    """Elements of the base that are quantised: the layers' matrices, never the router."""
    experts = r.experts_quantised
    return float(
        sum(
            lin.weights * b.count
            for b in r.shape.blocks
            for lin in b.linears
            if not lin.fused or (experts and lin.copies > 1)
        )
    )


def state(r: Request) -> State:
    """What one GPU holds for the whole run."""
    s, n = r.shape, r.num_gpus
    full = r.method == "full"
    trained = float(s.parameters) + (s.vocab * s.hidden if r.untie and s.tied else 0) if full else adapter_parameters(r)
    wide = r.bf16_master == "fp32" if full else r.lora_dtype != "bf16"
    width = FP32 if wide else BF16
    base = base_bytes(r)
    adapter = 0.0 if full else trained * width
    rule = optimizers.rule(r.optim)
    states = trained * rule.state_bytes(width)
    if full:
        states += rule.tables * width * float(s.embedding)
    step = rule.step_bytes(trained, width, largest(s) if full else trained)
    grads = trained * width
    casts = 0.0
    if not full and wide and r.framework not in ("litgpt", "torchtune"):
        casts = BF16 * adapter_parameters(r, fused=False)  # PEFT adds those of fused experts to the weights in fp32
    if in_units(r):
        casts = 0.0  # gathered in bf16
    forward_casts, end_casts = 0.0, casts
    if full and wide and r.sharding in ("none", "ddp", "pipeline") and r.framework != "litgpt":
        every = BF16 * float(s.parameters) * (stage_share(s, n) if r.sharding == "pipeline" else 1.0)
        one_layer = BF16 * float(s.widest.parameters)
        casts = every if not r.gradient_checkpointing else one_layer
        forward_casts, end_casts = every - casts, min(casts, one_layer)
    if r.optimizer_in_bwd:
        grads, step = width * float(s.widest.parameters if full else trained / s.layers), 0.0
    weights = base + adapter
    extra: dict[str, float] = {}
    root = BF16 * float(s.embedding + s.head)
    one = BF16 * float(s.widest.parameters)
    mode = "ddp" if r.fsdp1_no_shard else r.sharding
    if r.task == "dpo" and full and not r.precompute_ref:
        weights += BF16 * float(s.parameters)  # the reference model; an adapter is switched off instead
    if mode in ("fsdp1", "fsdp2"):
        packed = one if r.method != "qlora" else layer_packed(r)
        replicated = 0.0
        if r.method == "qlora":  # the constants are no parameters: each GPU keeps all of them
            replicated = (
                quantised_weights(r) * (quantised_bytes(r) - 0.5) if r.quant in ("nf4", "nf4-dq", "fp4") else 0.0
            )
        weights = (weights - replicated) / n + replicated
        states, grads, step = states / n, grads / n, step / n
        extra = {"root": root, "gathered": packed}
        if in_units(r):
            extra["tail"] = BF16 * float(s.head or s.embedding)
            extra["root"] = root - extra["tail"]
        elif full:  # FSDP1 reduces in bf16, FSDP2 in the fp32 that its gradients are kept in
            extra["gathered_grads"] = one + (BF16 if mode == "fsdp1" else FP32) * float(s.widest.parameters)
            extra["root_grads"] = root * (2.0 if mode == "fsdp1" else 3.0)
        if r.cpu_offload:
            weights, states, grads, step = replicated, 0.0, 0.0, 0.0
    elif mode in ("zero1", "zero2", "zero3"):
        third = mode == "zero3"
        bucket = BF16 * min(float(ZERO_BUCKET), trained)
        compute = base if not full else BF16 * float(s.parameters)
        master = trained * FP32 if full else adapter
        weights = (compute / n if third else compute) + master / n
        states /= n
        grads = (trained * BF16) / (1 if mode == "zero1" else n)
        step = 0.0  # DeepSpeed steps partition by partition
        extra = {"buckets": 2 * bucket}
        if third:
            extra |= {"gathered": min(BF16 * ZERO3_LIVE, BF16 * float(s.parameters)), "root": root}
        if r.cpu_offload:
            weights -= master / n
            states = 0.0
    elif mode == "ddp":
        extra = {"buckets": grads}  # the reducer's buckets hold a second copy of the gradients
    elif mode == "pipeline" and n > 1:
        share = stage_share(s, n)
        weights, states, grads, step = weights * share, states * share, grads * share, step * share
    return State(
        weights=weights, optimizer=states, gradients=grads, step=step, casts=casts,
        forward_casts=forward_casts, end_casts=end_casts, trained=trained,
        adapter=0.0 if full else adapter + states + grads, **extra,
    )  # fmt: skip


def stage_share(s: Shape, stages: int) -> float:
    """Share of the weights on the last of several GPUs in turn: its layers and the head."""
    held = -(-s.layers // stages) * s.widest.parameters + s.head + s.vocab * s.hidden * s.tied
    return min(1.0, held / s.parameters)


def layer_packed(r: Request) -> float:
    """Bytes of one gathered 4-bit layer."""
    block = r.shape.widest
    packed = sum(lin.weights for lin in block.linears if not lin.fused or (r.experts_quantised and lin.copies > 1))
    return packed * (1.0 if r.quant == "int8" else 0.5) + BF16 * (block.parameters - packed)


def largest(s: Shape) -> float:
    """Elements of the largest parameter."""
    return float(max(s.vocab * s.hidden, *(lin.weights for b in s.blocks for lin in b.linears)))
