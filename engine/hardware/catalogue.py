"""The catalogue of cards: memory, dense rates, bandwidth, links, each card with its source (catalogue.json)."""

from __future__ import annotations

import difflib
import functools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from engine.errors import UsageError
from engine.text import _

DATA = Path(__file__).with_name("catalogue.json")
MAKERS = re.compile(r"\b(nvidia|amd|tesla|geforce|instinct|radeon|quadro)\b", re.IGNORECASE)
MAX_CARDS = 1024  # in one server's spelling: a bound on nonsense


@dataclass(frozen=True)
class Card:
    """One card's figures, all from `source`; rates are dense, None where the hardware lacks the type.

    `memory_gb` is the datasheet's; `reported_mib` what nvidia-smi shows on such a card (the vendor's GB are nearer
    to GiB), None where we have not seen one. Links: GB/s of one card in both directions.
    """

    id: str
    vendor: str
    names: tuple[str, ...]
    spellings: tuple[str, ...]
    arch: str
    capability: str
    memory_gb: float
    reported_mib: int | None
    bf16_tflops: float | None
    fp16_tflops: float
    fp8_tflops: float | None
    bandwidth_gb_s: float
    nvlink_gb_s: float | None
    power_w: float
    source: str

    @property
    def memory_bytes(self) -> int:
        """The datasheet's memory in bytes (GB = 10^9): what a plan for a card that is not here counts on."""
        return int(self.memory_gb * 10**9)

    @property
    def reported_bytes(self) -> int | None:
        """The memory that the driver shows on such a card, in bytes."""
        return None if self.reported_mib is None else self.reported_mib << 20


@functools.cache
def cards() -> tuple[Card, ...]:
    """All cards, in the order of the file."""
    rows: list[dict[str, Any]] = orjson.loads(DATA.read_bytes())["cards"]
    for row in rows:
        row["names"], row["spellings"] = tuple(row["names"]), tuple(row["spellings"])
    return tuple(Card(**row) for row in rows)


def lookup(name: str) -> Card | None:
    """The card that the driver calls `name`, or that a person means by it: "H100", "rtx4090", "A100 40GB".

    A MIG instance is no card: its share of the rates is not in any datasheet.
    """
    if " MIG " in name:
        return None
    return _index().get(_normal(name))


def parse_server(text: str) -> tuple[int, Card]:
    """Number and card of a server's spelling: "8xH200", "8 x H100 80GB", "H200x8", "L4".

    Raises:
        UsageError: no such card, or a number that makes no sense.
    """
    before = re.fullmatch(r"\s*(\d+)\s*[x×*]\s*(.+)", text, re.IGNORECASE)
    after = re.fullmatch(r"(.+?)\s*[x×*]\s*(\d{1,4})\s*", text, re.IGNORECASE)
    count, name = (int(before[1]), before[2]) if before else (1, text)
    card = lookup(name)
    if card is None and not before and after:
        count, name = int(after[2]), after[1]
        card = lookup(name)
    if card is None:
        near = difflib.get_close_matches(_normal(name), list(_index()), n=3, cutoff=0.5)
        known = dict.fromkeys(_index()[spelling].id for spelling in near) or [c.id for c in cards()[:8]]
        raise UsageError(
            _("the catalogue has no card '{name}'").format(name=name.strip()[:60]),
            fix=_("known are for example {names}").format(names=", ".join(known)),
            kind="unknown_card",
        )
    if not 1 <= count <= MAX_CARDS:
        raise UsageError(
            _("'{text}' does not name a number of cards").format(text=text.strip()[:60]),
            fix=_("write for example 8xH200"),
            kind="bad_server",
        )
    return count, card


def _normal(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", MAKERS.sub("", name).lower())


@functools.cache
def _index() -> dict[str, Card]:
    """Cards by normal spelling; drivers' names first, so that a loose spelling never takes one away."""
    index: dict[str, Card] = {}
    for card in cards():
        for name in card.names:
            index[_normal(name)] = card
    for card in cards():
        for name in (card.id, *card.spellings):
            index.setdefault(_normal(name), card)
    for card in cards():
        for name in (card.id, *card.names, *card.spellings):
            for suffix in ("{:g}gb", "{:g}"):
                index.setdefault(_normal(name) + suffix.format(card.memory_gb), card)
    return index
