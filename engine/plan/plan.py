"""The closed form as one pure function: a request in, a result out.

result = plan(parse({"model": "Qwen/Qwen3-8B", "method": "qlora", "gpu": "RTX4090"}))
result.to_json()
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.hardware.catalogue import Card
from engine.plan import mounts, on_cpu, servers, speed, storage
from engine.plan.device import Device, device
from engine.plan.memory import Memory, memory
from engine.plan.mounts import Mount
from engine.plan.request import Request
from engine.plan.servers import Offers, Server
from engine.plan.speed import Speed
from engine.plan.storage import Storage
from engine.plan.tokens import train_tokens
from engine.text import _

if TYPE_CHECKING:
    from engine.plan.measured import Correction, History

GB = 1e9
# Half-width of the stated band (docs/planner.md): what is counted from shapes is nearly exact, what passes is not.
STATE_ERROR, PASSING_ERROR = 0.02, 0.12
LEAST_BAND, MOST_BAND = 0.03, 0.145
OTHER_STACK = 1.5  # stacks that were measured less
RULE = {"qlora": 0.75, "lora": 3.0, "full": 18.0}
RULE_USABLE = 0.92


@dataclass(frozen=True)
class Context:
    """What a plan is held against: the card, its memory, the server and the catalogue."""

    card: Card | None
    capacity: float | None
    server: Server | None
    offers: Offers
    link: str | None = None
    history: History | None = None  # what earlier runs measured

    @classmethod
    def bare(cls) -> Context:
        """Nothing to hold a plan against."""
        return cls(None, None, None, Offers((), {}, 1.0))


@dataclass(frozen=True)
class Result:
    """A plan."""

    request: Request
    memory: Memory
    device: Device
    band: float
    verdict: str | None
    storage: Storage
    speed: Speed | None
    hours: float | None
    tokens: float | None
    money: tuple[dict[str, Any], ...]
    context: Context
    sharding_reason: str | None = None
    advice: tuple[dict[str, Any], ...] = ()
    currency: str | None = None  # amounts are shown in it too, where there is a rate
    correction: Correction | None = None  # by the measured run of the same kind
    mounts: tuple[Mount, ...] = ()  # this machine's disks, where the plan is for this machine
    host: float | None = None  # and the bytes of its memory

    @property
    def problems(self) -> list[str]:
        """What does not fit: `memory`, `disk`, `host`."""
        found = ["memory"] if self.verdict == "no" else []
        server = self.context.server
        spread = storage.spread(self.storage, server.nvme_tb) if server else None
        if (spread is not None and not spread["fits"]) or not all(mount.possible for mount in self.mounts):
            found.append("disk")
        if self.host_total is not None and self.storage.host > self.host_total:
            found.append("host")
        return found

    @property
    def host_total(self) -> float | None:
        """Bytes of host memory beside the GPUs: the server's, or this machine's; None where not known."""
        server = self.context.server
        return server.ram_gb * GB if server is not None and server.ram_gb else self.host

    @property
    def low(self) -> float:
        """Lower end of the allocated band, bytes."""
        return self.memory.peak.total * (1 - self.band)

    @property
    def high(self) -> float:
        """Upper end of the allocated band, bytes."""
        return self.memory.peak.total * (1 + self.band)

    @property
    def spare(self) -> float | None:
        """Bytes of the card that stay free at the least need."""
        return None if self.context.capacity is None else self.context.capacity - self.device.needs

    @property
    def resume(self) -> float:
        """Bytes of a GPU (of the host, on the processor) while a checkpoint is loaded."""
        return self.memory.resume + self.device.overhead

    def to_json(self) -> dict[str, Any]:
        """The result as `ftui plan --json` prints it."""
        peak, d, s = self.memory.peak, self.device, self.storage
        breakdown = {k: _gb(v) for k, v in peak.parts.items() if v} | {"overhead": _gb(d.device - peak.total)}
        for part in ("weights", "gradients", "optimizer", "activations", "logits", "transients"):
            breakdown.setdefault(part, 0.0)
        trained = self.memory.state.trained
        return {
            "id": self.request.id,
            "model": self.request.model,
            "parameters": self.request.shape.parameters,
            "trained_parameters": round(trained),
            "sharding": self.request.sharding,
            "per_gpu": {
                "allocated_gb": _gb(peak.total),
                "low_gb": _gb(self.low),
                "high_gb": _gb(self.high),
                "reserved_gb": _gb(d.reserved),
                "device_gb": _gb(d.device),
                "needs_gb": _gb(d.needs),
                "capacity_gb": None if self.context.capacity is None else _gb(self.context.capacity),
                "resume_gb": _gb(self.resume),
                "phase": peak.name,
                "breakdown": breakdown,
                "phases": {p.name: _gb(p.total) for p in self.memory.phases},
            },
            "verdict": self.verdict,
            "problems": self.problems,
            "host_ram_gb": _gb(s.host),
            "host": {"load": _gb(s.host_load), "run": _gb(s.host_run), "merge": _gb(s.host_merge)},
            "disk": self.disk(),
            "time": self.time(),
            "money": [self.converted(m) for m in self.money],
            "break_even": servers.break_evens(self.context.offers, self.context.card, self.request.num_gpus),
            "advice": list(self.advice),
            "cross_check": self.cross_check(),
            "sharding_reason": self.sharding_reason,
            "corrected_by": None if self.correction is None else self.correction.to_json(),
            "notes": list(self.request.notes),
        }

    def cross_check(self) -> dict[str, Any]:
        """A provider's rule of thumb beside our figure: so many GB a billion parameters, of 92 % of the cards."""
        capacity = self.context.capacity
        return {
            "rule_gb": round(RULE[self.request.method] * self.request.shape.parameters / 1e9, 1),
            "usable_gb": None
            if capacity is None
            else round(RULE_USABLE * capacity / servers.USABLE / GB * self.request.num_gpus, 1),
        }

    def converted(self, cost: dict[str, Any]) -> dict[str, Any]:
        """A cost with its amount in the user's currency beside it, where the catalogue has a rate."""
        if self.currency is None or self.currency == cost["currency"]:
            return cost
        found = self.context.offers.convert(cost["amount"], cost["currency"], self.currency)
        if found is None:
            return cost
        return cost | {"converted": {"amount": round(found[0], 2), "currency": self.currency, "rate_of": found[1]}}

    def disk(self) -> dict[str, Any]:
        """The disk part, GB."""
        s = self.storage
        return {
            "base": _gb(s.base),
            "checkpoint": _gb(s.checkpoint, 3),
            "checkpoints_kept": s.kept,
            "checkpoints": _gb(s.checkpoints, 3),
            "merged": _gb(s.merged),
            "merged_fp8": _gb(s.merged_fp8),
            "tokenised": _gb(s.tokenised, 3),
            "total": _gb(s.total),
            "spread": self.spread,
            "here": [mount.to_json() for mount in self.mounts],
        }

    @property
    def spread(self) -> dict[str, Any] | None:
        """How the files lie on the drives of the server, or on those of this machine where one does not hold them."""
        if self.mounts:
            return mounts.spread(self.storage, self.mounts)
        return storage.spread(self.storage, self.context.server.nvme_tb if self.context.server else ())

    def time(self) -> dict[str, Any]:
        """The time part: tokens a second of one GPU, hours with their band."""
        if self.speed is None:
            return {"tokens_per_s": None, "hours": None, "low": None, "high": None, "basis": None}
        low = high = None
        if self.hours is not None:
            half = speed.BAND
            if self.correction is not None and self.timed_by_a_run:
                half = min(speed.BAND, max(speed.MEASURED_BAND, self.correction.spread))
            low, high = self.hours / (1 + half), self.hours / (1 - half)
        return {
            "tokens_per_s": round(self.speed.per_gpu, 1),
            "tokens_per_s_total": round(self.speed.total, 1),
            "hours": _round(self.hours),
            "low": _round(low),
            "high": _round(high),
            "tokens": self.tokens,
            "limited_by": self.speed.limited_by,
            "basis": self.basis,
        }

    @property
    def basis(self) -> str:
        """What the speed rests on: an `estimate`, a `measured` run, or a `probe`."""
        if self.correction is None or not self.timed_by_a_run:
            return "estimate"
        return "probe" if self.correction.probe else "measured"

    @property
    def timed_by_a_run(self) -> bool:
        """Whether the speed comes from a measured run of the same kind."""
        return self.correction is not None and self.correction.tokens_per_s is not None


def _gb(value: float, digits: int = 2) -> float:
    return round(value / GB, digits)


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def context(r: Request, user: Path | None = None) -> Context:
    """What a request is held against; a server named in it fills in the card and the number of GPUs (see `on_server`).

    Raises:
        UsageError: an unknown card without its memory, or a broken catalogue.
    """
    offered = servers.offers(user)
    card, capacity = servers.card_of(r)
    server = None
    if r.server is not None:
        _count, _card, server = servers.find(offered, r.server)
    same = servers.same_cards(offered, card, r.num_gpus) if card is not None else []
    link = "pcie" if card and not card.nvlink_gb_s else None
    if server is not None:
        link = server.interconnect or link
    elif same:
        link = same[0].interconnect or link
        # `8xH200` means a server of the catalogue; cards alone are the user's own, whose drives are not known here
        server = same[0] if r.server is not None else None
    return Context(card, capacity, server, offered, link)


def on_server(r: Request, user: Path | None = None) -> Request:
    """The request with the cards of the server that it names.

    Raises:
        UsageError: no such server.
    """
    if r.server is None:
        return r
    count, card, _server = servers.find(servers.offers(user), r.server)
    return r.replace(gpu=card.id, num_gpus=count, gpu_memory_gb=None)


def band(r: Request, m: Memory) -> float:
    """Half-width of the allocated band, as a share of the peak."""
    if r.compile or r.shape.counted is not None or r.shape.experts:
        return MOST_BAND
    peak = m.peak
    state = sum(peak.parts.get(part, 0.0) for part in ("weights", "gradients", "optimizer"))
    if peak.name == "step":
        state += peak.parts["transients"]
    share = min(1.0, state / peak.total)
    half = STATE_ERROR * share + PASSING_ERROR * (1 - share)
    return min(MOST_BAND, max(LEAST_BAND, half * (1.0 if r.framework == "hf" else OTHER_STACK)))


def verdict(m: Memory, d: Device, half: float, capacity: float | None) -> str | None:
    """`fits` when even the upper end does, `no` when not even the lower end does, `tight` between."""
    if capacity is None:
        return None
    margin = m.peak.total * half
    if d.needs + margin <= capacity:
        return "fits"
    return "no" if d.needs - margin > capacity else "tight"


def evaluate(r: Request, ctx: Context) -> Result:
    """A plan without advice, for a request whose sharding is decided; corrected by what a run of its kind measured."""
    m = memory(r)
    if r.gpu == on_cpu.CPU:
        m, half = on_cpu.memory(m), on_cpu.BAND
        d = on_cpu.device(m)
    else:
        d, half = device(r, m, ctx.capacity), band(r, m)
    rate = speed.speed(r, m, ctx.card, ctx.link)
    tokens = train_tokens(r)
    fits = verdict(m, d, half, ctx.capacity)
    result = Result(r, m, d, half, fits, storage.storage(r, m, tokens), rate, None, tokens, (), ctx)
    if rate is not None:
        result = at_speed(result, rate)
    return result if ctx.history is None else ctx.history.correct(result)


def at_speed(result: Result, rate: Speed) -> Result:
    """The result with the time and the money that follow from a speed."""
    r, ctx, tokens = result.request, result.context, result.tokens
    hours = tokens / rate.total / 3600 if tokens is not None else None
    money: tuple[dict[str, Any], ...] = ()
    if hours is not None and ctx.card is not None:
        basis = {"basis": result.basis}
        named = ctx.server is not None and r.server is not None and r.server.lower() == ctx.server.id.lower()
        fitting = [ctx.server] if named and ctx.server else servers.same_cards(ctx.offers, ctx.card, r.num_gpus)
        money = tuple(servers.cost(s, hours, ctx.offers.hours_per_month) | basis for s in fitting)
    return dataclasses.replace(result, speed=rate, hours=hours, money=money)


def plan(
    r: Request,
    *,
    user: Path | None = None,
    advise: bool = True,
    currency: str | None = None,
    history: History | None = None,
    home: Path | None = None,
) -> Result:
    """Plan a request.

    Args:
        r: the request (`request.parse`).
        user: the user's own catalogue of servers.
        advise: add ranked advice (each costs a plan of its own).
        currency: the user's, for amounts beside the providers' own.
        history: what earlier runs of this workspace measured (`measured.read`).
        home: the workspace, for a plan of a run on this machine: its disks are looked at.

    Raises:
        UsageError: an unknown card without its memory, or a server that is not in the catalogue.
    """
    from engine.plan import advice, choose

    r = on_server(r, user)
    ctx = dataclasses.replace(context(r, user), history=history)
    reason = None
    if r.sharding == "auto":
        chosen, reason = choose.sharding(r, ctx)
        r = chosen
    result = dataclasses.replace(evaluate(r, ctx), sharding_reason=reason, currency=currency)
    if home is not None:
        total = None if r.gpu == on_cpu.CPU else mounts.host_memory()
        result = dataclasses.replace(result, mounts=mounts.look(r, result.storage, home), host=total)
    if advise:
        result = dataclasses.replace(result, advice=tuple(advice.advise(result)))
    return result


def card_name(result: Result) -> str | None:
    """What the speed was measured on."""
    return result.context.card.id if result.context.card is not None else result.request.gpu


def describe_verdict(result: Result) -> str:
    """The verdict in words."""
    return {
        "fits": _("fits"),
        "tight": _("tight: within the error of the prediction"),
        "no": _("does not fit"),
        None: _("no card to hold it against"),
    }[result.verdict]
