"""What the GPU backends have in common: a device, the driver, and a problem that a user can act upon."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol

Vendor = Literal["nvidia", "amd"]
State = Literal["ok", "lost"]


@dataclass(frozen=True)
class Problem:
    """Why no GPU can be seen, and what to do; `kind` is for programs, the rest is translated text."""

    kind: str
    message: str
    fix: str

    def to_json(self) -> dict[str, str]:
        """The problem as it stands in `--json` output."""
        return asdict(self)


@dataclass(frozen=True)
class Driver:
    """Versions that the driver tells (None where it does not)."""

    version: str | None = None
    cuda: str | None = None


@dataclass(frozen=True)
class Gpu:
    """One GPU, or one MIG instance of a GPU; what the device does not tell is None.

    `index` is the driver's number for the card (NVML counts in PCI bus order, CUDA by default does not): choose
    cards for a process by `uuid`. A MIG instance has its card's index, `parent` (the card's uuid) and `mig_index`.
    """

    index: int
    uuid: str
    name: str
    vendor: Vendor = "nvidia"
    state: State = "ok"
    memory_total: int | None = None
    capability: str | None = None
    bus: str | None = None
    ecc: bool | None = None
    mig: bool | None = None
    persistence: bool | None = None
    power_limit: float | None = None
    parent: str | None = None
    mig_index: int | None = None

    @property
    def label(self) -> str:
        """The number to show: `3`, or `3.1` for the second MIG instance of card 3."""
        return str(self.index) if self.mig_index is None else f"{self.index}.{self.mig_index}"

    @property
    def visible_id(self) -> str:
        """What to write into CUDA_VISIBLE_DEVICES: the uuid; ROCm's runtime knows other uuids than amd-smi."""
        return self.uuid if self.vendor == "nvidia" else str(self.index)

    def to_json(self) -> dict[str, Any]:
        """The device as a JSON object."""
        return asdict(self)


@dataclass
class Sample:
    """One device at one moment, in the words of hardware.jsonl: bytes, percent, degrees Celsius, watts.

    `xid` is the first Xid that the driver reported since the sample before (the root cause comes first),
    `throttle` names why the clocks are held down, `processes` is None where the driver does not list them.
    """

    index: int
    uuid: str
    name: str
    state: State = "ok"
    memory_used: int | None = None
    memory_total: int | None = None
    utilization: int | None = None
    temperature: int | None = None
    power: float | None = None
    power_limit: float | None = None
    ecc_errors: int | None = None
    xid: int | None = None
    throttle: list[str] | None = None
    processes: list[dict[str, int | None]] | None = None
    parent: str | None = None
    mig_index: int | None = None

    @classmethod
    def of(cls, gpu: Gpu, state: State) -> Sample:
        """A sample of `gpu` with nothing measured yet."""
        return cls(
            gpu.index, gpu.uuid, gpu.name, state, memory_total=gpu.memory_total, parent=gpu.parent,
            mig_index=gpu.mig_index,
        )  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """The sample as it stands in hardware.jsonl."""
        return dict(vars(self))


@dataclass
class Snapshot:
    """What a backend knows about its devices."""

    gpus: list[Gpu] = field(default_factory=list)
    driver: Driver = field(default_factory=Driver)
    problem: Problem | None = None
    denied: int = 0


class Backend(Protocol):
    """A vendor's library. Nothing here raises: a device that is gone is a state, a missing driver a problem."""

    def scan(self) -> Snapshot:
        """The devices, driver and problem as known now (opens the library on first use)."""

    def sample(self) -> list[Sample]:
        """One sample of each device ever seen by this backend, lost ones included."""

    def close(self) -> None:
        """Let go of the library."""
