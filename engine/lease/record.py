"""keeper/lease.json: when the server ends, and the last reading of the clocks that all agree on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine.errors import FtuiError
from engine.files import Lock, read_json, write_json
from engine.lease import clock, when
from engine.lease.clock import Anchor, Left, Now
from engine.lease.when import When
from engine.text import _
from engine.workspace import Workspace

NAME = "lease.json"
REFRESH_S = 60.0


@dataclass(frozen=True)
class Lease:
    """The lease of this server. `set_at` also tells one lease from the next."""

    end: float
    text: str
    relative: bool
    source: str | None
    set_at: float
    anchor: Anchor

    def left(self, at: Now | None = None) -> Left:
        """How long it lasts."""
        return clock.left(self.end, self.relative, self.anchor, at or clock.now())

    def to_json(self) -> dict[str, Any]:
        return {
            "format": 1,
            "end": self.end,
            "text": self.text,
            "relative": self.relative,
            "source": self.source,
            "set_at": self.set_at,
            "anchor": self.anchor.to_json(),
        }


def path(workspace: Workspace) -> Path:
    """Where it stands."""
    return workspace.keeper_dir / NAME


def read(workspace: Workspace) -> Lease | None:
    """The lease that was set; None: none was.

    Raises:
        FtuiError: the file is damaged. That is not the same as no lease.
    """
    value = read_json(path(workspace))
    if value is None and not path(workspace).exists():
        return None
    try:
        if not isinstance(value, dict):
            raise TypeError
        anchor = Anchor(**value["anchor"])
        lease = Lease(
            float(value["end"]),
            str(value["text"]),
            bool(value["relative"]),
            value["source"],
            float(value["set_at"]),
            anchor,
        )
        float(anchor.remaining + anchor.wall + anchor.boottime)  # numbers, or it is damaged
    except (TypeError, KeyError, ValueError):
        raise FtuiError(
            _("the lease cannot be read"),
            where=str(path(workspace)),
            fix=_("set it again: ftui lease set WHEN"),
            kind="lease",
        ) from None
    return lease


def save(workspace: Workspace, found: When, at: Now | None = None) -> Lease:
    """Set the lease, in place of the one before."""
    at = at or clock.now()
    anchor = clock.anchored(found.end - at.wall, at)
    lease = Lease(found.end, found.text, found.relative, found.source, at.wall, anchor)
    workspace.prepare()
    with _lock(workspace).held():
        write_json(path(workspace), lease.to_json())
    return lease


def clear(workspace: Workspace) -> bool:
    """Forget the lease; False when there was none."""
    with _lock(workspace.prepare()).held():
        there = path(workspace).exists()
        path(workspace).unlink(missing_ok=True)
    return there


def refresh(workspace: Workspace, lease: Lease, at: Now) -> Lease:
    """Take a new reading once a minute, so that a reboot finds a fresh one; and read the provider's source again.

    The lease as it is then. A provider's source that cannot be read any more leaves the last one standing.
    """
    if abs(at.boottime - lease.anchor.boottime) < REFRESH_S and at.boot_id == lease.anchor.boot_id:
        return lease
    new = replace(lease, anchor=clock.anchored(lease.left(at).seconds, at))
    if lease.source:
        try:
            found = when.from_source(lease.source, at.wall)
        except FtuiError:
            pass
        else:
            if abs(found.end - lease.end) > clock.SLACK_S:
                anchor = clock.anchored(found.end - at.wall, at)
                new = Lease(found.end, found.text, False, lease.source, at.wall, anchor)
    with _lock(workspace).held():
        try:
            known = read(workspace)
        except FtuiError:
            return new
        if known is None or known.set_at != lease.set_at:
            return known or new  # set anew, or cleared, while we looked
        write_json(path(workspace), new.to_json())
    return new


def _lock(workspace: Workspace) -> Lock:
    return Lock(workspace.keeper_dir / f".{NAME}.lock")
