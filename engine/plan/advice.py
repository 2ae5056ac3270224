"""Ranked advice: changes to a request, each planned, those that make it fit first."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from engine.errors import UsageError
from engine.plan import choose, servers
from engine.plan.plan import Result, context, evaluate
from engine.plan.request import Request
from engine.text import _, gigabytes, number

MOST = 6
GAIN = 0.05  # a saving below this share is not worth a line


@dataclass(frozen=True)
class Change:
    """A changed request, what it is called, and how much it takes from the result (0 nothing, 3 another method)."""

    request: Request
    keys: dict[str, Any]
    text: str
    price: int


def advise(result: Result) -> list[dict[str, Any]]:
    """The best changes to a plan, best first."""
    rows: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    for change in changes(result):
        try:
            ctx = result.context
            if change.request.gpu != result.request.gpu or change.request.num_gpus != result.request.num_gpus:
                ctx = dataclasses.replace(context(change.request), history=ctx.history)
            request = change.request
            if request.sharding == "auto":
                request = choose.sharding(request, ctx)[0]
            other = evaluate(request, ctx)
        except UsageError:
            continue
        score = _score(result, other, change)
        if score is not None:
            rows.append((score, _row(result, other, change)))
    rows.sort(key=lambda row: row[0])
    elsewhere = [row for _rank, row in rows if "server" in row["change"]]
    kept = {id(row) for row in _servers_worth(elsewhere)}
    return [row for _rank, row in rows if "server" not in row["change"] or id(row) in kept][:MOST]


def _servers_worth(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of the other servers that fit, the cheapest for the run and the fastest."""
    fitting = [row for row in rows if row["verdict"] == "fits"] or rows
    if not fitting:
        return []
    priced = [row for row in fitting if row["money"]]
    cheapest = min(priced, key=lambda row: row["money"]["amount"]) if priced else fitting[0]
    fastest = max(fitting, key=lambda row: row["tokens_per_s"] or 0.0)
    return [cheapest] if cheapest is fastest else [cheapest, fastest]


def _score(result: Result, other: Result, change: Change) -> tuple[Any, ...] | None:
    """Rank of a change, or None when it brings nothing."""
    fits = choose.RANK[other.verdict]
    if result.verdict in ("no", "tight"):
        if fits >= choose.RANK[result.verdict] and other.device.needs > result.device.needs * (1 - GAIN):
            return None
        return fits, change.price, other.hours or 0.0, other.device.needs
    if fits:
        return None
    if result.hours and other.hours:
        before, after = _cheapest(result), _cheapest(other)
        quicker = other.hours < result.hours * (1 - GAIN)
        cheaper = before is not None and after is not None and after < before * (1 - GAIN)
        if not quicker and not cheaper:
            return None
        return change.price > 1, change.price, other.hours
    if result.speed and other.speed and other.speed.total > result.speed.total * (1 + GAIN):
        return change.price > 1, change.price, -other.speed.total
    return None


def _cheapest(result: Result) -> float | None:
    amounts = [m["amount"] for m in result.money if m["currency"] == "USD"]
    return min(amounts) if amounts else None


def _row(result: Result, other: Result, change: Change) -> dict[str, Any]:
    row: dict[str, Any] = {
        "change": change.keys,
        "text": change.text,
        "verdict": other.verdict,
        "allocated_gb": round(other.memory.peak.total / 1e9, 2),
        "needs_gb": round(other.device.needs / 1e9, 2),
        "tokens_per_s": None if other.speed is None else round(other.speed.total, 1),
        "hours": None if other.hours is None else round(other.hours, 3),
        "money": min(other.money, key=lambda m: (m["currency"] != "USD", m["amount"])) if other.money else None,
    }
    if result.speed and other.speed:
        row["speed_ratio"] = round(other.speed.total / result.speed.total, 3)
    return row


def changes(result: Result) -> Iterator[Change]:
    """Everything that is worth a try."""
    r = result.request
    yield from _batch(result)
    if not r.gradient_checkpointing:
        yield Change(
            r.replace(gradient_checkpointing=True), {"gradient_checkpointing": True},
            _("gradient checkpointing: layers are computed again in backward"), 0,
        )  # fmt: skip
    elif result.verdict == "fits":
        yield Change(
            r.replace(gradient_checkpointing=False), {"gradient_checkpointing": False},
            _("no gradient checkpointing: nothing is computed twice"), 0,
        )  # fmt: skip
    if r.loss == "full":
        yield Change(r.replace(loss="chunked"), {"loss": "chunked"}, _("chunked loss: no full logits"), 0)
    if r.attn_implementation == "eager":
        yield Change(
            r.replace(attn_implementation="sdpa"), {"attn_implementation": "sdpa"}, _("sdpa: no matrix of scores"), 0
        )
    if r.lengths and not r.packing and r.task != "dpo":
        yield Change(r.replace(packing=True), {"packing": True}, _("packing: no padding"), 0)
    if r.lengths or result.verdict != "fits":
        yield from _length(r)
    if r.cpu_offload and r.num_gpus > 1:
        yield from _without_offload(r)
    if "8bit" not in r.optim.lower() and r.method == "full":
        yield Change(r.replace(optim="adamw_8bit"), {"optim": "adamw_8bit"}, _("8-bit optimizer states"), 1)
    if r.kbit_prepare and r.method == "qlora":
        yield Change(
            r.replace(kbit_prepare=False), {"kbit_prepare": False}, _("no k-bit preparation: bf16 residual stream"), 0
        )
    if r.num_gpus > 1 and r.sharding in ("ddp", "none"):
        yield Change(r.replace(sharding="fsdp2"), {"sharding": "fsdp2"}, _("FSDP2: sharded over the GPUs"), 0)
    if result.verdict != "fits" and not r.cpu_offload and r.num_gpus > 1 and r.sharding != "ddp":
        yield Change(
            r.replace(sharding="fsdp2", cpu_offload=True), {"cpu_offload": True},
            _("state in host memory ({size})").format(
                size=gigabytes(result.memory.state.trained * 12, 0)
            ), 1,
        )  # fmt: skip
    if result.verdict != "fits" and r.method == "full":
        yield Change(_lora(r, "lora"), {"method": "lora"}, _("LoRA instead of all weights"), 3)
    if result.verdict != "fits" and r.method in ("full", "lora"):
        yield Change(_lora(r, "qlora"), {"method": "qlora"}, _("QLoRA: the base in 4 bits"), 3)
    yield from _servers(result)


def _lora(r: Request, method: str) -> Request:
    from engine.plan.shapes import target_names

    targets = r.lora_targets or target_names(r.shape, None)
    dtype = "bf16" if method == "qlora" else "fp32"
    return r.replace(method=method, lora_targets=targets, bf16_master="bf16", lora_dtype=dtype, optim=r.optim)


def _batch(result: Result) -> Iterator[Change]:
    """Micro-batch and accumulation at an equal global batch."""
    r = result.request
    whole = r.accumulation * r.per_device_train_batch_size
    if result.verdict != "fits" and r.per_device_train_batch_size > 1:
        micro = r.per_device_train_batch_size
        while micro > 1:
            micro //= 2
            if whole % micro:
                continue
            keys = {"per_device_train_batch_size": micro, "gradient_accumulation_steps": whole // micro}
            text = _("micro-batch {micro}, accumulation {steps}").format(micro=micro, steps=whole // micro)
            yield Change(r.replace(**keys), keys, text, 0)
    elif result.verdict == "fits" and whole > r.per_device_train_batch_size:
        micro = r.per_device_train_batch_size * 2
        if whole % micro == 0:
            keys = {"per_device_train_batch_size": micro, "gradient_accumulation_steps": whole // micro}
            text = _("micro-batch {micro}, accumulation {steps}").format(micro=micro, steps=whole // micro)
            yield Change(r.replace(**keys), keys, text, 0)


def _without_offload(r: Request) -> Iterator[Change]:
    """Smaller micro-batches with the state on the GPUs: often faster than one larger with it in host memory."""
    whole, micro = r.accumulation * r.per_device_train_batch_size, r.per_device_train_batch_size
    while micro > 1:
        micro //= 2
        if whole % micro == 0:
            keys: dict[str, Any] = {
                "per_device_train_batch_size": micro,
                "gradient_accumulation_steps": whole // micro,
                "cpu_offload": False,
            }
            text = _("micro-batch {micro}, accumulation {steps}, no offload")
            yield Change(r.replace(**keys), keys, text.format(micro=micro, steps=whole // micro), 0)


def _length(r: Request) -> Iterator[Change]:
    """A shorter max_length, with the share of rows that it cuts where the lengths are known."""
    if r.max_length < 512:
        return
    half = r.max_length // 2
    if r.lengths:
        total = sum(rows for _length, rows in r.lengths)
        cut = sum(rows for length, rows in r.lengths if length > half) / total
        text = _("max_length {length}: cuts {share} % of the rows").format(length=half, share=number(100 * cut, 1))
        price = 0 if cut == 0 else 1 if cut < 0.02 else 2
    else:
        text, price = _("max_length {length}: longer rows are cut").format(length=half), 2
    yield Change(r.replace(max_length=half), {"max_length": half}, text, price)


def _servers(result: Result) -> Iterator[Change]:
    """The cheapest other servers, one for each kind."""
    r, ctx = result.request, result.context
    if ctx.card is None:
        return
    seen: set[str] = set()
    wanted = [s for s in ctx.offers.servers if s.currency == "USD" and s.id.startswith(("a-", "b-", "c-"))]
    for server in sorted(wanted, key=lambda s: s.gpus * (s.card.bf16_tflops or 0)):
        if server.spec in seen or (server.card.id == ctx.card.id and server.gpus == r.num_gpus):
            continue
        seen.add(server.spec)
        if result.verdict != "fits" and servers.card_memory(server.card) * server.gpus < result.device.needs:
            continue
        changed = r.replace(gpu=server.card.id, num_gpus=server.gpus, gpu_memory_gb=None, server=server.id)
        micro = r.per_device_train_batch_size
        if r.global_batch_size:
            if r.global_batch_size % (micro * server.gpus):
                continue
            changed = changed.replace(gradient_accumulation_steps=None)
        changed = changed.replace(sharding="auto")
        yield Change(changed, {"server": server.id}, _("server {name}").format(name=server.spec), 2)
