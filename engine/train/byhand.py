"""`launch/` of a run folder: how its ranks were started, for whoever wants to start them by hand. Light: no torch."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from engine.files import write_atomic
from engine.train import sharding
from engine.workspace import RunFolder

# What of the environment decides how the ranks run; the rest is the user's own.
KEPT = (
    "PYTHONSAFEPATH", "PYTHONPATH", "FTUI_RUN", "FTUI_ATTEMPT", "FTUI_RESUME_FROM", "FTUI_ENGINE_PLUGIN",
    "CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "OMP_WAIT_POLICY", "OMP_NUM_THREADS",
    "TOKENIZERS_PARALLELISM", "HF_HUB_DISABLE_TELEMETRY", "HF_HOME",
)  # fmt: skip
HEAD = """#!/bin/sh
# How `ftui` started this run (attempt {attempt}). By hand it does the same without the supervisor: no restarts, no
# control socket, no hardware log. Stop the run first; FTUI_RESUME_FROM names the checkpoint to go on from.
"""
ACCELERATE = """# The same ranks for accelerate, with the variables of run.sh and RUN the folder's whole path:
# `accelerate launch --config_file accelerate.yaml -m engine.train RUN`. On CPUs accelerate starts one process however
# many are asked for: use run.sh there.
"""


def write(run: RunFolder, arguments: Sequence[str], environment: Mapping[str, str], ranks: int) -> None:
    """Write `launch/run.sh` and `launch/accelerate.yaml`.

    Args:
        run: the run folder; resolved.json must be there.
        arguments: the command that starts the ranks.
        environment: its whole environment.
        ranks: how many it starts.
    """
    import yaml

    folder = run.path / "launch"
    folder.mkdir(exist_ok=True)
    exports = [f"export {key}={shlex.quote(environment[key])}\n" for key in KEPT if key in environment]
    script = HEAD.format(attempt=environment.get("FTUI_ATTEMPT", "1")) + "".join(exports)
    script += f"exec {shlex.join(arguments)}\n"
    write_atomic(folder / "run.sh", script.encode())
    (folder / "run.sh").chmod(0o755)
    values = run.read_resolved().get("recipe") or {}
    text = yaml.safe_dump(accelerate_config(values, ranks), sort_keys=False)
    write_atomic(folder / "accelerate.yaml", (ACCELERATE + text).encode())


def accelerate_config(recipe: Mapping[str, Any], ranks: int) -> dict[str, Any]:
    """The configuration as `accelerate config` writes it."""
    wanted, on_cpu = sharding.kind(recipe), bool(recipe.get("use_cpu"))
    document: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "debug": False,
        "distributed_type": "NO",
        "machine_rank": 0,
        "main_training_function": "main",
        "mixed_precision": "no" if sharding.pure_bf16(recipe) else sharding.mixed_precision(recipe),
        "num_machines": int(recipe.get("num_machines") or 1),
        "num_processes": ranks,
        "rdzv_backend": "static",
        "same_network": True,
        "use_cpu": on_cpu,
    }
    options = sharding.trainer_options(recipe, ranks)
    if "deepspeed" in options:
        document["distributed_type"] = "DEEPSPEED"
        zero = options["deepspeed"]["zero_optimization"]
        document["deepspeed_config"] = {
            "zero_stage": zero["stage"],
            "offload_optimizer_device": zero.get("offload_optimizer", {}).get("device", "none"),
            "offload_param_device": zero.get("offload_param", {}).get("device", "none"),
            "gradient_accumulation_steps": recipe.get("gradient_accumulation_steps") or 1,
            "zero3_init_flag": zero["stage"] == 3,
            "zero3_save_16bit_model": zero["stage"] == 3,
        }
    elif "fsdp_config" in options:
        document["distributed_type"] = "FSDP"
        document["fsdp_config"] = {
            "fsdp_version": options["fsdp_config"]["version"],
            **{f"fsdp_{key}": value for key, value in options["fsdp_config"].items() if key != "version"},
        }
    elif ranks > 1:
        document["distributed_type"] = "MULTI_CPU" if on_cpu else "MULTI_GPU"
    if wanted == "pipeline":
        document["num_processes"] = 1
    return document
