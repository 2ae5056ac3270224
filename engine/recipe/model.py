"""What loading a recipe gives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from engine.findings import Finding, Level
from engine.text import _

MAX_DETAIL = 600
Origin = Literal["recipe", "override", "default", "derived"]


@dataclass
class Recipe:
    """A recipe's values: `given` holds what was said, `values` every key of the task with defaults filled in.

    Both are keyed by canonical names. `lines` says where a key stands in the file, `overrides` which `key=value` of
    the command line set it.
    """

    given: dict[str, Any] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    overrides: dict[str, str] = field(default_factory=dict)
    item_lines: dict[str, list[int]] = field(default_factory=dict)  # of lists: where each element stands

    def __getitem__(self, key: str) -> Any:
        return self.values[key]

    def __getattr__(self, key: str) -> Any:
        """`recipe.learning_rate` for `recipe["learning_rate"]`."""
        if key.startswith("_") or key not in self.__dict__.get("values", ()):
            raise AttributeError(key)
        return self.values[key]

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key, with defaults filled in."""
        return self.values.get(key, default)

    def says(self, *keys: str) -> bool:
        """Whether the recipe itself gives any of the keys (a default is not the user's word)."""
        return any(key in self.given for key in keys)

    @property
    def method(self) -> str:
        return str(self.values["method"])

    @property
    def task(self) -> str:
        return str(self.values["task"])

    def finding(
        self,
        kind: str,
        level: Level,
        detail: str,
        fix: str,
        keys: tuple[str, ...] = (),
        subtype: str | None = None,
    ) -> Finding:
        """A finding about keys, with the lines and overrides that set them."""
        lines = sorted({self.lines[key] for key in keys if key in self.lines})
        if len(detail) > MAX_DETAIL:  # a path can be as long as its author likes
            detail = detail[: MAX_DETAIL - 1] + "…"
        found = Finding(kind, level, detail, fix, lines, key=keys[0] if keys else None, subtype=subtype)
        if len(keys) > 1 or kind == "conflict":
            found.extra["keys"] = list(keys)
        if named := [self.overrides[key] for key in keys if key in self.overrides]:
            found.extra["override"] = " ".join(named)
        return found

    def conflict(self, keys: tuple[str, ...], detail: str, fix: str, level: Level = "error") -> Iterator[Finding]:
        """One contradiction, if the recipe itself gives any of its keys: defaults never contradict the user."""
        if self.says(*keys):
            yield self.finding("conflict", level, detail, fix, keys)

    def unused(self, keys: tuple[str, ...], detail: str, count: int = 1, level: Level = "note") -> Iterator[Finding]:
        """A key that another one makes meaningless: no harm, but not what its author thought."""
        found = self.finding("conflict", level, detail, _("delete what is not meant"), keys, "unused")
        found.count = count
        yield found


@dataclass
class Loaded:
    """A recipe file as read: the values, everything wrong with them, and where each came from."""

    recipe: Recipe
    findings: list[Finding]
    origin: dict[str, Origin]
    text: str
    path: Path
