"""What is different when a run goes on: its GPUs and batches before and after, and whether the resume is exact."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from engine.checkpoint.ledger import Entry
from engine.files import read_json
from engine.run.choice import Choice
from engine.run.gpus import Placement
from engine.text import _
from engine.workspace import RunFolder


@dataclass(frozen=True)
class Setup:
    """On what and in which pieces a run trains; None where it is not known."""

    device: str | None
    ranks: int
    sharding: str | None
    per_device_train_batch_size: int | None
    gradient_accumulation_steps: int | None
    global_batch_size: int | None


def setup_before(run: RunFolder, state: dict[str, Any], entry: Entry) -> Setup:
    """What the checkpoint was made with: its manifest and its trainer's state, then what the run says of itself."""
    recipe = _recipe(run)
    ranks = entry.world_size or int(state.get("world_size") or 1)
    trainer = read_json(entry.path / "trainer_state.json")
    micro = trainer.get("train_batch_size") if isinstance(trainer, dict) else None
    if not isinstance(micro, int) or micro < 1:
        micro = recipe.get("per_device_train_batch_size")
    total = recipe.get("global_batch_size")
    accumulation = recipe.get("gradient_accumulation_steps")
    if isinstance(total, int) and isinstance(micro, int) and total % (micro * ranks) == 0:
        accumulation = total // (micro * ranks)
    elif isinstance(micro, int) and isinstance(accumulation, int):
        total = micro * accumulation * ranks
    return Setup(state.get("device"), ranks, recipe.get("sharding"), micro, accumulation, total)


def setup_after(run: RunFolder, placement: Placement) -> Setup:
    """What the run goes on with."""
    recipe, ranks = _recipe(run), placement.ranks
    micro, accumulation = recipe.get("per_device_train_batch_size"), recipe.get("gradient_accumulation_steps")
    total = recipe.get("global_batch_size")
    if total is None and isinstance(micro, int) and isinstance(accumulation, int):
        total = micro * accumulation * ranks
    return Setup(placement.device, ranks, recipe.get("sharding"), micro, accumulation, total)


def _recipe(run: RunFolder) -> dict[str, Any]:
    recipe = run.read_resolved().get("recipe")
    return recipe if isinstance(recipe, dict) else {}


def report(
    state: dict[str, Any], chosen: Choice, before: Setup, after: Setup, skipped: list[str], python: str
) -> dict[str, Any]:
    """The resume in figures, as `ftui resume --json` has it under `resume`; `python` is that of the ranks."""
    entry = chosen.entry
    differs = differences(before, after) + other_versions(entry, python)
    if not chosen.exact:
        differs.append(_("the checkpoint lacks the random state of its ranks, or parts of it differ"))
    total = state.get("max_steps")
    batch = before.global_batch_size
    return {
        "from": str(entry.path),
        "step": entry.step,
        "exact": not differs,
        "differs": differs,
        "skipped": skipped,
        "before": asdict(before),
        "after": asdict(after),
        "changed": before != after,
        "steps_left": max(0, total - entry.step) if isinstance(total, int) else None,
        "samples_seen": entry.step * batch if isinstance(batch, int) else None,
    }


def differences(before: Setup, after: Setup) -> list[str]:
    """Why the losses will not be those of the uninterrupted run; [] where they will be."""
    found = []
    if before.ranks != after.ranks:
        found.append(
            _("{after} ranks instead of {before}: the rows are the same, summed in another order").format(
                after=after.ranks, before=before.ranks
            )
        )
    if before.device != after.device and before.device is not None:
        found.append(_("on {after} instead of {before}").format(after=after.device, before=before.device))
    if before.per_device_train_batch_size != after.per_device_train_batch_size:
        found.append(
            _("micro-batches of {after} instead of {before}: dropout and rounding differ").format(
                after=after.per_device_train_batch_size, before=before.per_device_train_batch_size
            )
        )
    if before.sharding != after.sharding:
        found.append(_("sharding {after} instead of {before}").format(after=after.sharding, before=before.sharding))
    return found


def other_versions(entry: Entry, python: str) -> list[str]:
    """The packages that decide about sums and random numbers, where they are not those of the checkpoint."""
    from engine.checkpoint import manifest
    from engine.hardware import versions
    from engine.train.exactness import DECISIVE

    saved = manifest.read(entry.path)
    if saved is None or not saved.versions:
        return []
    try:
        now = versions.packages(DECISIVE, python)["packages"]
    except OSError:  # the ranks will say what is wrong with it
        return []
    text = _("{package} {after} instead of {before}")
    return [
        text.format(package=name, after=now.get(name) or "-", before=saved.versions.get(name) or "-")
        for name in DECISIVE
        if now.get(name) != saved.versions.get(name)
    ]


def rows(report: dict[str, Any]) -> list[tuple[str, str, str]]:
    """The before/after table for people: what, before, after."""
    from engine.text import number

    before, after = report["before"], report["after"]
    words = {
        "device": _("device"),
        "ranks": _("ranks"),
        "sharding": _("sharding"),
        "per_device_train_batch_size": _("micro-batch"),
        "gradient_accumulation_steps": _("accumulation"),
        "global_batch_size": _("global batch"),
    }

    def told(value: Any) -> str:
        return "-" if value is None else number(value) if isinstance(value, int) else str(value)

    table = [(word, told(before[key]), told(after[key])) for key, word in words.items()]
    seen, left = told(report["samples_seen"]), told(report["steps_left"])
    return [*table, (_("steps left"), left, left), (_("samples seen"), seen, seen)]
