"""What to change after a run ran out of memory: the planner's advice, ranked, each as the command that applies it."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from engine.errors import FtuiError
from engine.run import resuming
from engine.run.status import read_plan, recipe_of
from engine.text import _, number
from engine.workspace import RunFolder

MOST = 3
JUST_TOO_SMALL = 0.95  # the card that the plan is asked to fit: what was asked for did not go in, so it counts as less
NEW_RUN = frozenset({"max_length", "method", "optim", "packing", "lora_r", "bf16_master", "kbit_prepare"})


@dataclass(frozen=True)
class Fix:
    """One thing to do. `action` says what a key does: resume with the changes, start anew with them, or nothing."""

    text: str
    command: str = ""
    action: Literal["resume", "run"] | None = None
    changes: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """As `ftui status --json` has it."""
        return asdict(self)


def for_memory(run: RunFolder, *, can_resume: bool) -> list[Fix]:
    """The best changes that lower the memory below what the run asked for, best first; [] where no plan can be made."""
    try:
        return _planned(run, can_resume)
    except FtuiError:
        return []


def _planned(run: RunFolder, can_resume: bool) -> list[Fix]:
    from engine.plan.from_recipe import recipe_changes
    from engine.plan.plan import plan
    from engine.plan.request import parse
    from engine.recipe.limits import SUPPORTED

    document = read_plan(run) or {}
    request = document.get("request")
    if not isinstance(request, dict):
        return []
    before = plan(parse(request))
    # It was to fit and did not: ask for what fits a card that is smaller than what it would have taken.
    capacity = min(before.device.needs, before.context.capacity or before.device.needs) * JUST_TOO_SMALL
    asked = {key: value for key, value in request.items() if key != "gpu"} | {
        "gpu": request.get("gpu"), "gpu_memory_gb": capacity / 1e9,
    }  # fmt: skip
    resolved = run.read_resolved()
    recipe, origin = resolved.get("recipe") or {}, resolved.get("origin") or {}
    given = {key: recipe.get(key) for key, where in origin.items() if where in ("recipe", "override")}
    fixes: list[Fix] = []
    rows = plan(parse({key: value for key, value in asked.items() if value is not None})).advice
    rows = tuple(row for row in rows if row["verdict"] != "no") or rows
    # What surely fits comes first; of that, what goes on from the checkpoint before what has to begin anew.
    for row in sorted(rows, key=lambda row: (row["verdict"] != "fits", not _free(row["change"]))):
        keys = recipe_changes(row["change"], given)
        if not keys or not all(value in SUPPORTED.get(key, (value,)) for key, value in keys.items()):
            continue
        if row["needs_gb"] * 1e9 >= before.device.needs:
            continue
        changes = [f"{key}={_word(value)}" for key, value in keys.items()]
        text = _("{change}: about {gb} GB instead of {before}").format(
            change=row["text"], gb=number(row["needs_gb"], 1), before=number(before.device.needs / 1e9, 1)
        )
        if row["verdict"] != "fits":
            text = _("{change}; that is tight").format(change=text)
        fixes.append(with_changes(run, text, changes, can_resume=can_resume and _free(keys)))
    return fixes[:MOST]


def _free(keys: dict[str, Any]) -> bool:
    return set(keys) <= resuming.FREE


def with_changes(run: RunFolder, text: str, changes: list[str], *, can_resume: bool) -> Fix:
    """A fix that sets recipe keys: on a resume where they may change then, else with a new run."""
    if can_resume:
        return Fix(text, " ".join(["ftui resume", run.name, *map(shlex.quote, changes)]), "resume", changes)
    named = {change.partition("=")[0] for change in changes}
    all_ = [text for text in overrides_of(run) if text.partition("=")[0] not in named] + changes
    return Fix(text, " ".join(["ftui run", *map(shlex.quote, [recipe_of(run), *all_])]), "run", all_)


def overrides_of(run: RunFolder) -> list[str]:
    """The `key=value` texts that the run was started with."""
    given = run.read_resolved().get("overrides")
    return [text for text in given if isinstance(text, str)] if isinstance(given, list) else []


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def halve(run: RunFolder, *, can_resume: bool) -> list[Fix]:
    """What helps where no plan can be made: half the micro-batch, checkpointing, shorter rows."""
    recipe = run.read_resolved().get("recipe") or {}
    fixes = []
    micro, length = recipe.get("per_device_train_batch_size"), recipe.get("max_length")
    if isinstance(micro, int) and micro > 1:
        change = [f"per_device_train_batch_size={micro // 2}"]
        fixes.append(
            with_changes(run, _("half the micro-batch; the global batch stays"), change, can_resume=can_resume)
        )
    if recipe.get("gradient_checkpointing") is False:
        text = _("gradient checkpointing: layers are computed again in backward")
        fixes.append(with_changes(run, text, ["gradient_checkpointing=true"], can_resume=can_resume))
    if isinstance(length, int) and length >= 128:
        text = _("rows half as long; longer ones are cut")
        fixes.append(with_changes(run, text, [f"max_length={length // 2}"], can_resume=False))
    if recipe.get("method") in ("lora", "full"):
        fixes.append(with_changes(run, _("QLoRA: the base in 4 bits"), ["method=qlora"], can_resume=False))
    return fixes[:MOST]
