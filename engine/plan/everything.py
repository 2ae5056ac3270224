"""`--all`: methods x servers, which fit, which is the cheapest and which the fastest."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.errors import UsageError
from engine.plan import choose, servers
from engine.plan.advice import _lora
from engine.plan.plan import Context, Result, evaluate
from engine.plan.request import METHODS, Request
from engine.plan.servers import Server

if TYPE_CHECKING:
    from engine.plan.measured import History


@dataclass(frozen=True)
class Row:
    """One method on one server."""

    method: str
    server: Server
    result: Result
    cheapest: bool = False
    fastest: bool = False

    @property
    def cost(self) -> dict[str, Any] | None:
        """What the run costs there."""
        return self.result.money[0] if self.result.money else None

    def to_json(self) -> dict[str, Any]:
        """The row as `--json` prints it."""
        speed = self.result.speed
        return {
            "method": self.method, "server": self.server.id, "gpus": self.server.spec,
            "sharding": self.result.request.sharding, "cpu_offload": self.result.request.cpu_offload,
            "verdict": self.result.verdict, "needs_gb": round(self.result.device.needs / 1e9, 2),
            "tokens_per_s": None if speed is None else round(speed.total, 1),
            "hours": None if self.result.hours is None else round(self.result.hours, 3), "money": self.cost,
            "cheapest": self.cheapest, "fastest": self.fastest,
        }  # fmt: skip


def compare(r: Request, user: Path | None = None, history: History | None = None) -> list[Row]:
    """All methods on all servers of the catalogue; the cheapest that fits and the fastest are marked for each method.

    What earlier runs measured corrects the rows of their kind; a speed counts on the card that it was measured on.
    Where the length of the run is not known, the cost of the same number of tokens decides.
    """
    offered = servers.offers(user)
    rows: list[Row] = []
    done: dict[tuple[str, str], Request | None] = {}
    for method in METHODS:
        changed = _method(r, method)
        for server in offered.servers:
            request = changed.replace(
                gpu=server.card.id, num_gpus=server.gpus, gpu_memory_gb=None, server=server.id, sharding="auto",
                cpu_offload=False,
            )  # fmt: skip
            if r.global_batch_size and r.global_batch_size % (r.per_device_train_batch_size * server.gpus):
                continue
            ctx = Context(
                server.card, servers.card_memory(server.card), server, offered,
                server.interconnect or ("nvlink" if server.card.nvlink_gb_s else "pcie"), history,
            )  # fmt: skip
            key = (method, server.spec)
            try:
                if key not in done:
                    done[key] = choose.sharding(request, ctx)[0]
                chosen = done[key]
                if chosen is not None:
                    rows.append(Row(method, server, evaluate(chosen.replace(server=server.id), ctx)))
            except UsageError:
                done[key] = None
    return _marked(rows, offered)


def _method(r: Request, method: str) -> Request:
    if method == r.method:
        return r
    if method == "full":
        return r.replace(method="full", bf16_master="fp32", lora_targets=frozenset(), lora_r=0, lora_modules_to_save=())
    return _lora(r.replace(lora_r=r.lora_r or 16), method)


def _marked(rows: list[Row], offered: servers.Offers) -> list[Row]:
    from dataclasses import replace

    marked = list(rows)
    for method in METHODS:
        fitting = [i for i, row in enumerate(marked) if row.method == method and row.result.verdict == "fits"]
        timed = [i for i in fitting if marked[i].result.speed]
        if timed:
            first = max(timed, key=lambda i: marked[i].result.speed.total)  # type: ignore[union-attr]
            marked[first] = replace(marked[first], fastest=True)
        priced = [(cost, i) for i in timed if (cost := _dollars(marked[i], offered)) is not None]
        if priced:
            cheap = min(priced)[1]
            marked[cheap] = replace(marked[cheap], cheapest=True)
    return marked


def _dollars(row: Row, offered: servers.Offers) -> float | None:
    """Dollars of a fixed amount of work: an hour's price over the speed."""
    speed = row.result.speed
    if speed is None:
        return None
    hourly = row.server.amount / (offered.hours_per_month if row.server.period == "month" else 1.0)
    converted = offered.convert(hourly, row.server.currency, "USD")
    return None if converted is None else converted[0] / speed.total
