"""Errors that reach a user: what happened, where, and what to do about it."""

from __future__ import annotations


class FtuiError(Exception):
    """One clear error. `what` and `fix` are translated text for people; `where` is a file, line or key."""

    exit_code = 1
    kind = "failed"

    def __init__(
        self,
        what: str,
        *,
        where: str | None = None,
        fix: str | None = None,
        kind: str | None = None,
        exit_code: int | None = None,
    ) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.fix = fix
        if kind is not None:
            self.kind = kind
        if exit_code is not None:
            self.exit_code = exit_code

    def to_json(self) -> dict[str, str | int | None]:
        """The error as it stands in state.json and in `--json` output."""
        return {
            "kind": self.kind,
            "message": self.what,
            "where": self.where,
            "fix": self.fix,
            "exit_code": self.exit_code,
        }


class UsageError(FtuiError):
    """The command, the recipe or the data is wrong (exit code 2)."""

    exit_code = 2
    kind = "usage"


class DoesNotFit(FtuiError):
    """Memory, disk or time before the lease ends is too small (exit code 3)."""

    exit_code = 3
    kind = "does_not_fit"


class GateError(FtuiError):
    """A gate says no, or there is nothing to resume from (exit code 4)."""

    exit_code = 4
    kind = "gate"
