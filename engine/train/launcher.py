"""The command line and the environment that start the ranks of a run. Light: no torch."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from engine.journal import last
from engine.workspace import RunFolder

SHORTEST_SHUTDOWN_S = 60
SAVE_TIME_FACTOR = 3  # a save under memory pressure or on a busy disk takes longer than the last one did

# What an outer launcher (slurm, another torchrun, a container's entry point) may have left: torchrun sets these itself.
_LEFT_OVER = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK", "NODE_RANK",
    "MASTER_ADDR", "MASTER_PORT",
)  # fmt: skip
_LEFT_OVER_PREFIXES = ("TORCHELASTIC_", "ACCELERATE_", "FSDP_", "PARALLELISM_CONFIG_", "FTUI_RESUME", "FTUI_ATTEMPT")


def _newest(run: RunFolder, event: str, field: str) -> float:
    found = last(run.journal, {"event": event})
    value = found.get(field) if found else None
    return float(value) if isinstance(value, int | float) else 0.0


def shutdown_timeout(run: RunFolder) -> int:
    """Seconds that the ranks get between the stop signal and SIGKILL, from what was measured last.

    They end the step, make the evaluation that may be due at it, and save.
    """
    work = (
        2 * _newest(run, "log", "step_time_s")
        + 2 * _newest(run, "eval", "eval_runtime")
        + SAVE_TIME_FACTOR * _newest(run, "save", "seconds")
    )
    return max(SHORTEST_SHUTDOWN_S, round(SHORTEST_SHUTDOWN_S / 2 + work))


def _python_path(value: str) -> str:
    """PYTHONPATH without the entries whose own `engine` would shadow ours (PYTHONPATH=. is common)."""
    ours = Path(__file__).parents[2]
    entries = [entry for entry in value.split(os.pathsep) if entry]
    return os.pathsep.join(e for e in entries if Path(e).resolve() == ours or not (Path(e) / "engine").exists())


def _visible(gpus: Sequence[str]) -> dict[str, str]:
    """The variables that leave the ranks these GPUs alone. CUDA takes uuids; ROCm takes numbers, under both names."""
    if all(gpu.isdigit() or gpu.startswith(("GPU-", "MIG-")) for gpu in gpus):
        return {"CUDA_VISIBLE_DEVICES": ",".join(gpus)}
    from engine.hardware.gpus import Probe

    with Probe() as probe:
        ids = {gpu.uuid: gpu.visible_id for gpu in probe.list()}
    numbers = ",".join(ids.get(gpu, gpu) for gpu in gpus)
    return {"CUDA_VISIBLE_DEVICES": numbers, "HIP_VISIBLE_DEVICES": numbers}


def command(
    run: RunFolder,
    *,
    python: str | os.PathLike[str],
    nproc: int,
    attempt: int = 1,
    resume_from: Path | None = None,
    gpus: Sequence[str | int] = (),
    base: Mapping[str, str] | None = None,
) -> tuple[list[str], dict[str, str]]:
    """The argument list and the whole environment that start the ranks.

    Args:
        run: the run folder; resolved.json must be there.
        python: the interpreter of the environment that has torch.
        nproc: number of ranks on this machine.
        attempt: counts the starts of this run from 1.
        resume_from: a sealed checkpoint, or None for a fresh start.
        gpus: indices or UUIDs of the GPUs to use; none means that the ranks see no GPU.
        base: the environment to start from; this process's own by default.

    torchrun puts each rank into a session of its own: a signal to the launcher's process group does not reach
    the ranks. The launcher forwards TERM, HUP and INT and kills after the shutdown timeout; when it dies itself,
    each rank gets SIGTERM from the kernel, saves and ends.
    """
    arguments = [
        os.fspath(python), "-m", "engine.train.tokenize", os.fspath(run.path), "--",  # becomes what follows
        os.fspath(python),
        "-m", "torch.distributed.run",
        "--nnodes", "1",
        "--nproc-per-node", str(nproc),
        "--standalone",
        "--local-addr", "127.0.0.1",  # the host's own name often does not resolve inside a container
        "--max-restarts", "0",  # restarting is the supervisor's: it picks the checkpoint to resume from
        "--log-dir", os.devnull,  # the ranks open their logs themselves; otherwise a folder stays in /tmp
        "--shutdown-timeout", str(shutdown_timeout(run)),
        "-m", "engine.train", os.fspath(run.path),
    ]  # fmt: skip
    source = os.environ if base is None else base
    env = {
        key: value for key, value in source.items() if key not in _LEFT_OVER and not key.startswith(_LEFT_OVER_PREFIXES)
    }
    if path := env.pop("PYTHONPATH", ""):
        env["PYTHONPATH"] = _python_path(path)
    # Threads that wait by spinning take the cores from those that compute; on a busy machine a step took 4 times
    # as long.
    env.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    env.update(
        PYTHONSAFEPATH="1",
        HF_HUB_DISABLE_TELEMETRY="1",
        TOKENIZERS_PARALLELISM="false",
        FTUI_RUN=os.fspath(run.path),
        FTUI_ATTEMPT=str(attempt),
        FTUI_RESUME_FROM=os.fspath(resume_from) if resume_from else "",
        CUDA_DEVICE_ORDER="PCI_BUS_ID",  # so that an index means the same card as in NVML
        **_visible([str(gpu) for gpu in gpus]),
    )
    return arguments, env
