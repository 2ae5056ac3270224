"""Host memory and CPU, with the limit of the container that we are in."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SHM = "/dev/shm"  # noqa: S108 - the shared memory of data loader workers and NCCL, only measured
UNLIMITED = 1 << 60  # cgroup v1 writes a huge number for "no limit"

_cpu_primed = False


@dataclass(frozen=True)
class Cgroup:
    """The tightest memory limit that holds for this process, and what counts against it (bytes)."""

    limit: int
    used: int


def sample(pids: Iterable[int] = ()) -> dict[str, Any]:
    """Host memory (within the container's limit), swap and CPU now, in bytes and percent.

    `memory_ranks` is the resident memory of the given processes and all below them (None without pids; shared pages
    count once for each); `cpu` is the share of all cores since the call before (None at the first).
    """
    import psutil

    global _cpu_primed
    memory = psutil.virtual_memory()
    total, available = memory.total, memory.available
    limit = cgroup()
    if limit is not None and limit.limit < total:
        total = limit.limit
        available = min(available, max(0, limit.limit - limit.used))
    swap = psutil.swap_memory()
    cpu = psutil.cpu_percent(interval=None)  # 0.0 at the first call: it has no interval yet
    first, _cpu_primed = not _cpu_primed, True
    pids = list(pids)
    return {
        "memory_used": total - available,
        "memory_total": total,
        "memory_available": available,
        "memory_limit": None if limit is None else limit.limit,
        "memory_ranks": tree_memory(pids) if pids else None,
        "swap_used": swap.used,
        "swap_total": swap.total,
        "cpu": None if first else cpu,
    }


def tree_memory(pids: Iterable[int]) -> int:
    """Resident bytes of the processes and all their descendants; those that have ended count as nothing."""
    import psutil

    seen: dict[int, psutil.Process] = {}
    for pid in pids:
        try:
            root = psutil.Process(pid)
            for process in (root, *root.children(recursive=True)):
                seen[process.pid] = process
        except psutil.Error:
            continue
    total = 0
    for process in seen.values():
        try:
            total += process.memory_info().rss
        except psutil.Error:
            continue
    return total


def shm() -> tuple[int, int] | None:
    """Free and total bytes of /dev/shm; None where there is none."""
    try:
        stat = os.statvfs(SHM)
    except OSError:
        return None
    return stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize


def open_files_limit() -> tuple[int, int]:
    """How many files a process may open: soft and hard limit (-1: no limit)."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)


def cgroup(root: Path = Path("/")) -> Cgroup | None:
    """The tightest memory limit of this process's cgroups (v2 or v1); None when there is none.

    Args:
        root: the file system to look in; tests give their own.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    mount = root / "sys/fs/cgroup"
    found: list[Cgroup] = []
    for line in lines:
        _number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":
            found += _limits(mount, path, "memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            found += _limits(mount / "memory", path, "memory.limit_in_bytes", "memory.usage_in_bytes")
    return min(found, key=lambda entry: entry.limit, default=None)


def _limits(mount: Path, path: str, limit_file: str, used_file: str) -> list[Cgroup]:
    """The limits on the way from the process's group up to the root; a child may be wider than its parent.

    In a container the path is often that of the host and does not exist here: then the mount itself is our group.
    """
    parts = [part for part in path.split("/") if part and part != ".."]
    groups = [mount.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1)]
    found = []
    for group in groups:
        limit, used = _number(group / limit_file), _number(group / used_file)
        if limit is None or limit >= UNLIMITED:
            continue
        # The page cache that can be dropped at once counts as used there, and is free for us.
        used = max(0, (used or 0) - _stat(group / "memory.stat", ("inactive_file", "total_inactive_file")))
        found.append(Cgroup(limit, used))
    return found


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # absent, or "max"
        return None


def _stat(path: Path, names: tuple[str, ...]) -> int:
    try:
        rows = dict(line.split() for line in path.read_text().splitlines())
        return max(int(rows.get(name, 0)) for name in names)
    except (OSError, ValueError):
        return 0
