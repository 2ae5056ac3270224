"""Checks of the machine: GPUs and their driver, host memory, disks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from engine.hardware import disk, host
from engine.hardware.doctor.check import Check, State
from engine.hardware.gpus import Gpu, Probe, on_pci_bus
from engine.text import _, gigabytes, ngettext, number
from engine.workspace import Workspace

GB = 10**9
LOW_MEMORY, NO_MEMORY = 8 * GB, 1 * GB
LOW_SHM = 1 * GB  # containers start with 64 MB, on which data loader workers and NCCL die with a bus error
LOW_DISK, NO_DISK = 20 * GB, 1 * GB
LOW_INODES = 10_000
OPEN_FILES = 4096


def gpu_checks(probe: Probe, gpus: list[Gpu], samples: list[dict[str, Any]]) -> list[Check]:
    """The driver, and each GPU."""
    checks = [_driver_check(probe, gpus)]
    if probe.denied:
        checks.append(
            Check(
                "gpu.denied",
                "gpu",
                _("GPU access"),
                "warn",
                ngettext("{n} GPU may not be opened", "{n} GPUs may not be opened", probe.denied).format(
                    n=probe.denied
                ),
                fix=_("give this user or container access to the /dev/nvidia* devices"),
            )
        )
    now = {sample["uuid"]: sample for sample in samples}
    checks += [_gpu_check(gpu, now.get(gpu.uuid, {})) for gpu in gpus]
    return checks


def _driver_check(probe: Probe, gpus: list[Gpu]) -> Check:
    title = _("GPU driver")
    problem = probe.problem
    if gpus:
        version, cuda = probe.driver.version, probe.driver.cuda
        value = version or _("unknown version")
        return Check(
            "driver", "gpu", title, "ok", value, _("up to CUDA {version}").format(version=cuda) if cuda else ""
        )
    present = sum(on_pci_bus().values())
    if present and problem:
        detail = ngettext("{n} GPU is in this machine", "{n} GPUs are in this machine", present).format(n=present)
        return Check("driver", "gpu", title, "fail", problem.message, detail, problem.fix)
    if problem and problem.kind not in ("no_library", "no_driver"):
        return Check("driver", "gpu", title, "fail", problem.message, fix=problem.fix)
    return Check(
        "driver",
        "gpu",
        title,
        "warn",
        _("no GPU"),
        problem.message if problem else "",
        _("runs use the CPU, which is enough for the demo; if there should be a GPU: {fix}").format(
            fix=problem.fix if problem else _("see `nvidia-smi`")
        ),
    )


def _gpu_check(gpu: Gpu, sample: dict[str, Any]) -> Check:
    title = _("GPU {number}").format(number=gpu.label)
    ident = f"gpu.{gpu.label}"
    if gpu.state == "lost" or sample.get("state") == "lost":
        return Check(
            ident,
            "gpu",
            title,
            "fail",
            _("{name}: lost").format(name=gpu.name),
            fix=_("see `dmesg | grep -i xid`; reset it with `nvidia-smi --gpu-reset` or reboot; if it comes again, "
                  "have the card exchanged"),
        )  # fmt: skip
    memory = gigabytes(gpu.memory_total) if gpu.memory_total else _("unknown memory")
    value = _("{name}, {memory}").format(name=gpu.name, memory=memory)
    facts, fix = [], ""
    state: State = "ok"
    if gpu.mig:
        facts.append(_("cut into MIG instances"))
    if gpu.ecc is not None:
        facts.append(_("ECC on") if gpu.ecc else _("ECC off"))
    used, busy = sample.get("memory_used"), sample.get("processes") or []
    if busy:
        facts.append(ngettext("{n} process uses it", "{n} processes use it", len(busy)).format(n=len(busy)))
    if used is not None and gpu.memory_total and used > 0.05 * gpu.memory_total:
        facts.append(_("{memory} in use").format(memory=gigabytes(used)))
    if sample.get("throttle"):
        facts.append(_("slowed down: {reasons}").format(reasons=", ".join(sample["throttle"])))
    if errors := sample.get("ecc_errors"):
        state = "warn"
        facts.append(_("{n} uncorrected memory errors").format(n=number(errors)))
        fix = _("reset the card or reboot; if it comes again, have the card exchanged")
    return Check(ident, "gpu", title, state, value, " · ".join(facts), fix)


def memory_checks() -> list[Check]:
    """Host memory, the container's limit, /dev/shm, open files."""
    sample = host.sample()
    available, total = sample["memory_available"], sample["memory_total"]
    state: State = "ok" if available >= LOW_MEMORY else "warn" if available >= NO_MEMORY else "fail"
    checks = [
        Check(
            "memory",
            "memory",
            _("Host memory"),
            state,
            _("{free} free of {total}").format(free=gigabytes(available), total=gigabytes(total)),
            fix="" if state == "ok" else _("end what uses the memory: `ps aux --sort=-rss | head`"),
        )
    ]
    group = host.cgroup()
    value = _("none") if group is None else _("{used} of {limit} used").format(
        used=gigabytes(group.used), limit=gigabytes(group.limit)
    )  # fmt: skip
    full = group is not None and group.used > 0.9 * group.limit
    checks.append(
        Check(
            "memory.limit",
            "memory",
            _("Container limit"),
            "warn" if full else "ok",
            value,
            fix=_("start the container with a higher memory limit") if full else "",
        )
    )
    checks += [_shm_check(), _files_check()]
    return checks


def _shm_check() -> Check:
    shm = host.shm()
    title = _("Shared memory")
    fix = _("start the container with --ipc=host or --shm-size=16g")
    if shm is None:
        return Check("memory.shm", "memory", title, "warn", _("no /dev/shm"), fix=fix)
    free, total = shm
    value = _("{free} free of {total}").format(free=gigabytes(free), total=gigabytes(total))
    small = free < LOW_SHM
    return Check("memory.shm", "memory", title, "warn" if small else "ok", value, fix=fix if small else "")


def _files_check() -> Check:
    soft, hard = host.open_files_limit()
    low = 0 <= soft < OPEN_FILES
    return Check(
        "open_files",
        "memory",
        _("Open files"),
        "warn" if low else "ok",
        _("no limit") if soft < 0 else number(soft),
        fix=_("`ulimit -n {n}` before starting ftui").format(n=65536 if hard < 0 else min(65536, hard)) if low else "",
    )


def disk_checks(workspace: Workspace) -> list[Check]:
    """The disks of the workspace and of the hub's cache."""
    return [
        _disk_check("disk.workspace", _("Workspace disk"), workspace.root, needed=True),
        _disk_check("disk.models", _("Models (HF_HOME)"), hub_home(), needed=False),
    ]


def hub_home() -> Path:
    """The hub's cache folder, as huggingface_hub finds it."""
    if home := os.environ.get("HF_HOME"):
        return Path(home)
    # Path.home() raises for a user without an entry in passwd, as containers often run one.
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111
    return Path(cache) / "huggingface"


def _disk_check(ident: str, title: str, path: str | os.PathLike[str], *, needed: bool) -> Check:
    bad: State = "fail" if needed else "warn"
    elsewhere = _("choose another place with --home DIR or FTUI_HOME") if needed else _("set HF_HOME to another disk")
    try:
        found = disk.describe(path)
    except OSError as error:
        return Check(ident, "disk", title, bad, error.strerror or str(error), str(path), elsewhere)
    value = _("{free} free of {total}").format(free=gigabytes(found.free), total=gigabytes(found.total))
    facts = [found.path, _("{fs} on {mount}").format(fs=found.fs, mount=found.mount)]
    if found.network:
        facts.append(_("over a network"))
    if found.read_only or not found.writable:
        facts.append(_("read-only") if found.read_only else _("not writable"))
        return Check(ident, "disk", title, bad, value, " · ".join(facts), elsewhere)
    state: State = "ok"
    fixes = []
    if found.free < LOW_DISK:
        state = bad if found.free < NO_DISK else "warn"
        fixes.append(_("make room, or {elsewhere}").format(elsewhere=elsewhere))
    if found.inodes_free is not None and found.inodes_free < LOW_INODES:
        state = "warn" if state == "ok" else state
        facts.append(_("only {n} files can still be made").format(n=number(found.inodes_free)))
        fixes.append(_("delete small files (`df -i` shows where)"))
    if found.persistence == "temporary" and needed:
        state = "warn" if state == "ok" else state
        facts.append(_("temporary: gone when the server or container stops"))
        fixes.append(_("keep the workspace on a disk that stays, or copy runs off in time"))
    return Check(ident, "disk", title, state, value, " · ".join(facts), "; ".join(fixes))
