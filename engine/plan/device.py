"""From what tensors hold to what a card must have: the caching allocator, the CUDA context, the verdict.

The allocator keeps freed blocks and hands out one that is large enough; it never joins blocks of different segments.
So tensors of very different sizes do not share memory well, and optimizer state that is first made inside blocks
which activations have left takes these away for good. The formulas below follow a step through that; their few
coefficients are fitted on published pairs of allocated and nvidia-smi figures (docs/planner.md).
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.plan.layers import BF16
from engine.plan.memory import Memory
from engine.plan.request import Request

CONTEXT = 0.75e9  # CUDA context, cuBLAS and cuDNN workspaces
NCCL = 0.7e9  # communicators' buffers
SPLIT = 0.105  # of activations: blocks split for smaller tensors
SPLIT_FSDP = 0.17  # the same where gathering and reducing run on streams with pools of their own
POOLS_FSDP = 0.85e9  # what these pools keep beside what is in use
LOADED = 0.45  # of a quantised model that each card loads whole before sharding: freed, but in broken blocks
EXPANDABLE = 0.25  # share of the slack that remains with expandable_segments
LEAST = 0.02  # slack that stays when the allocator gives cached blocks back and retries


@dataclass(frozen=True)
class Device:
    """Bytes on one card."""

    reserved: float
    device: float
    needs: float
    overhead: float


def device(r: Request, m: Memory, capacity: float | None) -> Device:
    """What the allocator reserves, what nvidia-smi shows, and the least that a card must have.

    Args:
        r: the request.
        m: its memory.
        capacity: bytes of the card; the allocator gives cached blocks back before it goes beyond.
    """
    outside = CONTEXT + (NCCL if r.num_gpus > 1 else 0.0)
    peak = m.peak.total
    reserved = peak + _slack(r, m) * (EXPANDABLE if r.expandable_segments else 1.0)
    limit = max(peak * (1 + LEAST / 2), capacity - outside) if capacity else reserved
    reserved = min(reserved, limit)
    return Device(reserved, reserved + outside, peak * (1 + LEAST) + outside, outside)


def _slack(r: Request, m: Memory) -> float:
    sharded = r.sharding in ("fsdp1", "fsdp2") and not r.fsdp1_no_shard
    st = m.state
    kept = st.weights + st.casts + st.optimizer
    passing = {p: p.total - kept for p in (m.phase("loss"), m.phase("backward"))}
    end = m.phase("end of backward")
    passing[end] = end.total - kept - end.parts["gradients"]
    acting = max(passing, key=lambda p: passing[p])
    gradients = end.parts["gradients"] if acting is end else 0.0
    acts = passing[acting]
    logits = acting.parts.get("logits", 0.0)
    slack = (SPLIT_FSDP if sharded else SPLIT) * (acts - logits)
    if r.loss == "full" and r.framework != "litgpt":
        # bf16 logits leave a block too small for the fp32 copies; forward's blocks came before theirs
        copies = 2 if r.shape.family == "granite" else 1  # granite scales its logits into a second tensor
        slack = copies * BF16 * r.shape.vocab * r.tokens + m.forward
    if sharded:
        slack += POOLS_FSDP
        if r.method == "qlora" and r.fused_kernels:
            slack += LOADED * st.weights * (r.num_gpus - 1)
    blocks = acts + slack
    state = kept - st.optimizer
    if r.method != "full":
        return max(0.0, kept + gradients + blocks - m.peak.total)
    # The first step: gradients fill blocks that activations have left, then the optimizer's state does, for good.
    flat = sharded and r.loss != "full"  # flat parameters are larger than those blocks, and made on another stream
    free = blocks if flat else max(0.0, blocks - st.gradients)
    taken = min(st.optimizer, free)
    new_gradients = st.gradients if flat else max(0.0, st.gradients - blocks)
    new_step = st.step if flat else max(0.0, st.step - (free - taken))
    total = state + blocks + new_gradients + (st.optimizer - taken) + new_step + taken
    return max(0.0, total - m.peak.total)
