"""The choice for `sharding: auto`: the fastest that fits, and why."""

from __future__ import annotations

from engine.plan.plan import Context, evaluate
from engine.plan.request import Request
from engine.plan.speed import BAND
from engine.text import _

FASTER = 1 + BAND  # nearer than the error of an estimate, the simpler way is as good
RANK = {"fits": 0, "tight": 1, "no": 2, None: 0}


def sharding(r: Request, ctx: Context) -> tuple[Request, str]:
    """Choose how a request is spread over its GPUs.

    The order is from the simplest to the one that asks most of the machine: one GPU alone; DDP, which copies
    everything and only sums gradients; FSDP2, which shards it; FSDP2 with the state in host memory. The first that
    fits is taken, a later one only where it is clearly faster.

    Returns:
        The request with its sharding (and offload) decided, and the reason.
    """
    if r.num_gpus == 1:
        if r.cpu_offload:
            return r.replace(sharding="zero2"), _("one GPU with its optimizer in host memory: DeepSpeed's offload")
        return r.replace(sharding="none"), _("one GPU")
    candidates = [r.replace(sharding="ddp"), r.replace(sharding="fsdp2")]
    if r.cpu_offload:
        candidates = [r.replace(sharding="fsdp2")]
    results = [evaluate(candidate, ctx) for candidate in candidates]
    fitting = [result for result in results if RANK[result.verdict] == 0]
    if fitting:
        best = fitting[0]
        for result in fitting[1:]:
            if result.speed and best.speed and result.speed.total > FASTER * best.speed.total:
                best = result
        if best.request.sharding == "ddp":
            return best.request, _("a whole copy fits each GPU; DDP only sums the trained gradients")
        if len(fitting) == len(results) and len(results) > 1:
            return best.request, _("both DDP and FSDP2 fit; FSDP2 is faster here")
        return best.request, _("a whole copy does not fit one GPU; FSDP2 shards weights, gradients and states")
    best = min(results, key=lambda result: (RANK[result.verdict], result.device.needs))
    if best.verdict == "tight":
        return best.request, _("{name} needs the least memory; it is tight even so").format(name=best.request.sharding)
    offloaded = evaluate(r.replace(sharding="fsdp2", cpu_offload=True), ctx)
    if RANK[offloaded.verdict] < RANK["no"]:
        return offloaded.request, _("nothing fits without it: FSDP2 with the state in host memory")
    return best.request, _("nothing fits; {name} comes nearest").format(name=best.request.sharding)
