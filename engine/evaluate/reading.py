"""Reading answers side by side without knowing whose they are: the votes, and what they say.

`votes.jsonl` in the evaluation's folder gets one line a vote; the newest of a row counts.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.evaluate import statistics
from engine.journal import JournalWriter, read_all
from engine.text import _, number

VOTES = "votes.jsonl"
CHOICES = ("a", "b", "same", "bad")


@dataclass(frozen=True)
class Pair:
    """Two answers to a prompt; `tuned_is_a` is not shown before the vote."""

    id: str
    prompt: str
    reference: str | None
    a: str
    b: str
    tuned_is_a: bool


def pairs(folder: Path) -> list[Pair]:
    """The rows of an evaluation that both models have answered; the side of each is drawn from its own name."""
    found = []
    for row in read_all(folder / "rows.jsonl"):
        base, tuned = row.get("base"), row.get("tuned")
        if not isinstance(base, str) or not isinstance(tuned, str) or row.get("set") == "regression":
            continue
        first = bool(random.Random(zlib.crc32(f"{folder.parent.parent.name} {row['id']}".encode())).getrandbits(1))  # noqa: S311
        a, b = (tuned, base) if first else (base, tuned)
        found.append(Pair(str(row["id"]), str(row.get("prompt") or ""), row.get("reference"), a, b, first))
    return found


def vote(folder: Path, pair: Pair, choice: str, note: str = "") -> None:
    """Keep a vote: `a`, `b`, `same` or `bad` (both are)."""
    assert choice in CHOICES
    writer = JournalWriter(folder / VOTES)
    try:
        won = choice if choice in ("same", "bad") else "tuned" if (choice == "a") == pair.tuned_is_a else "base"
        writer.append("vote", row=pair.id, choice=choice, won=won, note=note)
        writer.sync()
    finally:
        writer.close()


def votes(folder: Path) -> dict[str, dict[str, Any]]:
    """The newest vote of each row."""
    return {str(line["row"]): line for line in read_all(folder / VOTES) if line.get("row") and line.get("won")}


def tally(found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Counts, the share of wins among decided rows with its interval, and how likely it is by chance."""
    counts = {
        word: sum(1 for line in found.values() if line["won"] == word) for word in ("tuned", "base", "same", "bad")
    }
    decided = counts["tuned"] + counts["base"]
    share = counts["tuned"] / decided if decided else None
    low, high = statistics.wilson(share, decided) if share is not None else (None, None)
    p = statistics.sign_test(counts["tuned"], counts["base"])
    return {**counts, "votes": len(found), "share": share, "low": low, "high": high, "p": p}


def summary(folder: Path) -> dict[str, Any] | None:
    """What the report says of the votes; None without any."""
    found = votes(folder)
    if not found:
        return None
    result = tally(found)
    result["notes"] = list(_notes(found))
    result["text"] = text(result)
    return result


def text(result: dict[str, Any]) -> str:
    """The tally in one sentence."""
    said = _(
        "{n} rows read blind: tuned better in {tuned}, base in {base}, alike in {same}, both bad in {bad}."
    ).format(n=number(result["votes"]), **{word: number(result[word]) for word in ("tuned", "base", "same", "bad")})
    if result["share"] is None:
        return said
    sure = _("{share} % of the decided ones ({low} to {high} %, p = {p})").format(
        share=number(100 * result["share"]),
        low=number(100 * result["low"]),
        high=number(100 * result["high"]),
        p=number(result["p"], 3),
    )
    return f"{said} {sure}"


def _notes(found: dict[str, dict[str, Any]]) -> Iterator[dict[str, str]]:
    for row, line in found.items():
        if line.get("note"):
            yield {"row": row, "note": str(line["note"]), "won": str(line["won"])}
