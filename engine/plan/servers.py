"""The catalogue of servers and prices, and what a run costs on them."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import UsageError
from engine.hardware import catalogue
from engine.hardware.catalogue import Card
from engine.plan.request import Request
from engine.text import _

BUILT_IN = Path(__file__).with_name("servers.yaml")
USABLE = 0.99  # of what the driver shows: it keeps a part of a card's memory for itself
FIELDS = {
    "id", "gpus", "card", "amount", "currency", "period", "vat", "nvme_tb", "ram_gb", "interconnect", "memory_gb",
}  # fmt: skip


@dataclass(frozen=True)
class Server:
    """One offer."""

    id: str
    gpus: int
    card: Card
    amount: float
    currency: str
    period: str
    vat: str
    nvme_tb: tuple[float, ...] = ()
    ram_gb: float | None = None
    interconnect: str | None = None

    @property
    def spec(self) -> str:
        """`8xH200-SXM`."""
        return f"{self.gpus}x{self.card.id}"


@dataclass(frozen=True)
class Offers:
    """All servers, and how currencies are turned into each other."""

    servers: tuple[Server, ...]
    rates: dict[str, tuple[float, str]]
    hours_per_month: float

    def convert(self, amount: float, currency: str, to: str) -> tuple[float, str] | None:
        """An amount in another currency with the rate's date, or None without a rate."""
        if currency == to:
            return amount, ""
        rates = {"USD": (1.0, "")} | self.rates
        if currency not in rates or to not in rates:
            return None
        return amount / rates[currency][0] * rates[to][0], rates[to][1] or rates[currency][1]


def card_memory(card: Card) -> float:
    """Bytes that programs can have of a card."""
    reported = card.reported_bytes
    return (reported if reported is not None else card.memory_bytes) * USABLE


@functools.lru_cache(maxsize=4)
def offers(user: Path | None = None) -> Offers:
    """The built-in catalogue with the user's file laid over it.

    Raises:
        UsageError: the user's file is wrong.
    """
    document = _read(BUILT_IN)
    servers = {row["id"]: _server(row, BUILT_IN) for row in document["servers"]}
    rates: dict[str, Any] = document.get("rates") or {}
    hours = document["hours_per_month"]
    if user is not None and user.is_file():
        own = _read(user)
        for row in own.get("servers") or []:
            server = _server(row, user)
            servers[server.id] = server
        rates = own.get("rates") or rates
        hours = own.get("hours_per_month", hours)
    return Offers(tuple(servers.values()), _rates(rates, user or BUILT_IN), float(hours))


def user_file() -> Path:
    """Where a user's own catalogue is looked for."""
    from engine import settings

    return settings.path().with_name("servers.yaml")


def _read(path: Path) -> dict[str, Any]:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        document = yaml.load(path.read_bytes(), Loader=loader)  # noqa: S506 - a safe loader, the fast one where it is
    except (OSError, yaml.YAMLError, ValueError) as error:
        line = getattr(getattr(error, "problem_mark", None), "line", None)
        where = f"{path}:{line + 1}" if line is not None else str(path)
        raise UsageError(_("the catalogue of servers cannot be read"), where=where, kind="bad_catalogue") from error
    if not isinstance(document, dict):
        raise UsageError(_("the catalogue of servers is not a mapping"), where=str(path), kind="bad_catalogue")
    return document


def _server(row: Any, path: Path) -> Server:
    def bad(text: str) -> UsageError:
        name = row.get("id", "?") if isinstance(row, dict) else "?"
        return UsageError(
            _("server '{id}' of the catalogue: {what}").format(id=str(name)[:40], what=text), where=str(path),
            kind="bad_catalogue",
        )  # fmt: skip

    if not isinstance(row, dict) or not isinstance(row.get("id"), str):
        raise bad(_("it needs an id"))
    unknown = set(row) - FIELDS
    if unknown:
        raise bad(_("unknown key '{key}'").format(key=str(min(unknown, key=str))[:40]))
    card = catalogue.lookup(str(row.get("card", "")))
    if card is None:
        raise bad(_("unknown card '{card}'").format(card=str(row.get("card"))[:40]))
    gpus, amount = row.get("gpus"), row.get("amount")
    if not isinstance(gpus, int) or isinstance(gpus, bool) or gpus < 1:
        raise bad(_("gpus must be a positive whole number"))
    if not isinstance(amount, int | float) or isinstance(amount, bool) or not math.isfinite(amount) or amount < 0:
        raise bad(_("amount must be a number"))
    if row.get("period") not in ("hour", "month"):
        raise bad(_("period must be hour or month"))
    drives = row.get("nvme_tb") or []
    return Server(
        id=row["id"], gpus=gpus, card=card, amount=float(amount), currency=str(row.get("currency", "USD")),
        period=row["period"], vat=str(row.get("vat", "excl")), nvme_tb=tuple(float(d) for d in drives),
        ram_gb=row.get("ram_gb"), interconnect=row.get("interconnect"),
    )  # fmt: skip


def _rates(rows: Any, path: Path) -> dict[str, tuple[float, str]]:
    rates: dict[str, tuple[float, str]] = {}
    for currency, row in (rows or {}).items():
        rate = row.get("per_usd") if isinstance(row, dict) else row
        if not isinstance(rate, int | float) or isinstance(rate, bool) or not rate > 0 or not math.isfinite(rate):
            raise UsageError(
                _("the rate of {currency} must be a positive number").format(currency=str(currency)[:10]),
                where=str(path), kind="bad_catalogue",
            )  # fmt: skip
        rates[str(currency)] = (float(rate), str(row.get("date", "")) if isinstance(row, dict) else "")
    return rates


def cost(server: Server, hours: float, hours_per_month: float) -> dict[str, Any]:
    """What a run of some hours costs on a server.

    `amount` is the run's share; `due` what must be paid: whole months of a lease, the hours themselves otherwise.
    """
    if server.period == "hour":
        amount = due = hours * server.amount
        share = None
    else:
        share = hours / hours_per_month
        amount, due = share * server.amount, max(1, math.ceil(share - 1e-9)) * server.amount
    return {
        "server": server.id, "gpus": server.spec, "amount": round(amount, 2), "due": round(due, 2),
        "currency": server.currency, "period": server.period, "price": server.amount, "vat": server.vat,
        "share_of_lease": None if share is None else round(share, 4),
    }  # fmt: skip


def break_even_hours(monthly: float, hourly: float) -> float:
    """Hours in a month from which a monthly price is the cheaper one."""
    return monthly / hourly


def break_evens(offered: Offers, card: Card | None, gpus: int) -> list[dict[str, Any]]:
    """For the servers of these cards: the hours from which a month is cheaper than paying by the hour."""
    if card is None:
        return []
    same = same_cards(offered, card, gpus)
    return [
        {"month": m.id, "hour": h.id, "hours": round(break_even_hours(m.amount, h.amount), 1), "currency": m.currency}
        for m in same
        for h in same
        if m.period == "month" and h.period == "hour" and m.currency == h.currency and h.amount
    ]


def same_cards(offered: Offers, card: Card, gpus: int) -> list[Server]:
    """The servers of a request."""
    return [s for s in offered.servers if s.card.id == card.id and s.gpus == gpus]


def find(offered: Offers, name: str) -> tuple[int, Card, Server | None]:
    """A server by its id, or by its cards (`8xH200`).

    Raises:
        UsageError: neither.
    """
    for server in offered.servers:
        if server.id.lower() == name.lower():
            return server.gpus, server.card, server
    try:
        count, card = catalogue.parse_server(name)
    except UsageError as error:
        error.where = error.where or "server"
        raise
    return count, card, None


def card_of(r: Request) -> tuple[Card | None, float | None]:
    """The request's card and the bytes a program can have of it.

    Raises:
        UsageError: an unknown GPU without its memory.
    """
    card = None
    if r.gpu is not None:
        name = r.gpu.split("x", 1)[1] if r.gpu[:1].isdigit() and "x" in r.gpu else r.gpu
        card = catalogue.lookup(name)
        if card is None and r.gpu_memory_gb is None:
            raise UsageError(
                _("the catalogue has no GPU '{gpu}'").format(gpu=r.gpu[:60]),
                where="gpu",
                fix=_("give its memory: gpu_memory_gb"),
                kind="unknown_card",
            )
    if r.gpu_memory_gb is not None:
        return card, r.gpu_memory_gb * 1e9
    return card, card_memory(card) if card else None
