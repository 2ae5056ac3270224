"""What a transfer is made of: one file on its way, what can be wrong with it, and how patient to be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from engine.backup.items import Item, Source
from engine.backup.rclone import RcloneError

STALL_S = 20.0
RENEW_S = 90.0  # without a byte for so long, connections are made anew
GIVE_UP_S = 900.0


class AuthNeeded(RcloneError):
    """The credentials are refused."""

    kind = "auth_needed"


@dataclass
class Job:
    """One file on its way to the remote."""

    item: Item
    name: str
    source: Source
    tries: int = 0
    not_before: float = 0.0
    number: int | None = None  # rclone's job
    group: str = ""
    copied: bool = False
    bytes: int = 0

    @property
    def key(self) -> tuple[str, str]:
        return self.item.name, self.name


@dataclass
class Broken:
    """A file that cannot be sent as it is: the item waits until that is mended."""

    job: Job
    state: str  # SOURCE_CHANGED or FAILED
    reason: str


@dataclass
class Limits:
    """How patient a transfer is, and where its orders come from: `look` is called about twice a second."""

    stall_s: float = STALL_S
    renew_s: float = RENEW_S
    give_up_s: float = GIVE_UP_S
    look: Callable[[], tuple[bool, float | None]] = lambda: (False, None)


def remote_path(item: str, name: str) -> str:
    """Where a file of an item lies below the run's folder at the remote."""
    return name if item == "run" else f"{item}/{name}"
