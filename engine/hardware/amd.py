"""AMD GPUs through `amd-smi --json` (ROCm). Untested on real hardware: the shapes are those of amd-smi's own source.

Documents are a list of GPUs, or `{"gpu_data": [...]}` in newer releases; a value is `{"value": 1, "unit": "W"}`,
a bare number, or "N/A". Its "MB" are 2^20 bytes.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import orjson

from engine.hardware.device import Gpu, Problem, Sample, Snapshot
from engine.text import _

TIMEOUT_S = 10.0
PROCESSES_EVERY_S = 5.0  # each call of the program costs about 50 ms of CPU
MIB = 1 << 20

Run = Callable[[list[str]], bytes]


def available() -> bool:
    """Whether the program exists on this machine."""
    return shutil.which("amd-smi") is not None


def _run(arguments: list[str]) -> bytes:
    return subprocess.run(
        ["amd-smi", *arguments, "--json"], capture_output=True, timeout=TIMEOUT_S, check=False, stdin=subprocess.DEVNULL
    ).stdout


class AmdSmi:
    """The amd-smi backend (see `engine.hardware.device.Backend`)."""

    def __init__(self, run: Run = _run) -> None:
        self._run = run
        self._known: Snapshot | None = None
        self._processes: dict[int, list[dict[str, int | None]]] = {}
        self._processes_at = -PROCESSES_EVERY_S

    def scan(self) -> Snapshot:
        """The devices, driver and problem as known now."""
        if self._known is None:
            self._known = self._read_devices()
        return self._known

    def sample(self) -> list[Sample]:
        """One sample of each device; those that the program does not list any more are lost."""
        known = self.scan()
        if not known.gpus:
            return []
        rows = self._rows("metric", "--usage", "--power", "--temperature", "--ecc", "--mem-usage")
        if time.monotonic() - self._processes_at >= PROCESSES_EVERY_S:
            self._processes_at = time.monotonic()
            self._processes = {i: _processes(row) for i, row in self._rows("process").items()}
        known.gpus = [replace(gpu, state="ok" if gpu.index in rows else "lost") for gpu in known.gpus]
        return [self._sample(gpu, rows.get(gpu.index)) for gpu in known.gpus]

    def close(self) -> None:
        """Forget the devices; the next call looks for them again."""
        self._known = None

    def _sample(self, gpu: Gpu, row: dict[str, Any] | None) -> Sample:
        sample = Sample.of(gpu, gpu.state)
        if row is None:
            return sample
        sample.memory_used = _scaled(row, MIB, "mem_usage", "used_vram")
        sample.memory_total = _scaled(row, MIB, "mem_usage", "total_vram") or gpu.memory_total
        sample.utilization = _scaled(row, 1, "usage", "gfx_activity")
        sample.temperature = _scaled(row, 1, "temperature", "hotspot")
        sample.power = _number(row, "power", "socket_power")
        sample.power_limit = gpu.power_limit
        sample.ecc_errors = _scaled(row, 1, "ecc", "total_uncorrectable_count")
        sample.processes = self._processes.get(gpu.index)
        return sample

    def _rows(self, *arguments: str) -> dict[int, dict[str, Any]]:
        """The program's answer by GPU number; {} when it does not answer."""
        try:
            document = orjson.loads(self._run(list(arguments)))
        except (OSError, subprocess.SubprocessError, ValueError):
            return {}
        if isinstance(document, dict):
            document = document.get("gpu_data")
        if not isinstance(document, list):
            return {}
        return {row["gpu"]: row for row in document if isinstance(row, dict) and isinstance(row.get("gpu"), int)}

    def _read_devices(self) -> Snapshot:
        static = self._rows("static")
        if not static:
            return Snapshot(
                problem=Problem(
                    "driver_error",
                    _("amd-smi lists no GPU"),
                    _("run `amd-smi static`; check that the amdgpu driver is loaded and /dev/kfd is accessible"),
                )
            )
        ids = self._rows("list")
        gpus = []
        for index, row in sorted(static.items()):
            asic = row.get("asic") if isinstance(row.get("asic"), dict) else {}
            assert isinstance(asic, dict)
            gpus.append(
                Gpu(
                    index,
                    _word(ids.get(index, {}).get("uuid")) or f"amd-{index}",
                    _word(asic.get("market_name")) or _("unknown GPU"),
                    vendor="amd",
                    memory_total=_scaled(row, MIB, "vram", "size"),
                    capability=_word(asic.get("target_graphics_version")),
                    bus=_word(ids.get(index, {}).get("bdf")),
                    power_limit=_number(row, "limit", "socket_power"),
                )
            )
        return Snapshot(gpus)


def _word(value: Any) -> str | None:
    return value if isinstance(value, str) and value != "N/A" else None


def _number(row: dict[str, Any], *path: str) -> float | None:
    value: Any = row
    for key in (*path, "value"):
        if isinstance(value, dict):
            value = value.get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _scaled(row: dict[str, Any], scale: int, *path: str) -> int | None:
    value = _number(row, *path)
    return None if value is None else int(value * scale)


def _processes(row: dict[str, Any]) -> list[dict[str, int | None]]:
    found: list[dict[str, int | None]] = []
    for entry in row.get("process_list") or []:
        info = entry.get("process_info") if isinstance(entry, dict) else None
        if isinstance(info, dict) and isinstance(info.get("pid"), int):
            found.append({"pid": info["pid"], "memory": _scaled(info, 1, "memory_usage", "vram_mem")})
    return found
