"""Plans for tests: a request of a usual run, records of what such runs measured, a machine with GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine.hardware.gpus import Gpu
from engine.plan import measured
from engine.plan.plan import Result, plan
from engine.plan.request import parse
from engine.run.gpus import Placement

GB = 1e9
USUAL: dict[str, Any] = {
    "model": "Qwen/Qwen3-8B",
    "method": "lora",
    "optim": "adamw_torch_fused",
    "max_length": 4096,
    "per_device_train_batch_size": 2,
    "transformers": "5",
    "gpu": "H100",
    "num_gpus": 1,
    "sharding": "none",
    "packing": True,
    "max_steps": 100,
}


def planned(history: measured.History | None = None, **changes: Any) -> Result:
    """The plan of the usual run with some values changed."""
    return plan(parse(USUAL | changes), history=history)


def record(
    home: Path,
    run: str = "before-1",
    *,
    factor: float = 1.05,
    rate: float | None = None,
    dataset: str = "/data/train.jsonl",
    epochs: float = 2.0,
    memory: float | None = None,
    probe: bool = False,
    more: dict[str, Any] | None = None,
    **changes: Any,
) -> float:
    """Store that a run took `memory`, or `factor` times what is planned for it; returns the bytes."""
    request = USUAL | changes
    result = plan(parse(request))
    cpu = request.get("gpu") == "cpu"
    size = factor * (result.device.device if cpu else result.memory.peak.total)
    size = size if memory is None else memory
    card = "cpu" if cpu else result.context.card.id if result.context.card else None
    line = {"run": run, "request": request, "dataset": dataset, "card": card, "epochs": epochs}
    line |= {"probe": True} if probe else {}
    measured.store(home, {**line, "measured": {"memory": round(size), "tokens_per_s": rate, **(more or {})}})
    return size


def cards(count: int, *, name: str = "NVIDIA H100 80GB HBM3", size: int = 85520809984) -> Placement:
    """A placement on GPUs that nobody locks."""
    gpus = tuple(Gpu(index, f"GPU-{index}", name, memory_total=size, capability="9.0") for index in range(count))
    return Placement(tuple(gpu.uuid for gpu in gpus), count, (), True, gpus)


NO_GPU = Placement((), 1, ())
