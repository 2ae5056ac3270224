"""Tokens per second: what the cores, the memory and the links of a card take, counted operation by operation.

Matrix products run at a share of the dense peak that falls with their width, attention at a share of its own; what lies
between them moves the tape's bytes at the speed of the memory; nothing is faster than Python launches its kernels.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.hardware.catalogue import Card
from engine.plan.layers import BF16, FP32, layer
from engine.plan.memory import Memory, numerics
from engine.plan.request import Request
from engine.plan.shapes import Shape

EFFICIENCY = 0.82  # of the dense peak, in wide matrix products
NARROW = 512.0  # a product over this many values reaches half of that: loading and storing its tiles
ATTENTION = 0.5  # of the peak, in FlashAttention's kernels forward and backward
BANDWIDTH = 0.80  # of the memory's rate that kernels between the products reach
LAUNCHES, LAUNCH = 3.0, 6e-6  # kernels of one operation on the tape, and seconds until Python has started one
LOSS_BYTES = 46  # a value of the vocabulary: bf16 and fp32 logits, shifted, their log-softmax, its gradient, casts
CHUNK_BYTES = 12  # the same where a fused loss makes them in pieces
LINK = 0.7  # of a link's rate that collectives reach
PCIE = 25e9  # bytes a second each way, where there is no faster link
HIDDEN = 0.7  # of the computing time, behind which communication can hide
EXPOSED = 0.2  # of the communication, which never hides
CPU_ADAM = 15e9  # bytes of optimizer state that a host updates in a second
BAND = 0.25
MEASURED_BAND = 0.08  # of a speed that a run of the same kind reached


@dataclass(frozen=True)
class Speed:
    """Tokens a second of one GPU, and of all together; `flops` of one token."""

    per_gpu: float
    total: float
    flops: float
    limited_by: str


def flops_per_token(r: Request) -> float:
    """Floating-point operations of one token, forward, backward and what checkpointing repeats.

    Forward is two operations a parameter and the causal half of the attention scores; backward twice that when
    weights are trained, once when only an adapter is; checkpointing repeats the layers' forward.
    """
    s = r.shape
    parameters = 2.0 * s.active_parameters
    attention = _scores(r)
    forward = parameters + attention
    backward = (2.0 if r.method == "full" else 1.0) * parameters + 2.0 * attention
    repeated = forward - 2.0 * s.vocab * s.hidden if r.gradient_checkpointing else 0.0
    reference = 0.0
    if r.task == "dpo" and not r.precompute_ref:
        reference = forward
    return forward + backward + repeated + reference


def _scores(r: Request) -> float:
    """Operations of one token's attention scores, forward: the causal half."""
    context = r.longest if r.shape.window is None else min(r.longest, r.shape.window)
    return 2.0 * context * r.shape.q * r.shape.layers


def _narrowness(s: Shape) -> float:
    """How much longer the model's products take than wide ones, by their narrower side."""
    wide = s.vocab * s.hidden
    taken = wide * (1 + NARROW / s.hidden)
    for block in s.blocks:
        for linear in block.linears:
            used = linear.n_in * linear.n_out * (s.experts_per_token if linear.copies > 1 else 1) * block.count
            wide += used
            taken += used * (1 + NARROW / min(linear.n_in, linear.n_out))
    return taken / wide


def speed(r: Request, m: Memory, card: Card | None, link: str | None = None) -> Speed | None:
    """How fast a request runs on a card; None for a card whose figures are not known."""
    if card is None:
        return None
    peak = (card.bf16_tflops or card.fp16_tflops) * 1e12
    if r.fp8 and card.fp8_tflops:
        peak = card.fp8_tflops * 1e12
    bandwidth = card.bandwidth_gb_s * 1e9
    s, num, tokens = r.shape, numerics(r), float(r.tokens)
    flops = flops_per_token(r)
    passes = 4.0 if r.gradient_checkpointing else 3.0  # forward once or twice, backward is worth two
    replays = [(block, layer(s, block, num)) for block in s.blocks]
    moved = passes * sum(replay.traffic * block.count for block, replay in replays)
    moved += s.vocab * (LOSS_BYTES if r.loss == "full" else CHUNK_BYTES) * tokens
    scores = passes * _scores(r)
    compute = tokens * ((flops - scores) * _narrowness(s) / EFFICIENCY + scores / ATTENTION) / peak
    launches = passes * LAUNCHES * LAUNCH * sum(replay.operations * block.count for block, replay in replays)
    memory = max(moved / (BANDWIDTH * bandwidth), launches - compute)
    st = m.state
    update = 3.0 * (st.weights * (r.method == "full") + st.gradients + st.optimizer) / bandwidth
    communication, updates = _communication(r, m, card, link)
    if r.cpu_offload:
        updates += st.trained * 3 * FP32 / r.num_gpus / CPU_ADAM + st.trained * 2 * FP32 / r.num_gpus / PCIE
    busy = compute + memory
    exposed = max(EXPOSED * communication, communication - HIDDEN * busy)
    micro = busy + exposed
    seconds = micro * r.accumulation + update + updates
    per_gpu = tokens * r.accumulation / seconds
    if r.sharding == "pipeline" and r.num_gpus > 1:
        per_gpu /= r.num_gpus  # layers work in turn: the cards together do what one would
    limits = {"compute": compute, "memory": memory, "communication": exposed, "optimizer": (update + updates)}
    return Speed(per_gpu, per_gpu * r.num_gpus, flops, max(limits, key=lambda k: limits[k]))


def _communication(r: Request, m: Memory, card: Card, link: str | None) -> tuple[float, float]:
    """Seconds of collectives in one micro-batch, and in one step beside them."""
    n = r.num_gpus
    if n == 1 or r.sharding in ("none", "pipeline"):
        return 0.0, 0.0
    fast = card.nvlink_gb_s if link in (None, "nvlink") else None
    rate = LINK * fast * 1e9 / 2 if fast else PCIE
    if r.num_machines > 1:
        rate = min(rate, PCIE)
    share = (n - 1) / n
    trained = m.state.trained * BF16 * share / rate
    base = float(BF16 * r.shape.parameters)
    if r.method == "qlora":
        base = 0.5 * r.shape.linear_weights + BF16 * (r.shape.embedding + r.shape.head)
    if r.sharding in ("fsdp1", "fsdp2", "zero3"):
        gathers = 2.0 if r.reshard_after_forward else 1.0
        reduce = trained if r.method == "full" else 0.0
        return gathers * base * share / rate + reduce, 0.0 if r.method == "full" else trained
    return 0.0, 2.0 * trained
