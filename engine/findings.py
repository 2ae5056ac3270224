"""Findings: what a check has to say about a file, in the words of the command-line contract."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

Level = Literal["error", "warning", "note"]
MAX_LINES = 20  # line numbers shown per finding; `count` carries the whole number


@dataclass
class Finding:
    """One kind of problem, with all the lines it was seen on (physical, 1-based; the first 20 are kept)."""

    kind: str
    level: Level
    detail: str = ""
    fix: str = ""
    lines: list[int] = field(default_factory=list)
    count: int = 1
    key: str | None = None
    subtype: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The finding as a JSON object; `extra` is merged in."""
        return {
            "kind": self.kind,
            "level": self.level,
            "lines": self.lines[:MAX_LINES],
            "count": self.count,
            "subtype": self.subtype,
            "key": self.key,
            "detail": self.detail,
            "fix": self.fix,
            **self.extra,
        }


def has_errors(findings: Iterable[Finding]) -> bool:
    """Whether any finding is an error."""
    return any(f.level == "error" for f in findings)
