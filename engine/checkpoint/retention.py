"""Which checkpoints stay, whole or for their weights alone, and which go: after a new one is sealed, never before.

The rules are the recipe's `retention`. What must stay stays whatever they say: the newest good one, the best one, the
pinned, what a backup still needs, and what the run began from. A reduced checkpoint is a new one, sealed before the
full one goes.
"""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from engine.checkpoint import ledger, pins, weights
from engine.files import read_json

_LEFT_OVER = re.compile(r"\.(staging|retired|replaced)-")
GB = 1_000_000_000
Action = Literal["stay", "reduce", "go"]
# Why: what must stay, then what a rule keeps, then why it goes. The words are in `pruning`.
MUST = ("pinned", "best", "in_use", "protected", "newest_good")
KEPT = ("last", "among_best", "every")


@dataclass(frozen=True)
class Policy:
    """The rules of one run. `keep_last` None: all stay, but for the byte budget and the floor of free space."""

    keep_last: int | None = None
    keep_best: int = 0
    metric: str = "eval_loss"
    greater_is_better: bool = False
    keep_every: int | None = None
    weights_only: bool = False
    max_bytes: int | None = None
    min_free: int | None = None

    @classmethod
    def of(cls, recipe: Mapping[str, Any]) -> Policy:
        """That of a resolved recipe: its `retention`, else its `save_total_limit`."""
        rules = recipe.get("retention")
        rules = rules if isinstance(rules, Mapping) else {}
        limit = rules.get("keep_last", recipe.get("save_total_limit"))
        metric = str(rules.get("metric") or recipe.get("metric_for_best_model") or "eval_loss")
        if metric != "loss" and not metric.startswith("eval_"):
            metric = f"eval_{metric}"
        greater = rules.get("greater_is_better")
        if greater is None:
            greater = recipe.get("greater_is_better") if not rules.get("metric") else None
        return cls(
            keep_last=limit if isinstance(limit, int) and limit > 0 else None,
            keep_best=int(rules.get("keep_best") or 0),
            metric=metric,
            greater_is_better=bool(greater) if greater is not None else not metric.endswith("loss"),
            keep_every=int(rules["keep_every"]) if rules.get("keep_every") else None,
            weights_only=bool(rules.get("weights_only")),
            max_bytes=int(rules["max_gb"] * GB) if rules.get("max_gb") else None,
            min_free=int(rules["min_free_gb"] * GB) if rules.get("min_free_gb") else None,
        )

    @property
    def idle(self) -> bool:
        """Whether nothing ever goes."""
        return self.keep_last is None and self.max_bytes is None and self.min_free is None


@dataclass
class Verdict:
    """What is to become of one sealed checkpoint, and why: names of `MUST`, `KEPT`, or of what it is too old for."""

    entry: ledger.Entry
    action: Action = "stay"
    why: list[str] = field(default_factory=list)

    @property
    def must_stay(self) -> bool:
        return any(name in MUST for name in self.why)

    @property
    def size(self) -> int:
        """Bytes that it will take."""
        if self.action == "go":
            return 0
        return weights.size(self.entry.path) if self.action == "reduce" else self.entry.bytes


def protected(run_backup: Path) -> set[str] | None:
    """The names in backup/protected.json and the pinned ones; None when a file is there that cannot be understood."""
    pinned = pins.read(run_backup.parent)
    path = run_backup / "protected.json"
    if not path.exists():
        return pinned
    value = read_json(path)
    names = value.get("checkpoints") if isinstance(value, dict) else None
    if pinned is None or not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return None
    return pinned | set(names)


def decide(
    entries: Iterable[ledger.Entry],
    policy: Policy,
    *,
    best: str | None = None,
    pinned: Collection[str] = (),
    kept: Collection[str] = (),
    in_use: str | None = None,
    free: int | None = None,
) -> list[Verdict]:
    """A verdict on each sealed checkpoint, oldest first.

    Args:
        entries: all of a run, oldest first.
        policy: the run's rules.
        best: path or name of the best one, as the trainer says.
        pinned: names that the user wants to keep.
        kept: names that a backup still needs.
        in_use: path or name of the one that the run went on from.
        free: bytes free on the disk, for the floor.
    """
    verdicts = [Verdict(entry) for entry in entries if entry.sealed]
    whole = [v for v in verdicts if v.entry.resumable]
    good = [v for v in whole if v.entry.exact] or whole
    for v in verdicts:
        name = v.entry.path.name
        marks = {
            "pinned": name in pinned,
            "best": best is not None and name == Path(best).name,
            "in_use": in_use is not None and name == Path(in_use).name,
            "protected": name in kept,
            "newest_good": bool(good) and v is good[-1],
        }
        v.why += [mark for mark, is_so in marks.items() if is_so]
    _apply_rules(verdicts, whole, policy)
    _fit(verdicts, policy, free)
    return verdicts


def _apply_rules(verdicts: Sequence[Verdict], whole: Sequence[Verdict], policy: Policy) -> None:
    # What cannot be resumed from must not push out what can: the newest of those count.
    last = [id(v) for v in (whole if policy.keep_last is None else whole[-policy.keep_last :])]
    sign = -1.0 if policy.greater_is_better else 1.0
    ranked = sorted(
        (v for v in verdicts if _metric(v, policy) is not None and v.entry.state == "complete"),
        key=lambda v: (sign * (_metric(v, policy) or 0.0), -v.entry.step),
    )
    best = [id(v) for v in ranked[: policy.keep_best]]
    for v in verdicts:
        if id(v) in last:
            v.why.append("last")
        if id(v) in best:
            v.why.append("among_best")
        if policy.keep_every and v.entry.step % policy.keep_every == 0 and v.entry.state == "complete":
            v.why.append("every")
        if policy.keep_last is None and v.entry.state == "complete" and not v.why:
            v.why.append("last")
        if not v.why:
            v.action, v.why = "go", ["damaged" if v.entry.state == "broken" else "older"]
        elif policy.weights_only and "last" not in v.why and not v.must_stay and weights.can_reduce(v.entry):
            v.action = "reduce"


def _metric(verdict: Verdict, policy: Policy) -> float | None:
    value = verdict.entry.metrics.get(policy.metric)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _fit(verdicts: Sequence[Verdict], policy: Policy, free: int | None) -> None:
    """Give up more, oldest first, until budget and floor hold: what a rule keeps goes before what is among the last."""
    freed = sum(v.entry.bytes - v.size for v in verdicts)
    taken = sum(v.size for v in verdicts)
    order = sorted((v for v in verdicts if v.action != "go" and not v.must_stay), key=lambda v: "last" in v.why)
    steps: list[tuple[Verdict, Action]] = []
    if policy.weights_only:
        steps += [(v, "reduce") for v in order if v.action == "stay" and weights.can_reduce(v.entry)]
    steps += [(v, "go") for v in order]
    for verdict, action in steps:
        over = policy.max_bytes is not None and taken > policy.max_bytes
        low = policy.min_free is not None and free is not None and free + freed < policy.min_free
        if not (over or low):
            return
        before = verdict.size
        verdict.action = action
        verdict.why.append("over_budget" if over else "disk_low")
        freed += before - verdict.size
        taken -= before - verdict.size


def retire(
    checkpoints: Path,
    policy: Policy,
    *,
    best: str | None = None,
    in_use: str | None = None,
) -> list[Path]:
    """Do what the rules of a run say; the checkpoints that are gone.

    While it is not known what must stay (a file that says so cannot be read) nothing is deleted. A folder without a
    seal is not ours to delete.
    """
    run = checkpoints.parent
    kept = protected(run / "backup")
    if policy.idle or kept is None:
        return []
    verdicts = decide(
        ledger.list(checkpoints),
        policy,
        best=best,
        kept=kept,
        in_use=in_use,
        free=shutil.disk_usage(checkpoints).free,
    )
    return carry_out(verdicts)


def carry_out(verdicts: Iterable[Verdict]) -> list[Path]:
    """Remove and reduce; those that are gone.

    A folder is renamed first, so that a kill in between leaves no half of a checkpoint behind.
    """
    gone = []
    for verdict in verdicts:
        path = verdict.entry.path
        try:
            if verdict.action == "reduce":
                weights.reduce(path)
            elif verdict.action == "go":
                doomed = path.with_name(f".retired-{path.name}")
                path.rename(doomed)
                shutil.rmtree(doomed, ignore_errors=True)
                gone.append(path)
        except FileNotFoundError:  # the run itself has retired it meanwhile
            continue
    return gone


def clean(checkpoints: Path) -> list[str]:
    """Remove what killed saves and deletions left and tell their names; only for the ranks, before they write."""
    if not checkpoints.is_dir():
        return []
    names = sorted(path.name for path in checkpoints.iterdir() if path.is_dir() and _LEFT_OVER.match(path.name))
    for name in names:
        original = checkpoints / name.removeprefix(".replaced-")
        if name.startswith(".replaced-") and not original.exists():
            (checkpoints / name).rename(original)  # killed between the two renames of a replacement
        else:
            shutil.rmtree(checkpoints / name, ignore_errors=True)
    return names


def with_limit(policy: Policy, limit: int | None) -> Policy:
    """The same rules, but with this many of the newest."""
    return policy if limit is None else replace(policy, keep_last=limit)
