"""NVIDIA GPUs through NVML (pynvml): opened once, opened again after the driver or a card was lost.

NVML keeps a device that fell off the bus lost for the life of the session, even when it is back, so only a new
session finds it again. New sessions cost up to a second on a machine without persistence mode: they are tried at
growing intervals.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any, TypeVar

from engine.hardware.device import Driver, Gpu, Problem, Sample, Snapshot
from engine.text import _

T = TypeVar("T")

# nvml.h's return codes, by number: pynvml itself is imported only when a probe is used.
NO_PERMISSION = 4
NOT_FOUND = 6
DRIVER_NOT_LOADED = 9
LIBRARY_NOT_FOUND = 12
MISMATCH = 18
LOST = frozenset({15, 16, 28})  # GPU_IS_LOST, RESET_REQUIRED, GPU_NOT_FOUND
DOWN = frozenset({1, DRIVER_NOT_LOADED, MISMATCH})  # UNINITIALIZED, DRIVER_NOT_LOADED, LIB_RM_VERSION_MISMATCH

XID_EVENT = 0x8
MAX_EVENTS = 64  # per sample: a card that storms with Xids must not hold the supervisor up
MEMORY_V2 = 0x02000028
UNCORRECTED, VOLATILE = 1, 0
GPU_TEMPERATURE = 0
THROTTLE = {  # the reasons that slow a run down; idle clocks and application clocks do not
    0x4: "power_cap",
    0x8: "hw_slowdown",
    0x20: "thermal",
    0x40: "hw_thermal",
    0x80: "power_brake",
}
MAX_WAIT_S = 60.0


class _Lost(Exception):
    """This device is gone."""


class _Down(Exception):
    """The whole driver is gone."""


class Nvml:
    """The NVML backend (see `engine.hardware.device.Backend`).

    Args:
        retry_s: seconds until the first new attempt after something was lost; doubles up to a minute.
    """

    def __init__(self, retry_s: float = 5.0) -> None:
        self._retry_s = self._wait_s = retry_s
        self._next_try = 0.0
        self._api: ModuleType | None = None  # set while a session is open
        self._events: Any = None
        self._handles: dict[str, Any] = {}  # by uuid, of this session
        self._known = Snapshot()

    def scan(self) -> Snapshot:
        """The devices, driver and problem as known now."""
        self._ensure_open()
        return self._known

    def sample(self) -> list[Sample]:
        """One sample of each device ever seen, lost ones included; [] without a driver."""
        self._ensure_open()
        try:
            xids = self._drain_events()
            return [self._sample_device(gpu, xids) for gpu in self._known.gpus]
        except _Down:
            self._close_session()
            self._known.gpus = [replace(gpu, state="lost") for gpu in self._known.gpus]
            self._defer()
            return [Sample.of(gpu, "lost") for gpu in self._known.gpus]

    def close(self) -> None:
        """End the session; a later call opens a new one."""
        self._close_session()
        self._next_try = 0.0

    # -- session ---------------------------------------------------------------------------------------------------

    def _ensure_open(self) -> None:
        any_lost = any(gpu.state == "lost" for gpu in self._known.gpus)
        if self._api is not None and not any_lost:
            return
        if time.monotonic() < self._next_try:
            return
        self._close_session()
        self._open_session()
        if self._api is None or any(gpu.state == "lost" for gpu in self._known.gpus):
            self._defer()
        else:
            self._wait_s = self._retry_s

    def _defer(self) -> None:
        self._next_try = time.monotonic() + self._wait_s
        self._wait_s = min(MAX_WAIT_S, self._wait_s * 2)

    def _open_session(self) -> None:
        try:
            import pynvml
        except ImportError:
            self._known.problem = Problem(
                "no_module",
                _("the Python package nvidia-ml-py is missing"),
                _("install it: pip install nvidia-ml-py"),
            )
            return
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            self._known.problem = _problem(error.value, str(error))
            return
        self._api = pynvml
        self._known.problem = None
        try:
            self._known.driver = self._read_driver()
            self._enumerate()
            self._register_events()
        except _Down:
            self._known.problem = _problem(DRIVER_NOT_LOADED, "")
            self._close_session()

    def _close_session(self) -> None:
        api, self._api = self._api, None
        self._handles = {}
        events, self._events = self._events, None
        if api is None:
            return
        for call, *args in ((api.nvmlEventSetFree, events), (api.nvmlShutdown,)):
            try:
                if args != [None]:
                    call(*args)
            except api.NVMLError:
                pass  # the driver is gone already: there is nothing left to free

    def _ask(self, name: str, *args: Any) -> Any:
        """Call an NVML function; None for what this device or driver does not tell."""
        api = self._api
        if api is None:
            raise _Down
        try:
            return getattr(api, name)(*args)
        except api.NVMLError as error:
            if error.value in LOST:
                raise _Lost from error
            if error.value in DOWN:
                raise _Down from error
            return None
        except Exception:  # noqa: BLE001 - pynvml also raises errors of its own: older drivers, text that is none
            return None

    # -- devices ---------------------------------------------------------------------------------------------------

    def _read_driver(self) -> Driver:
        cuda = self._ask("nvmlSystemGetCudaDriverVersion_v2")
        return Driver(
            _text(self._ask("nvmlSystemGetDriverVersion")),
            f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else None,
        )

    def _enumerate(self) -> None:
        """Find all devices; those known before and not found now stay in the list as lost."""
        assert self._api is not None
        found: dict[str, Gpu] = {}
        self._known.denied = 0
        first_seen = {gpu.uuid: gpu.index for gpu in self._known.gpus}
        for index in range(self._ask("nvmlDeviceGetCount") or 0):
            try:
                handle = self._api.nvmlDeviceGetHandleByIndex(index)
                for gpu, device in self._describe(index, handle):
                    # A card that fell off shifts the numbers of those behind it: keep the number first seen.
                    found[gpu.uuid] = replace(gpu, index=first_seen.get(gpu.uuid, gpu.index))
                    self._handles[gpu.uuid] = device
            except _Lost:
                self._add_lost(found, index)
            except self._api.NVMLError as error:
                if error.value in DOWN:
                    raise _Down from error
                if error.value == NO_PERMISSION:
                    self._known.denied += 1
                else:
                    self._add_lost(found, index)
        for gpu in self._known.gpus:
            if gpu.uuid not in found and not gpu.uuid.startswith("unknown-"):
                found[gpu.uuid] = replace(gpu, state="lost")
        self._known.gpus = sorted(
            found.values(), key=lambda gpu: (gpu.index, -1 if gpu.mig_index is None else gpu.mig_index)
        )

    def _add_lost(self, found: dict[str, Gpu], index: int) -> None:
        if all(gpu.index != index for gpu in self._known.gpus):
            found[f"unknown-{index}"] = Gpu(index, f"unknown-{index}", _("unknown GPU"), state="lost")

    def _describe(self, index: int, handle: Any) -> list[tuple[Gpu, Any]]:
        """The card at `index` and its MIG instances, each with its handle."""
        uuid = _text(self._ask("nvmlDeviceGetUUID", handle)) or f"unknown-{index}"
        capability = self._ask("nvmlDeviceGetCudaComputeCapability", handle)
        bus = self._ask("nvmlDeviceGetPciInfo", handle)
        ecc = self._ask("nvmlDeviceGetEccMode", handle)
        mig = self._ask("nvmlDeviceGetMigMode", handle)
        persistence = self._ask("nvmlDeviceGetPersistenceMode", handle)
        card = Gpu(
            index,
            uuid,
            _text(self._ask("nvmlDeviceGetName", handle)) or _("unknown GPU"),
            memory_total=self._memory(handle)[1],
            capability=".".join(map(str, capability)) if capability else None,
            bus=_text(bus.busId) if bus is not None else None,
            ecc=None if ecc is None else bool(ecc[0]),
            mig=None if mig is None else bool(mig[0]),
            persistence=None if persistence is None else bool(persistence),
            power_limit=_watts(self._ask("nvmlDeviceGetEnforcedPowerLimit", handle)),
        )
        devices = [(card, handle)]
        for number in range(self._ask("nvmlDeviceGetMaxMigDeviceCount", handle) or 0 if card.mig else 0):
            instance = self._ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, number)
            if instance is None:  # fewer instances than the card could have
                continue
            part = Gpu(
                index,
                _text(self._ask("nvmlDeviceGetUUID", instance)) or f"{uuid}/{number}",
                _text(self._ask("nvmlDeviceGetName", instance)) or f"{card.name} MIG",
                memory_total=self._memory(instance)[1],
                capability=card.capability,
                bus=card.bus,
                ecc=card.ecc,
                persistence=card.persistence,
                parent=uuid,
                mig_index=number,
            )
            devices.append((part, instance))
        return devices

    def _memory(self, handle: Any) -> tuple[int | None, int | None]:
        """Bytes used and in all. The second version leaves the driver's own reserve out of `used`."""
        info = self._ask("nvmlDeviceGetMemoryInfo", handle, MEMORY_V2) or self._ask("nvmlDeviceGetMemoryInfo", handle)
        return (None, None) if info is None else (int(info.used), int(info.total))

    # -- samples ---------------------------------------------------------------------------------------------------

    def _sample_device(self, gpu: Gpu, xids: dict[str, int]) -> Sample:
        handle = self._handles.get(gpu.uuid)
        sample = Sample.of(gpu, gpu.state)
        sample.xid = xids.get(gpu.uuid)
        if handle is None or gpu.state == "lost":
            sample.state = "lost"
            return sample
        try:
            sample.memory_used, sample.memory_total = self._memory(handle)
            use = self._ask("nvmlDeviceGetUtilizationRates", handle)
            sample.utilization = None if use is None else int(use.gpu)
            sample.temperature = self._ask("nvmlDeviceGetTemperature", handle, GPU_TEMPERATURE)
            sample.power = _watts(self._ask("nvmlDeviceGetPowerUsage", handle))
            sample.power_limit = _watts(self._ask("nvmlDeviceGetEnforcedPowerLimit", handle))
            sample.ecc_errors = self._ask("nvmlDeviceGetTotalEccErrors", handle, UNCORRECTED, VOLATILE)
            reasons = self._ask("nvmlDeviceGetCurrentClocksEventReasons", handle)
            if reasons is not None:
                sample.throttle = [name for bit, name in THROTTLE.items() if reasons & bit]
            # By version: the plain name refuses to work with a driver older than pynvml.
            processes = self._ask("nvmlDeviceGetComputeRunningProcesses_v3", handle)
            if processes is not None:
                sample.processes = [{"pid": int(p.pid), "memory": p.usedGpuMemory} for p in processes]
            return sample
        except _Lost:
            self._known.gpus = [replace(g, state="lost") if g.uuid == gpu.uuid else g for g in self._known.gpus]
            self._defer()
            lost = Sample.of(gpu, "lost")
            lost.xid = sample.xid
            return lost

    def _register_events(self) -> None:
        try:
            self._events = self._ask("nvmlEventSetCreate")
        except _Lost:
            self._events = None
        if self._events is None:
            return
        for gpu in self._known.gpus:
            if gpu.parent is None and gpu.uuid in self._handles:
                self._quietly("nvmlDeviceRegisterEvents", self._handles[gpu.uuid], XID_EVENT, self._events)

    def _quietly(self, name: str, *args: Any) -> Any:
        try:
            return self._ask(name, *args)
        except _Lost:
            return None

    def _drain_events(self) -> dict[str, int]:
        """The first Xid of each card since the last call; waits for nothing."""
        xids: dict[str, int] = {}
        if self._events is None:
            return xids
        for _number in range(MAX_EVENTS):
            event = self._quietly("nvmlEventSetWait_v2", self._events, 0)  # a time-out is an error code: None
            if event is None:
                break
            uuid = self._uuid_of(event.device)
            if uuid is not None and event.eventType == XID_EVENT:
                xids.setdefault(uuid, int(event.eventData))
        return xids

    def _uuid_of(self, device: Any) -> str | None:
        """The uuid behind an event's handle; by address first, since a card that fell off tells nothing."""
        address = _address(device)
        for uuid, handle in self._handles.items():
            if _address(handle) == address:
                return uuid
        return _text(self._quietly("nvmlDeviceGetUUID", device))


def _address(handle: Any) -> int:
    import ctypes

    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def _text(value: str | bytes | None) -> str | None:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


def _problem(code: int, text: str) -> Problem:
    """The problem behind an error of nvmlInit."""
    makers: dict[int, Callable[[], Problem]] = {
        LIBRARY_NOT_FOUND: lambda: Problem(
            "no_library",
            _("no NVIDIA driver library (libnvidia-ml.so.1) here"),
            _("install the NVIDIA driver; in a container, start it with --gpus all"),
        ),
        DRIVER_NOT_LOADED: lambda: Problem(
            "no_driver",
            _("the NVIDIA driver is not loaded"),
            _("load it with `modprobe nvidia`, or see `dmesg | grep -i nvrm` for why it does not load"),
        ),
        MISMATCH: lambda: Problem(
            "mismatch",
            _("the NVIDIA driver library and the loaded kernel driver have different versions"),
            _("the driver was updated while loaded: reboot; in a container, start it again"),
        ),
        NO_PERMISSION: lambda: Problem(
            "no_permission",
            _("no permission to use the NVIDIA driver"),
            _("check the access to /dev/nvidiactl and /dev/nvidia0 for this user or container"),
        ),
    }
    if code in makers:
        return makers[code]()
    return Problem(
        "driver_error",
        _("the NVIDIA driver reports: {error}").format(error=text),
        _("see `nvidia-smi` and `dmesg | grep -i nvrm`"),
    )
