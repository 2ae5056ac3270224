"""Disks: what a path lies on, how much room there is, and whether it outlives the server."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

Persistence = Literal["temporary", "persistent", "unknown"]

MEMORY = frozenset({"tmpfs", "ramfs"})
NETWORK = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "ceph", "lustre", "glusterfs", "beegfs", "wekafs", "gpfs", "9p", "virtiofs"}
)
# Where providers mount disks that they clear when a server stops.
TEMPORARY_MOUNTS = ("/ephemeral", "/scratch", "/mnt/resource", "/mnt/scratch", "/mnt/local", "/mnt/ephemeral", "/local")


@dataclass(frozen=True)
class Mount:
    """One line of the mount table."""

    point: str
    fs: str
    device: str
    read_only: bool


@dataclass(frozen=True)
class Disk:
    """What a path lies on. `persistence` is a guess; "unknown" means that the user has to say."""

    path: str
    mount: str
    fs: str
    device: str
    free: int
    total: int
    inodes_free: int | None
    read_only: bool
    writable: bool
    network: bool
    persistence: Persistence

    def to_json(self) -> dict[str, Any]:
        """The disk as a JSON object."""
        return asdict(self)


def existing(path: str | os.PathLike[str]) -> Path:
    """The path, or its nearest parent that exists."""
    found = Path(os.path.expanduser(path)).absolute()  # noqa: PTH111 - Path's raises where there is no home
    while not found.exists() and found != found.parent:
        found = found.parent
    return found.resolve()


def sample(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Room on the disk of `path`, as in hardware.jsonl; nulls where the disk does not answer."""
    try:
        stat = os.statvfs(existing(path))
    except OSError:
        return {"path": str(path), "free": None, "total": None}
    return {"path": str(path), "free": stat.f_bavail * stat.f_frsize, "total": stat.f_blocks * stat.f_frsize}


def describe(path: str | os.PathLike[str]) -> Disk:
    """Everything known about the disk of `path`, which need not exist yet.

    Raises:
        OSError: the disk does not answer.
    """
    place = existing(path)
    stat = os.statvfs(place)
    mount = mount_of(str(place), mounts())
    return Disk(
        str(path),
        mount.point,
        mount.fs,
        mount.device,
        stat.f_bavail * stat.f_frsize,
        stat.f_blocks * stat.f_frsize,
        stat.f_favail if stat.f_files else None,  # some file systems have no fixed number of inodes
        mount.read_only or bool(stat.f_flag & os.ST_RDONLY),
        os.access(place, os.W_OK | os.X_OK),
        is_network(mount),
        persistence(mount),
    )


def mounts(table: Path = Path("/proc/self/mountinfo")) -> list[Mount]:
    """The mount table, in the order of mounting ([] where it cannot be read)."""
    try:
        lines = table.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        left, _, right = line.partition(" - ")
        before, after = left.split(), right.split()
        if len(before) >= 6 and len(after) >= 2:
            super_options = after[2] if len(after) > 2 else ""
            options = before[5].split(",") + super_options.split(",")
            found.append(Mount(_unescape(before[4]), after[0], _unescape(after[1]), "ro" in options))
    return found


def mount_of(path: str, table: Iterable[Mount]) -> Mount:
    """The mount that `path` lies on: the longest mount point above it, and of two on one point the later."""
    best = Mount("/", "unknown", "unknown", False)
    for mount in table:
        point = mount.point.rstrip("/")
        if (path == point or path.startswith(point + "/")) and len(mount.point) >= len(best.point):
            best = mount
    return best


def is_network(mount: Mount) -> bool:
    """Whether the disk is on the other side of a network."""
    return mount.fs in NETWORK or mount.fs.startswith("fuse.")


def persistence(mount: Mount) -> Persistence:
    """Whether what is written there outlives the server (or the container)."""
    if mount.fs in MEMORY or mount.fs in ("overlay", "aufs"):
        return "temporary"
    if any(mount.point == place or mount.point.startswith(place + "/") for place in TEMPORARY_MOUNTS):
        return "temporary"
    if is_network(mount):
        return "persistent"
    return "unknown"


def _unescape(text: str) -> str:
    """Undo mountinfo's octal escapes of blanks, tabs, line ends and backslashes."""
    if "\\" not in text:
        return text
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text
