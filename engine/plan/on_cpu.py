"""Training on the processor: everything in fp32, in host memory, beside Python and its libraries.

A request says it with `gpu: cpu`; `gpu_memory_gb` is then the host's memory (the container's, where it has a limit).
"""

from __future__ import annotations

import dataclasses
from typing import Any

from engine.plan.device import Device
from engine.plan.memory import Memory, Phase

CPU = "cpu"
PASSING = ("activations", "logits", "transients")
WIDER = 2.0  # fp32 where the formulas count bf16
PROCESS = 0.95e9  # resident: Python, torch and data of a rank, and the launcher beside it (docs/measurements.md)
SLACK = 0.25  # of what passes: heap that malloc does not give back
BAND = 0.30  # an allocator that is not counted, pages that are shared


def local() -> dict[str, Any]:
    """The fields of a request for this machine's processor."""
    from engine.hardware import host

    return {"gpu": CPU, "gpu_memory_gb": host.sample()["memory_total"] / 1e9, "num_gpus": 1}


def memory(m: Memory) -> Memory:
    """The phases with what passes through a step in fp32."""
    wide = tuple(
        Phase(p.name, {part: size * (WIDER if part in PASSING else 1.0) for part, size in p.parts.items()})
        for p in m.phases
    )
    return dataclasses.replace(m, phases=wide)


def device(m: Memory) -> Device:
    """Resident memory of the run's processes at their peak."""
    held = m.peak.total + SLACK * sum(m.peak.parts.get(part, 0.0) for part in PASSING)
    return Device(held, held + PROCESS, held + PROCESS, PROCESS)
