"""What `ftui ckpt prune` would do to a run's checkpoints, and why; by retention's own rules."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.checkpoint import ledger, pins, retention
from engine.checkpoint.retention import Policy
from engine.errors import FtuiError
from engine.files import read_json
from engine.text import _, gigabytes, number

DEFAULT_LIMIT = 3


@dataclass(frozen=True)
class Verdict:
    """One checkpoint: whether it goes or only its weights stay, the reason for people, and what that frees."""

    entry: ledger.Entry
    action: retention.Action
    reason: str
    frees: int = 0

    @property
    def goes(self) -> bool:
        return self.action == "go"


@dataclass(frozen=True)
class Plan:
    """What a prune does: `verdicts` for people, `decided` to be carried out."""

    policy: Policy
    best: str | None
    verdicts: list[Verdict]
    decided: list[retention.Verdict]

    @property
    def bytes(self) -> int:
        """What it would free."""
        return sum(verdict.frees for verdict in self.verdicts)


def best_of(entries: Sequence[ledger.Entry]) -> str | None:
    """The name of the best checkpoint, as the newest one that can be read tells it."""
    for entry in reversed(entries):
        state = read_json(entry.path / "trainer_state.json") if entry.state == "complete" else None
        if isinstance(state, dict):
            best = state.get("best_model_checkpoint")
            return Path(best).name if isinstance(best, str) and best else None
    return None


def policy_of(run: Path) -> Policy:
    """The rules of a run, as its recipe says; the newest three where it says nothing."""
    resolved = read_json(run / "resolved.json")
    recipe = resolved.get("recipe") if isinstance(resolved, dict) else None
    policy = Policy.of(recipe if isinstance(recipe, dict) else {})
    return retention.with_limit(policy, DEFAULT_LIMIT) if policy.idle else policy


def plan(run: Path, *, limit: int | None = None, in_use: str | None = None) -> Plan:
    """What a prune of a run would do.

    Args:
        run: the run folder.
        limit: how many of the newest to keep; None means what the run's recipe says.
        in_use: the path or name of the checkpoint that a live run goes on from.

    Raises:
        FtuiError: what must stay is not known: a file that says so cannot be read.
    """
    checkpoints = run / "checkpoints"
    policy = retention.with_limit(policy_of(run), limit)
    protected, pinned = retention.protected(run / "backup"), pins.read(run)
    if protected is None or pinned is None:
        raise FtuiError(
            _("it is not known what must stay: pins.json or backup/protected.json cannot be read"),
            where=str(run),
            fix=_("repair the file, or pin again after moving it away"),
            kind="protected_unreadable",
        )
    entries = ledger.list(checkpoints)
    best = best_of(entries)
    decided = retention.decide(
        entries,
        policy,
        best=best,
        pinned=pinned,
        kept=protected - pinned,
        in_use=in_use,
        free=shutil.disk_usage(checkpoints).free if entries else None,
    )
    by_path = {verdict.entry.path: verdict for verdict in decided}
    verdicts = []
    for entry in entries:
        verdict = by_path.get(entry.path)
        if verdict is not None:
            frees = entry.bytes - verdict.size
            verdicts.append(Verdict(entry, verdict.action, _reason(verdict, policy), frees))
        elif entry.state == "staging":
            text = _("a save that is running or never ended; the next start of the run removes it")
            verdicts.append(Verdict(entry, "stay", text))
        else:
            verdicts.append(Verdict(entry, "stay", _("not saved by this run: not ours to remove")))
    return Plan(policy, best, verdicts, decided)


def _reason(verdict: retention.Verdict, policy: Policy) -> str:
    """The one reason that decides, in words."""
    words = {
        "pinned": _("pinned"),
        "best": _("the best"),
        "in_use": _("the run began from it"),
        "protected": _("not backed up yet"),
        "last": _("among the newest {n}").format(n=policy.keep_last) if policy.keep_last else _("no rule lets it go"),
        "newest_good": _("the newest good one"),
        "among_best": _("among the best {n} by {metric}").format(n=policy.keep_best, metric=policy.metric),
        "every": _("every {n} steps one stays").format(n=number(policy.keep_every or 0)),
        "damaged": _("damaged"),
        "older": _("older than the newest {n}").format(n=policy.keep_last),
        "over_budget": _("over the budget of {size}").format(size=gigabytes(policy.max_bytes or 0)),
        "disk_low": _("less than {size} would be free").format(size=gigabytes(policy.min_free or 0)),
    }
    if verdict.action == "go":
        return words[verdict.why[-1]]
    text = words[min(verdict.why, key=list(words).index)]
    return _("only the weights stay: {reason}").format(reason=text) if verdict.action == "reduce" else text


def remove(plan: Plan) -> list[Path]:
    """Do what the plan says; the checkpoints that are gone."""
    return retention.carry_out(plan.decided)
