"""environment.json and requirements.txt: what this run was trained with, to train it again."""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata
from typing import Any

from engine.files import write_atomic, write_json
from engine.train.job import Job

PACKAGES = (
    "torch", "transformers", "trl", "peft", "accelerate", "bitsandbytes", "datasets", "tokenizers", "safetensors",
    "deepspeed", "flash-attn", "numpy", "finetune-tui",
)  # fmt: skip


def versions() -> dict[str, str]:
    """The versions that decide whether a checkpoint can be read and a run repeated."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def requirements() -> str:
    """Every installed distribution with its version, one a line, as `pip freeze` prints them."""
    lines = {}
    for distribution in metadata.distributions():
        name = distribution.metadata["Name"]
        if name:
            lines.setdefault(name.lower().replace("_", "-"), f"{name}=={distribution.version}")
    return "".join(f"{lines[key]}\n" for key in sorted(lines))


def record(job: Job, data: dict[str, Any], model: str) -> None:
    """Write both files into the run folder."""
    import torch

    gpus = []
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(index)
            gpus.append({"index": index, "name": properties.name, "memory": properties.total_memory})
    write_json(
        job.run.environment,
        {
            "format": 1,
            "attempt": job.rank.attempt,
            "versions": versions(),
            "cuda": torch.version.cuda,
            "hip": getattr(torch.version, "hip", None),
            "driver": _driver(),
            "gpus": gpus,
            "cpu": {"machine": platform.machine(), "cores": os.cpu_count(), "threads": torch.get_num_threads()},
            "system": platform.platform(),
            "world_size": job.rank.world_size,
            "command": sys.orig_argv,
            "model": model,
            "recipe_sha256": job.recipe_sha256,
            "data_sha256": data.get("data_sha256"),
            "sources": data.get("sources"),
            "seed": job.get("seed", 42),
            "data_seed": job.recipe.get("data_seed"),
        },
    )
    write_atomic(job.run.path / "requirements.txt", requirements().encode())


def _driver() -> str | None:
    try:
        with open("/sys/module/nvidia/version", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return None
