"""Job files: a recipe as a Slurm batch script, a SkyPilot task or a compose file, with the workspace on a mount.

All three run the same small shell script: start the run, or resume it where it exists; a signal before the end of the
allocation becomes `ftui stop`, which saves; exit code 75 says that the run can be resumed.
"""

from __future__ import annotations

import math
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import UsageError
from engine.recipe import paths
from engine.text import _
from engine.yamledit import scalar

KINDS = ("slurm", "skypilot", "container")
STOP_S = 600  # seconds before the end of an allocation at which the run is told to save and stop
MARGIN = 1.2  # of the plan's longest time, for the time limit of a job
# SkyPilot's names of accelerators, by a pattern of ours.
ACCELERATORS = (
    (r"B300", "B300"), (r"B200", "B200"), (r"H200", "H200"), (r"H100", "H100"), (r"A100.*80", "A100-80GB"),
    (r"A100", "A100"), (r"L40S", "L40S"), (r"L4\b", "L4"), (r"A10G", "A10G"), (r"A10\b", "A10"), (r"T4", "T4"),
    (r"V100", "V100"), (r"4090", "RTX4090"), (r"MI300X", "MI300X"),
)  # fmt: skip

SCRIPT = """\
#!/bin/sh
# Starts the run, or goes on with it: safe to run again and again.
set -u
cd "$(dirname "$0")"
export FTUI_HOME={home}
NAME={name}

begin() {{
  if [ -e "$FTUI_HOME/runs/$NAME/state.json" ]; then
    ftui resume "$NAME" --follow
  else
    ftui run recipe.yaml --name "$NAME" --follow
  fi
}}

begin &
JOB=$!
trap 'ftui stop "$NAME"' TERM INT USR1   # saves first
wait "$JOB"; CODE=$?
while kill -0 "$JOB" 2>/dev/null; do wait "$JOB"; CODE=$?; done   # a trapped signal ends the first wait early
exit "$CODE"   # 0 done, 75 stopped with everything saved
"""


@dataclass(frozen=True)
class Job:
    """What a job file needs to know of a run.

    Attributes:
        name: the run's name there.
        recipe: our keys with absolute paths.
        gpus: GPUs of one machine, 0 for the CPU.
        card: the GPU's name, where known.
        hours: the plan's longest time, where there is a plan.
        home: the workspace on the machine that runs it.
    """

    name: str
    recipe: dict[str, Any]
    gpus: int
    card: str | None
    hours: float | None
    home: str

    @property
    def outside(self) -> list[str]:
        """Paths that must be there on the other machine."""
        named = {key: self.recipe.get(key) for key in paths.PATH_KEYS if key != "output_dir"}
        return [value for key, value in named.items() if isinstance(value, str) and paths.is_path(key, value)]


def run_name(stem: str) -> str:
    """The name of a file as that of a run: a script's `--name` must take it."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-._")[:80] or "run"


def _remark(text: str) -> str:
    """Text in a comment: what follows a line end would be run, or read."""
    return re.sub(r"[\x00-\x1f\x7f\x85\u2028\u2029]+", " ", text)


def write(job: Job, kind: str, *, checkout: Path) -> dict[str, str]:
    """The files of a job by name.

    Args:
        job: the run.
        kind: one of `KINDS`.
        checkout: this program's source, which SkyPilot copies to its machine.

    Raises:
        UsageError: the recipe needs several machines.
    """
    if int(job.recipe.get("num_machines") or 1) > 1:
        raise UsageError(
            _("a job of several machines is not written yet"),
            where="num_machines",
            fix=_("export the recipe with num_machines=1"),
            kind="not_exportable",
        )
    files = {
        "recipe.yaml": _recipe(job),
        "run.sh": SCRIPT.format(home=shlex.quote(job.home), name=shlex.quote(job.name)),
    }
    writer = {"slurm": _slurm, "skypilot": _skypilot, "container": _container}[kind]
    name, text = writer(job, checkout)
    return {**files, name: text}


def _recipe(job: Job) -> str:
    lines = [f"{key}: {scalar(value)}" for key, value in job.recipe.items()]
    head = _("# The recipe of {run}; these paths must be there: {paths}")
    return "\n".join([_remark(head.format(run=job.name, paths=", ".join(job.outside) or "-")), *lines]) + "\n"


def _slurm(job: Job, _checkout: Path) -> tuple[str, str]:
    word = re.sub(r"[^\w.-]", "-", job.name)
    lines = [
        "#!/bin/bash",
        f"#SBATCH --job-name={word}",
        "#SBATCH --nodes=1",
        "#SBATCH --ntasks-per-node=1",
        *([f"#SBATCH --gpus-per-node={job.gpus}"] if job.gpus else []),
        f"#SBATCH --cpus-per-task={max(4, 8 * job.gpus)}",
        *([f"#SBATCH --time={_clock(job.hours * MARGIN)}"] if job.hours else []),
        "#SBATCH --output=%x-%j.log",
        "#SBATCH --open-mode=append",
        f"#SBATCH --signal=B:TERM@{STOP_S}",
        "#SBATCH --requeue",
        "",
        _remark(
            _("# ftui must be on the PATH of the node, and {home} on a file system that all nodes share.").format(
                home=job.home
            )
        ),
        'sh "${SLURM_SUBMIT_DIR:-.}/run.sh" &',
        "JOB=$!",
        "trap 'kill -TERM \"$JOB\"' TERM",
        'wait "$JOB"; CODE=$?',
        'while kill -0 "$JOB" 2>/dev/null; do wait "$JOB"; CODE=$?; done',
        'if [ "$CODE" = 75 ]; then scontrol requeue "$SLURM_JOB_ID"; fi   # stopped with everything saved: go on later',
        'exit "$CODE"',
    ]
    return "job.sbatch", "\n".join(lines) + "\n"


def _clock(hours: float) -> str:
    minutes = math.ceil(hours * 60) + STOP_S // 60
    days, rest = divmod(minutes, 24 * 60)
    return f"{days}-{rest // 60:02d}:{rest % 60:02d}:00"


def accelerator(card: str | None) -> str | None:
    """SkyPilot's name of a GPU."""
    return next((name for pattern, name in ACCELERATORS if card and re.search(pattern, card, re.IGNORECASE)), None)


def _skypilot(job: Job, checkout: Path) -> tuple[str, str]:
    import yaml

    resources: dict[str, Any] = {"disk_size": 512, "job_recovery": {"recover_on_exit_codes": [75]}}
    if job.gpus:
        name = accelerator(job.card)
        if name is None:
            raise UsageError(
                _("SkyPilot's name of the GPU {card} is not known").format(card=job.card or "?"),
                where="--gpu",
                fix=_("say it: --gpu H100"),
                kind="unknown_gpu",
            )
        resources["accelerators"] = f"{name}:{job.gpus}"
    task = {
        "name": re.sub(r"[^a-z0-9-]", "-", job.name.lower()),
        "num_nodes": 1,
        "resources": resources,
        "workdir": str(checkout),
        "file_mounts": {"~/job": "."},
        "setup": "./install.sh",
        "run": "export PATH=~/.local/bin:$PATH\nsh ~/job/run.sh\n",
    }
    head = [
        _("# sky jobs launch task.yaml   (a managed job comes back by itself after a preemption, and goes on)"),
        _remark(
            _(
                "# {home} must outlive the machine: a volume, or a bucket under file_mounts with mode MOUNT_CACHED."
            ).format(home=job.home)
        ),
    ]
    return "task.yaml", "\n".join(head) + "\n" + yaml.safe_dump(task, sort_keys=False)


def _container(job: Job, checkout: Path) -> tuple[str, str]:
    import yaml

    mounts = [f"{job.home}:{job.home}", ".:/job:ro"]
    mounts += [f"{path}:{path}:ro" for path in job.outside if "*" not in path]
    service: dict[str, Any] = {
        "image": "ftui",
        "build": {"context": str(checkout), "dockerfile": "Containerfile"},
        "command": ["sh", "/job/run.sh"],
        "volumes": mounts,
        "shm_size": "16gb",
        "init": True,
        "stop_signal": "SIGTERM",
        "stop_grace_period": f"{STOP_S}s",
    }
    if job.gpus:
        device = {"driver": "nvidia", "count": job.gpus, "capabilities": ["gpu"]}
        service["deploy"] = {"resources": {"reservations": {"devices": [device]}}}
    name = re.sub(r"[^a-z0-9_-]", "-", job.name.lower())
    head = _("# docker compose up   (again after a stop: it goes on from the newest checkpoint)")
    return "compose.yaml", head + "\n" + yaml.safe_dump({"services": {name: service}}, sort_keys=False)
