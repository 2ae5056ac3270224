"""Which checkpoint a run goes on from: chosen by what its files contain, never by its number alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from engine.checkpoint import ledger, verify
from engine.checkpoint.ledger import Entry
from engine.checkpoint.problems import clean


@dataclass(frozen=True)
class Choice:
    """The checkpoint to go on from. `exact`: nothing in it is missing for the run that it would have been."""

    entry: Entry
    exact: bool


def choose(
    checkpoints: Path, *, step: int | None = None, at_most: int | None = None
) -> tuple[Choice | None, list[str]]:
    """The newest checkpoint whose content is whole, and those that had to be skipped, each with its reason.

    Reads from the newest to older ones, and no more than it must.

    Args:
        checkpoints: the folder that holds them.
        step: this one or none.
        at_most: none beyond this step (what came later is to be forgotten).
    """
    if at_most is None:
        found, passed = verify.choose(checkpoints, step=step)
        return _choice(found), [reason(checked) for checked in passed]
    skipped: list[str] = []
    seen: set[int] = set()
    for entry in reversed(ledger.list(checkpoints)):
        if entry.state == "staging" or entry.step > at_most or entry.step in seen:
            continue
        seen.add(entry.step)
        found, passed = verify.choose(checkpoints, step=entry.step)
        skipped += [reason(checked) for checked in passed]
        if (choice := _choice(found)) is not None:
            return choice, skipped
    return None, skipped


def reason(checked: verify.Checked) -> str:
    """Why a checkpoint was passed over: `checkpoint-40: optimizer.pt is missing`."""
    worst = checked.findings[0].detail if checked.findings else checked.state
    return f"{clean(checked.path.name)}: {worst}"


def _choice(found: verify.Checked | None) -> Choice | None:
    entry = ledger.inspect(found.path) if found is not None else None
    # Retired between the two looks, or whole to one reader and not to the other: then it is not safe to take.
    return None if found is None or entry is None or not entry.resumable else Choice(entry, found.exact)
