"""Which checkpoint a run goes on from: chosen by what its files contain, never by its number alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from engine.checkpoint import choice
from engine.checkpoint.ledger import Entry


@dataclass(frozen=True)
class Choice:
    """The checkpoint to go on from. `exact`: nothing in it is missing for the run that it would have been."""

    entry: Entry
    exact: bool


def choose(
    checkpoints: Path, *, step: int | None = None, at_most: int | None = None
) -> tuple[Choice | None, list[str]]:
    """The newest checkpoint whose content is whole, and those that had to be skipped, each with its reason.

    Args:
        checkpoints: the folder that holds them.
        step: this one or none.
        at_most: none beyond this step (what came later is to be forgotten).
    """
    found = choice.choose(checkpoints, step=step, at_most=at_most)
    return (Choice(found.entry, found.exact) if found.entry is not None else None), found.skipped
