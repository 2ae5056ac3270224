"""What a run wants to have elsewhere: the recipe's `backup` key, else the default remote of the settings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from engine.recipe.backup import Policy, check_remote, parse, rate, remote_name

__all__ = ["Policy", "check_remote", "of_run", "parse", "rate", "remote_name", "strings"]


def of_run(resolved: dict[str, Any]) -> Policy | None:
    """The policy of a run, from its resolved.json and the user's settings.

    Raises:
        UsageError: the recipe's `backup` or the setting is wrong.
    """
    from engine import settings

    recipe = resolved.get("recipe")
    value = recipe.get("backup") if isinstance(recipe, dict) else None
    default = None
    if value is None or (isinstance(value, dict) and "to" not in value):
        default = settings.load().backup
    return parse(value, default)


def strings(value: Any) -> Iterator[str]:
    """Every text inside a value of a recipe."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from strings(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from strings(part)
