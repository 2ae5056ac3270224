"""The machine's GPUs: what they are, how they do now, which ones a process would see, which ones are free."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from engine.hardware.device import Backend, Driver, Gpu, Problem, Sample

__all__ = ["Driver", "Gpu", "Probe", "Problem", "Sample", "free", "on_pci_bus", "usable", "visible"]

FREE_SHARE = 0.05  # of a card's memory: an idle driver or a desktop takes less, a model takes more
PCI = Path("/sys/bus/pci/devices")
VENDORS = {"0x10de": "nvidia", "0x1002": "amd"}
DISPLAY_CLASSES = ("0x03", "0x12")  # display controllers and processing accelerators

Samples = list[dict[str, Any]]  # inside Probe the name `list` is its method


class Probe:
    """Lists and samples GPUs; opens the vendor's library on first use. Nothing raises.

    No driver, a driver that does not fit its library or a machine without GPUs is `problem`; a GPU that falls off
    is in state "lost" and comes back when it does; a field that a device does not tell is None.

    Args:
        retry_s: seconds until the first new attempt after a GPU or the driver was lost.
    """

    def __init__(self, *, retry_s: float = 5.0) -> None:
        self._retry_s = retry_s
        self._backends: list[Backend] | None = None

    def __enter__(self) -> Probe:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def list(self) -> list[Gpu]:
        """All GPUs seen so far, and the MIG instances of each behind it; lost ones included."""
        return [gpu for backend in self._open() for gpu in backend.scan().gpus]

    def sample(self) -> Samples:
        """One sample of each GPU, as in hardware.jsonl (see `engine.hardware.device.Sample`)."""
        return [sample.to_json() for backend in self._open() for sample in backend.sample()]

    @property
    def problem(self) -> Problem | None:
        """Why no GPU can be seen; None when one can, or when the machine simply has none and a driver."""
        snapshots = [backend.scan() for backend in self._open()]
        if any(snapshot.gpus for snapshot in snapshots):
            return None
        return next((snapshot.problem for snapshot in snapshots if snapshot.problem), None)

    @property
    def driver(self) -> Driver:
        """Driver and CUDA version (None where unknown)."""
        return next((s.driver for b in self._open() if (s := b.scan()).driver.version), Driver())

    @property
    def denied(self) -> int:
        """How many GPUs are there that this user may not open."""
        return sum(backend.scan().denied for backend in self._open())

    def close(self) -> None:
        """Let go of the libraries; a later call opens them again."""
        for backend in self._backends or []:
            backend.close()
        self._backends = None

    def _open(self) -> Sequence[Backend]:
        if self._backends is None:
            from engine.hardware import amd, nvml

            self._backends = [nvml.Nvml(self._retry_s)]
            if amd.available():
                self._backends.insert(0, amd.AmdSmi())
        return self._backends


def usable(gpus: Iterable[Gpu]) -> list[Gpu]:
    """The devices that can compute: not lost, and MIG instances in place of a card that is cut into them."""
    return [gpu for gpu in gpus if gpu.state == "ok" and not gpu.mig]


def visible(gpus: Sequence[Gpu], wanted: str | None = None) -> list[Gpu]:
    """The usable GPUs that CUDA_VISIBLE_DEVICES leaves, in its order, read as CUDA reads it.

    Entries are numbers, `GPU-…` uuids or their beginnings, `MIG-…` uuids or `MIG-GPU-…/<gi>/<ci>`; the first entry
    that names nothing hides itself and all after it.

    Args:
        gpus: what `Probe.list` gave.
        wanted: the variable's value; None takes it from the environment, and all GPUs where it is not set.
    """
    if wanted is None:
        wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    candidates = usable(gpus)
    if wanted is None:
        return candidates
    chosen: list[Gpu] = []
    for entry in (part.strip() for part in wanted.split(",")):
        gpu = _named(candidates, entry)
        if gpu is None or gpu in chosen:
            break
        chosen.append(gpu)
    return chosen


def _named(gpus: Sequence[Gpu], entry: str) -> Gpu | None:
    if entry.isdigit():
        return next((gpu for gpu in gpus if gpu.index == int(entry)), None)
    if entry.startswith(("GPU-", "MIG-")):
        fits = [gpu for gpu in gpus if gpu.uuid.startswith(entry)]
        return fits[0] if len(fits) == 1 else None
    return None


def free(gpus: Iterable[Gpu], samples: Iterable[dict[str, Any]], *, own: Collection[int] = ()) -> list[Gpu]:
    """Those of `gpus` that nobody uses: no process other than `own`, and memory used below a small share.

    A device that tells neither its processes nor its memory counts as free: a vGPU must stay usable.
    """
    now = {sample["uuid"]: sample for sample in samples}
    found = []
    for gpu in gpus:
        sample = now.get(gpu.uuid)
        if sample is None or sample["state"] != "ok":
            continue
        processes = sample["processes"] or []
        if any(process["pid"] not in own for process in processes):
            continue
        used, total = sample["memory_used"], sample["memory_total"]
        if used is not None and total:
            # Inside a container the driver lists no processes of others: then the memory alone tells.
            used -= sum(process["memory"] or 0 for process in processes)
            if used > FREE_SHARE * total:
                continue
        found.append(gpu)
    return found


def on_pci_bus(root: Path = PCI) -> dict[str, int]:
    """GPUs on the PCI bus by vendor, whether or not a driver is there: {"nvidia": 8}."""
    count: dict[str, int] = {}
    try:
        devices = list(root.iterdir())
    except OSError:
        return count
    for device in devices:
        try:
            vendor = VENDORS.get((device / "vendor").read_text().strip())
            if vendor and (device / "class").read_text().startswith(DISPLAY_CLASSES):
                count[vendor] = count.get(vendor, 0) + 1
        except OSError:
            continue
    return count
