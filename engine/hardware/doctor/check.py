"""One check's result, and the report that they make."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

State = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Check:
    """What was looked at and found. `title`, `value`, `detail` and `fix` are for people; `fail` prevents a run."""

    id: str
    group: str
    title: str
    state: State
    value: str
    detail: str = ""
    fix: str = ""

    def to_json(self) -> dict[str, str]:
        """The check as it stands in `ftui doctor --json`."""
        return {
            "id": self.id,
            "group": self.group,
            "state": self.state,
            "value": self.value,
            "detail": self.detail,
            "fix": self.fix,
        }


@dataclass
class Report:
    """All checks, in the order to show them."""

    checks: list[Check] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing prevents a run."""
        return all(check.state != "fail" for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        """The document of `ftui doctor --json`."""
        return {"checks": [check.to_json() for check in self.checks], "ok": self.ok}
