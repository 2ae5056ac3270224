"""Memory of one GPU, phase by phase: the peak is the largest phase, never a sum of each part's maximum."""

from __future__ import annotations

from dataclasses import dataclass

from engine.plan.layers import BF16, FP32, Numerics, layer
from engine.plan.request import Request
from engine.plan.shapes import Block
from engine.plan.state import State, base_bytes, in_units, state

PARTS = ("weights", "gradients", "optimizer", "activations", "logits", "transients")
# no sdpa for Gemma 2's softcap and gpt-oss' sinks; Falcon gives it one key head for all queries
NO_SDPA = ("gemma2", "gpt_oss", "falcon")
LITGPT_CHUNK = 128  # tokens of one chunk of LitGPT's cross-entropy
TRL_WIDTH = 32768  # columns of a tile of TRL's fused head since it has kernels of its own
TRL_TILE = 4096 * 8192  # logits that TRL's fused head holds at once


@dataclass(frozen=True, eq=False)
class Phase:
    """One phase and what it holds, in bytes."""

    name: str
    parts: dict[str, float]

    @property
    def total(self) -> float:
        """Bytes allocated at this phase's peak."""
        return sum(self.parts.values())


@dataclass(frozen=True)
class Memory:
    """The phases of a step and the largest one."""

    phases: tuple[Phase, ...]
    state: State
    forward: float  # one layer's forward without gradients
    resume: float  # while a checkpoint is loaded: its states become the optimizer's without a copy

    @property
    def peak(self) -> Phase:
        """The phase that decides."""
        return max(self.phases, key=lambda phase: phase.total)

    def phase(self, name: str) -> Phase:
        """A phase by name."""
        return next(p for p in self.phases if p.name == name)


def numerics(r: Request) -> Numerics:
    """How the request's layers are computed."""
    litgpt = r.framework == "litgpt"
    torchtune = r.framework == "torchtune"
    unsloth = r.framework == "unsloth"
    full = r.method == "full"
    sharded = r.sharding in ("fsdp1", "fsdp2", "zero1", "zero2", "zero3")
    old = r.transformers is not None and r.transformers < 4.48
    # fp32 weights under autocast: the sharded wrappers hand bf16 to the layers instead
    wide = r.bf16_master == "fp32" and not sharded
    repeat = False
    if old and not litgpt:
        repeat = r.attn_implementation != "flash" or r.shape.family in ("mistral", "mixtral", "qwen2", "phi3")
    liger = r.loss == "liger" and not r.fused_kernels
    return Numerics(
        tokens=r.tokens,
        sequence=r.longest,
        trains_base=full,
        checkpointed=r.gradient_checkpointing,
        weight_bytes=FP32 if wide else BF16,
        grad_bytes=FP32 if wide else BF16,
        lora=r.lora_targets,
        rank=0 if full else r.lora_r,
        lora_bytes=BF16 if r.lora_dtype == "bf16" or in_units(r) else FP32,
        dora=r.use_dora,
        dropout=r.lora_dropout > 0 and not unsloth,
        autocast=not (litgpt or torchtune),
        quant=r.quant if r.method == "qlora" else None,
        residual=FP32 if (wide and not litgpt) or (r.kbit_prepare and r.method == "qlora") else BF16,
        attention="eager" if r.attn_implementation == "eager" or _without_sdpa(r) else "flash",
        repeat_kv=repeat,
        fused_norm=r.fused_kernels or liger or r.compile or unsloth,
        fused_mlp=liger or r.compile or unsloth,
        fused_lora=unsloth or (r.fused_kernels and r.method == "qlora"),
        quant_experts=r.experts_quantised,
        old_bnb=r.year is not None and r.year <= 2023,
        litgpt=litgpt,
    )


def _without_sdpa(r: Request) -> bool:
    """Whether transformers 5 runs this family's `sdpa` with all scores: it has none, or no fused kernel takes it."""
    return r.attn_implementation == "sdpa" and (r.transformers or 0.0) >= 5 and r.shape.family in NO_SDPA


def head_bytes(r: Request) -> tuple[float, float, float]:
    """The loss: bytes beside the layers at its peak, bytes of it that stay for backward, gradient of the head."""
    s, t = r.shape, float(r.tokens)
    v, d = float(s.vocab), float(s.hidden)
    full = r.method == "full" or "lm_head" in r.lora_modules_to_save
    grad = BF16 * v * d if full else 0.0
    norm = 8 * d * t  # final norm: input, fp32 copy, output
    if r.framework == "litgpt":
        # fp32 logits stay in a variable, their log-softmax is saved chunk by chunk
        unpacked = 2 * BF16 if r.year is not None and r.year <= 2023 else BF16
        dequantised = unpacked * v * d if r.method == "qlora" else 0.0
        one = (2 * FP32 + BF16) * v * min(t, LITGPT_CHUNK * r.per_device_train_batch_size)
        pieces = 3 if r.loss == "full" else 2
        return (pieces * FP32 * v + 6 * d) * t + one + dequantised, FP32 * v * t, grad
    if r.framework == "torchtune" and r.loss == "chunked":
        return norm + (BF16 + FP32) * v * t + 2 * FP32 * v * t / 8, 0.0, grad
    if r.loss == "chunked" or r.framework == "unsloth":
        tile = 10.0 * min(float(TRL_TILE), v * min(t, 4096.0))
        if (r.transformers or 0.0) >= 5 and r.framework == "hf":  # folded in place; as wide for a small vocabulary
            tile = BF16 * TRL_WIDTH * min(t, 4096.0)
        return norm + (2 * BF16 + FP32) * d * t + tile + (FP32 * v * d if full else 0.0), 0.0, grad
    if r.loss == "liger":
        rows = t / max(1.0, v / d)  # its chunks make V/d pieces of the batch
        wide = 2 * BF16 * d * t
        return norm + wide + (BF16 + 2 * FP32) * v * rows + grad, 0.0, grad
    copies = 2.0 if r.fused_kernels else 3.0  # a fused cross-entropy writes the gradient over its logits
    if r.transformers is not None and 4.46 <= r.transformers < 4.495:
        copies = 4.0  # the upcast logits stay beside the shifted ones
    if s.softcap:
        copies += 1.0
    return norm + copies * FP32 * v * t, 0.0, grad


def memory(r: Request) -> Memory:
    """All phases of a training step on one GPU."""
    s, st, num = r.shape, state(r), numerics(r)
    layers = [(block, layer(s, block, num)) for block in s.blocks]
    last = max(layers, key=lambda pair: pair[1].backward_peak)
    stages = r.num_gpus if r.sharding == "pipeline" else 1
    count = {id(block): block.count / stages for block, _replay in layers}
    boundary = float(num.residual * s.hidden * r.tokens)
    if r.framework == "unsloth" and r.gradient_checkpointing:
        boundary = 0.0  # its checkpoints wait in host memory
    if r.gradient_checkpointing:
        saved = sum(count[id(block)] for block, _ in layers) * boundary
    else:
        saved = sum(count[id(block)] * replay.saved for block, replay in layers)
        if num.weight_bytes == FP32 and num.trains_base and not num.litgpt:
            saved -= BF16 / stages * sum(lin.weights * b.count for b in s.blocks for lin in b.linears if not lin.fused)
    loss_peak, loss_kept, head_grad = head_bytes(r)
    inside = max(last[1].backward_peak, last[1].forward_peak)
    if not r.gradient_checkpointing:
        inside = last[1].backward_peak - last[1].saved
        loss_peak = max(loss_peak, last[1].forward_peak - last[1].saved)
    base = {"weights": st.weights + st.casts, "optimizer": st.optimizer}
    ring = st.root + st.gathered + st.buckets
    # in the loss no layer is gathered, unless they stay so for backward
    held = st.gathered * (s.layers if not r.reshard_after_forward else 0) + st.root + st.buckets
    # autocast drops its copies when forward ends; a part of the loss comes later
    later = BF16 * s.vocab * r.tokens if r.loss == "full" else FP32 * s.vocab * s.hidden
    in_forward = max(0.0, st.forward_casts - later)
    if in_units(r):
        # gathered are the head and the first layer of backward; then that one, the next, and the head's gradients
        held += st.tail + (st.gathered if r.reshard_after_forward else 0.0)
        ring = max(2 * st.gathered, held - st.tail) + (st.tail if r.method == "full" else 0.0)
        held = held if r.reshard_after_forward else ring
    earlier = st.gradients if r.accumulation > 1 else 0.0  # of the micro-batches before
    loss = Phase(
        "loss",
        base | {"activations": saved, "logits": loss_peak, "gradients": earlier, "transients": held + in_forward},
    )
    backward = Phase(
        "backward",
        base
        | {
            "activations": saved + inside,
            "logits": loss_kept,
            "gradients": max(earlier, head_grad) if in_units(r) else earlier + head_grad,
            "transients": ring if in_units(r) else max(ring, held),
        },
    )
    phases = [loss, backward, _end(r, st, base, last, boundary, head_grad)]
    if not r.optimizer_in_bwd:
        step = {"weights": st.weights, "optimizer": st.optimizer, "gradients": st.gradients, "transients": st.step}
        if r.sharding == "ddp":
            step["transients"] += st.buckets
        phases.append(Phase("step", step))
    if r.framework == "litgpt" and r.sharding == "fsdp1" and (r.year or 2024) <= 2023:
        phases.append(Phase("load", {"weights": base_bytes(r) * (1 + 1 / r.num_gpus)}))  # rank 0 has the whole model
    evaluation = _evaluation(r, base, ring, last)
    if evaluation:
        phases.append(evaluation)
    return Memory(tuple(phases), st, last[1].no_grad_peak, st.weights + st.optimizer)


def _end(
    r: Request, st: State, base: dict[str, float], last: tuple[Block, object], boundary: float, head: float
) -> Phase:
    """The end of backward: all gradients exist, one layer is recomputed, sharded gradients are being reduced."""
    s = r.shape
    inside = max(last[1].backward_peak, last[1].forward_peak)  # type: ignore[attr-defined]
    activations = inside + boundary
    base = base | {"weights": st.weights + st.end_casts}
    transients = st.root + st.gathered + st.buckets
    if r.sharding == "fsdp1" and r.method != "full" and r.gradient_checkpointing:
        # FSDP1 hooks the inputs of frozen layers: inputs and their gradients live until backward has ended
        activations = inside + boundary * (2 * s.layers - 2)
    if in_units(r) and r.method == "full":
        # the bottom layer and the gathered embedding, the layer above in reduction; or (last) the embedding's gradients
        missing = (s.embedding + s.widest.parameters) * st.gradients / st.trained if r.accumulation == 1 else 0.0
        layer_last, table = st.gathered + inside - missing, 2 * BF16 * float(s.embedding)
        transients, activations = st.gathered + st.root, 0.0
        transients = max(transients + layer_last, st.root + table)
    elif r.sharding in ("fsdp1", "fsdp2") and r.method == "full":
        # one layer recomputed, its gradients being reduced, or (last) those of embedding and head
        unreduced = (st.root / BF16 + s.widest.parameters) * st.gradients / st.trained
        activations = 0.0
        transients += max(inside + head - unreduced, st.gathered_grads + head - unreduced, st.root_grads - st.gathered)
    elif r.method == "full":
        # an earlier micro-batch's gradients meet a layer's new ones, or the table's; a tied table has two of its own
        again = r.accumulation > 1
        table = s.vocab * s.hidden * st.gradients / st.trained
        activations = inside - (0.0 if again else last[1].weight_grads)  # type: ignore[attr-defined]
        activations = max(activations, table * (again or s.tied)) + table * (again and s.tied)
    return Phase(
        "end of backward", base | {"gradients": st.gradients, "activations": activations, "transients": transients}
    )


def _evaluation(r: Request, base: dict[str, float], ring: float, last: tuple[Block, object]) -> Phase | None:
    """Evaluation without gradients: the logits of its batch, one layer's forward."""
    rows = r.per_device_eval_batch_size
    if rows is None:
        return None
    tokens = float(r.longest * rows) * (2 if r.task == "dpo" else 1)
    logits = 0.0 if r.loss in ("chunked", "liger") else (BF16 + 2 * FP32) * r.shape.vocab * tokens
    forward = last[1].forward_peak * tokens / max(1, r.tokens)  # type: ignore[attr-defined]
    return Phase("evaluation", base | {"logits": logits, "activations": forward, "transients": ring})
