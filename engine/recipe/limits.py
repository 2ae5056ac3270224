"""What this version knows but cannot train yet: said at the check, refused at the run, never dropped silently."""

from __future__ import annotations

from engine.findings import Finding
from engine.recipe import paths
from engine.recipe.model import Recipe
from engine.text import _

KIND = "not_supported_yet"
# Key -> the values that this version can train with.
SUPPORTED: dict[str, tuple[object, ...]] = {
    "sharding": ("auto", "none", "ddp", "fsdp2", "zero2", "zero3"),  # pipeline needs GPUs, and never ran on any
    "cpu_offload": (False,),  # nor did this: it pins memory for a GPU
    "backend": ("trl",),
    "num_machines": (1,),
    "deepspeed": (None,),
    "fsdp": (None, False, ""),
    "parallelism_config": (None,),
    "report_to": ("none", None),
}


def limits(recipe: Recipe) -> list[Finding]:
    """A warning for each thing that a run of this version would refuse (see `check`, which makes it an error then)."""
    found = []
    for key, supported in SUPPORTED.items():
        value = recipe.given.get(key, supported[0])
        if value in supported or value in ([], {}, ["none"]):
            continue
        detail = _("{key}: this version cannot do that yet").format(key=key)
        usable = ", ".join(str(option) for option in supported if option not in (None, "", False))
        fix = _("use {values}").format(values=usable) if usable else _("leave it out")
        found.append(recipe.finding(KIND, "warning", detail, fix, (key,)))
    for key in (*paths.MODEL_KEYS, *paths.DATA_KEYS):
        value = recipe.given.get(key)
        if not isinstance(value, str):
            continue
        if problem := paths.unsupported(key, value):
            found.append(recipe.finding(KIND, "warning", *problem, (key,)))
        elif problem := paths.unknown_builtin(key, value):
            kind = "missing_model" if key in paths.MODEL_KEYS else "missing_dataset"
            found.append(recipe.finding(kind, "error", *problem, (key,)))
    return found
