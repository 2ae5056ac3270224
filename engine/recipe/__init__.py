"""The recipe: its keys, loading, overrides, checks and the resolved form that a run keeps.

Flat YAML with the names of TRL's script arguments. Imports nothing that trains: what TRL, transformers and PEFT know
of their keys is in keys.json, made by `generate`. PyYAML loads with the first recipe, not with this package.

    loaded = load(find("lora-sft"), ["dataset_path=train.jsonl"])
    findings = check(loaded)            # those of loading, and those that look at the disk
    values = resolve(loaded, num_gpus=4)
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.recipe.builtin import find, names

if TYPE_CHECKING:
    from engine.findings import Finding
    from engine.recipe.model import Loaded

__all__ = ["check", "find", "load", "names", "resolve"]


def load(path: str | Path, overrides: list[str] | tuple[str, ...] = ()) -> Loaded:
    """Read a recipe file and the command line's `key=value` texts (see `loader.load`)."""
    from engine.recipe import loader

    return loader.load(path, overrides)


def check(loaded: Loaded, *, run: bool = False) -> list[Finding]:
    """All findings about a recipe, those that need the disk included (see `disk.check`)."""
    from engine.recipe import disk

    return disk.check(loaded, run=run)


def resolve(loaded: Loaded, *, num_gpus: int | None, bf16_available: bool = True) -> dict[str, Any]:
    """The flat recipe with every key and default, as resolved.json keeps it.

    Args:
        loaded: the recipe; what its findings call wrong is at its default.
        num_gpus: GPUs of one machine that will train, 0 for the CPU; None when not known (what the recipe says, or
            one).
        bf16_available: whether those GPUs compute in bfloat16 (Turing and older do not).

    Raises:
        UsageError: the global batch cannot be made on these GPUs.
    """
    from engine.recipe.defaults import fill

    return fill(loaded.recipe.given, num_gpus=num_gpus, bf16_available=bf16_available)
