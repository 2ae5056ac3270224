"""What `ftui ckpt prune` would remove from a run, and why the rest stays; retention's own rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.checkpoint import ledger, pins, retention
from engine.errors import FtuiError
from engine.files import read_json
from engine.text import _

DEFAULT_LIMIT = 3


@dataclass(frozen=True)
class Verdict:
    """One checkpoint: whether it goes, and the reason for people."""

    entry: ledger.Entry
    goes: bool
    reason: str


@dataclass(frozen=True)
class Plan:
    """What a prune does. `in_use` is the checkpoint that a live run began from."""

    checkpoints: Path
    limit: int
    best: str | None
    keep: frozenset[str]
    verdicts: list[Verdict]

    @property
    def bytes(self) -> int:
        """What removing would free."""
        return sum(verdict.entry.bytes for verdict in self.verdicts if verdict.goes)


def best_of(entries: Sequence[ledger.Entry]) -> str | None:
    """The name of the best checkpoint, as the newest one that can be read tells it."""
    for entry in reversed(entries):
        state = read_json(entry.path / "trainer_state.json") if entry.state == "complete" else None
        if isinstance(state, dict):
            best = state.get("best_model_checkpoint")
            return Path(best).name if isinstance(best, str) and best else None
    return None


def plan(run: Path, *, limit: int | None, in_use: str | None = None) -> Plan:
    """What a prune of a run would do.

    Args:
        run: the run folder.
        limit: how many of the newest to keep; None means what the run's recipe says.
        in_use: the path or name of the checkpoint that a live run goes on from.

    Raises:
        FtuiError: what must stay is not known: a file that says so cannot be read.
    """
    checkpoints = run / "checkpoints"
    if limit is None:
        limit = _limit_of(run)
    protected = retention.protected(run / "backup")
    if protected is None:
        raise FtuiError(
            _("it is not known what must stay: pins.json or backup/protected.json cannot be read"),
            where=str(run),
            fix=_("repair the file, or pin again after moving it away"),
            kind="protected_unreadable",
        )
    pinned = pins.read(run) or set()
    keep = set(protected)
    if in_use:
        keep.add(Path(in_use).name)
    entries = ledger.list(checkpoints)
    best = best_of(entries)
    going = {entry.path for entry in retention.to_go(entries, limit, best=best, keep=keep)}
    verdicts = []
    for entry in entries:
        name = entry.path.name
        if entry.path in going:
            reason = _("damaged") if entry.state == "broken" else _("older than the newest {n}").format(n=limit)
        elif entry.state == "staging":
            reason = _("a save that is running or never ended; the next start of the run removes it")
        elif not entry.sealed:
            reason = _("not saved by this run: not ours to remove")
        elif name in pinned:
            reason = _("pinned")
        elif name == best:
            reason = _("the best")
        elif in_use and name == Path(in_use).name:
            reason = _("the run began from it")
        elif name in protected:
            reason = _("not backed up yet")
        else:
            reason = _("among the newest {n}").format(n=limit)
        verdicts.append(Verdict(entry, entry.path in going, reason))
    return Plan(checkpoints, limit, best, frozenset(keep), verdicts)


def _limit_of(run: Path) -> int:
    resolved = read_json(run / "resolved.json")
    recipe = resolved.get("recipe") if isinstance(resolved, dict) else None
    limit = recipe.get("save_total_limit") if isinstance(recipe, dict) else None
    return limit if isinstance(limit, int) and limit > 0 else DEFAULT_LIMIT


def remove(plan: Plan) -> list[Path]:
    """Do what the plan says, on the folder as it is now; the removed checkpoints."""
    return retention.retire(plan.checkpoints, plan.limit, best=plan.best, keep=plan.keep)
