"""How long is left, told from two clocks: the wall's can be set, and the machine's own since its boot cannot.

CLOCK_BOOTTIME goes on while the machine sleeps. What it does not see is a machine that its host froze: the wall clock
is behind then, until NTP mends it. So the wall is believed where the kernel says that NTP holds it, and else the time
since the boot is; after a reboot there is only the wall, and going back it gives nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

SLACK_S = 5.0
_UNSYNC = 0x40
_TIMEX_WORDS = 32  # struct timex of 64-bit Linux has 26
_STATUS, _SECONDS = 5, 9


@dataclass(frozen=True)
class Now:
    """One reading of the clocks. `synced`: NTP holds the wall clock; None where the kernel does not say."""

    wall: float
    boottime: float
    boot_id: str
    synced: bool | None = None


@dataclass(frozen=True)
class Anchor:
    """How much was left at one reading."""

    wall: float
    boottime: float
    boot_id: str
    synced: bool | None
    remaining: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Left:
    """Seconds left, and by how much the wall clock is off the reckoning (positive: it is ahead)."""

    seconds: float
    moved: float = 0.0


def now() -> Now:
    """The clocks now."""
    wall = time.time()
    return Now(wall, time.clock_gettime(time.CLOCK_BOOTTIME), boot_id(), _synced(wall))


@cache
def boot_id() -> str:
    """What is different after each boot; empty where the kernel does not tell."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return ""


def anchored(remaining: float, at: Now) -> Anchor:
    """Remember how much is left at a reading."""
    return Anchor(at.wall, at.boottime, at.boot_id, at.synced, remaining)


def left(end: float, relative: bool, anchor: Anchor, at: Now) -> Left:
    """How long until the end.

    Args:
        end: the end by the wall clock.
        relative: it was given as a duration: then the wall clock at that moment proves nothing.
        anchor: the last reading that is known.
        at: the present one.
    """
    by_wall = end - at.wall
    if at.synced and not relative:
        return Left(by_wall)
    if at.synced and anchor.synced:
        seconds = anchor.remaining - (at.wall - anchor.wall)
    elif at.boot_id == anchor.boot_id and at.boottime >= anchor.boottime:
        seconds = anchor.remaining - (at.boottime - anchor.boottime)
    else:
        seconds = anchor.remaining - max(0.0, at.wall - anchor.wall)
        if not relative:
            seconds = min(seconds, by_wall)
    moved = seconds - by_wall
    return Left(seconds, moved if abs(moved) > SLACK_S else 0.0)


def _synced(wall: float) -> bool | None:
    """Whether NTP holds the clock, as the kernel's own status says; None where it does not say."""
    if os.uname().machine not in ("x86_64", "aarch64"):
        return None
    words = (ctypes.c_long * _TIMEX_WORDS)()
    try:
        if ctypes.CDLL(None).adjtimex(words) < 0:
            return None
    except (OSError, AttributeError):
        return None
    if abs(words[_SECONDS] - wall) > SLACK_S:
        return None  # what this process is shown is not the kernel's clock
    return not words[_STATUS] & 0xFFFFFFFF & _UNSYNC
