"""What this machine has beside GPUs: its disks, each with what a run would put on it, and its memory."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine.hardware import disk, host
from engine.plan import models, storage
from engine.plan.request import Request
from engine.plan.storage import Storage
from engine.text import _, gigabytes, number

LEAST_CHECKPOINTS = 2  # the one to go back to, and the one being written


@dataclass(frozen=True)
class Mount:
    """One file system and what comes onto it, bytes: the model's download, what the run writes, the least of that.

    `merge` comes later, if at all: an adapter's merged model.
    """

    point: str
    device: int
    free: float
    model: float = 0.0
    run: float = 0.0
    least: float = 0.0  # beside the model: with as few checkpoints as a run can live with
    merge: float = 0.0

    @property
    def needs(self) -> float:
        """Bytes at the worst moment."""
        return self.model + self.run + self.merge

    @property
    def fits(self) -> bool:
        """Whether all of it fits."""
        return self.needs <= self.free

    @property
    def runs(self) -> bool:
        """Whether the run itself fits, with all checkpoints that it shall keep."""
        return self.model + self.run <= self.free

    @property
    def possible(self) -> bool:
        """Whether a run could live there, with fewer checkpoints than it shall keep."""
        return self.model + self.least <= self.free

    def to_json(self) -> dict[str, Any]:
        """As `ftui plan --json` prints it, GB."""
        sizes = {name: round(getattr(self, name) / 1e9, 2) for name in ("free", "needs", "model", "run", "merge")}
        return {"mount": self.point, **sizes, "fits": self.fits}


def look(r: Request, s: Storage, home: Path) -> tuple[Mount, ...]:
    """The workspace's disk and that of the hub's cache; one where they are the same; none that does not answer."""
    final = s.merged if r.method == "full" else 0.0  # the model itself is what a run leaves
    run, least = s.checkpoints + s.tokenised + final, LEAST_CHECKPOINTS * s.checkpoint + s.tokenised
    base = 0.0 if models.is_here(r.model) else s.base
    found: dict[int, Mount] = {}
    if (mount := _mount(home)) is not None:
        found[mount.device] = replace(mount, run=run, least=least, merge=s.merged - final)
    if (mount := _mount(models.hub_cache())) is not None:
        found[mount.device] = replace(found.get(mount.device, mount), model=base)
    return tuple(mount for mount in found.values() if mount.needs)


def spread(s: Storage, mounts: tuple[Mount, ...]) -> dict[str, Any] | None:
    """Where the checkpoints could go when the workspace's disk does not hold them: other disks of this machine.

    Returns:
        As `storage.spread`, with `places` (mount point, checkpoints); None where they fit, or there is no other disk.
    """
    own = next((mount for mount in mounts if mount.run), None)
    if own is None or own.fits:
        return None
    known = {mount.device: mount for mount in mounts}
    others = [known.get(mount.device, mount) for mount in _others(own.device, s.checkpoint)]
    others.sort(key=lambda mount: mount.model - mount.free)
    if not others:
        return None
    places = [own, *others]
    drives = tuple(max(0.0, place.free - place.model) / 1e12 / (1 - storage.FREE) for place in places)
    found = storage.spread(replace(s, base=0.0), drives)
    if found is None:
        return None
    named = [(place.point, number) for place, number in zip(places, found["each"], strict=True) if number]
    return found | {"places": named}


def shortage(mount: Mount) -> str:
    """What a disk lacks."""
    text = _("{mount} has {free} free, and {needs} come onto it")
    if not mount.possible:
        text = _("{mount} is too small: {free} are free, and {needs} come onto it")
    return text.format(mount=mount.point, free=gigabytes(mount.free), needs=gigabytes(mount.needs))


def remedy(found: dict[str, Any] | None) -> str:
    """What helps against it.

    Args:
        found: what `spread` gives.
    """
    if found is not None and found["fits"]:
        places = ", ".join(_("{n} on {mount}").format(n=number(n), mount=point) for point, n in found["places"])
        return _("spread the checkpoints ({places}), or lower save_total_limit").format(places=places)
    return _("make room, lower save_total_limit, or choose another disk with --home DIR")


def free(place: Path) -> float | None:
    """Bytes that are free where a folder is, or will be."""
    found: int | None = disk.sample(place)["free"]
    return None if found is None else float(found)


def host_memory() -> float:
    """Bytes of this machine's memory (the container's, where it has a limit)."""
    return float(host.sample()["memory_total"])


def _mount(place: Path) -> Mount | None:
    room = free(place)
    if room is None:
        return None
    there = disk.existing(place)
    return Mount(disk.mount_of(str(there), disk.mounts()).point, os.stat(there).st_dev, room)


def _others(own: int, least: float) -> list[Mount]:
    """Other local disks that may be written to and hold at least one checkpoint."""
    found: dict[int, Mount] = {}
    for mount in disk.mounts():
        point = Path(mount.point)
        if mount.read_only or mount.fs in disk.MEMORY or disk.is_network(mount) or not mount.device.startswith("/dev/"):
            continue
        try:
            device = point.stat().st_dev
        except OSError:
            continue
        room = free(point)
        if device != own and room is not None and room >= least and point.is_dir() and os.access(point, os.W_OK):
            found.setdefault(device, Mount(mount.point, device, room))
    return list(found.values())
