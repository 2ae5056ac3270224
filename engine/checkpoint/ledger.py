"""Which checkpoints there are, in what state, and which one to resume from."""

from __future__ import annotations

import builtins
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from engine.checkpoint import manifest
from engine.text import _

NAME = re.compile(r"checkpoint-([0-9]{1,18})\Z")
STAGING = re.compile(r"\.staging-([0-9]{1,18})\Z")
State = Literal["complete", "broken", "staging", "foreign"]


@dataclass(frozen=True)
class Entry:
    """A checkpoint folder as found. `problem` says, for people, why it cannot be resumed from, or not exactly."""

    step: int
    path: Path
    state: State
    sealed: bool = False
    resumable: bool = False
    exact: bool = False
    bytes: int = 0
    attempt: int = 0
    world_size: int | None = None
    metrics: dict[str, Any] = field(default_factory=dict)
    problem: str | None = None
    tier: str = "full"


def _lacking(content: manifest.Manifest) -> tuple[builtins.list[str], builtins.list[str]]:
    """What a continued run needs and the checkpoint lacks; and which random states are not there.

    Without optimizer or scheduler the trainer resumes silently with fresh ones: they are required. Without the random
    states of each rank it goes on with other numbers: that is not the same run, and said so.
    """
    names = content.files.keys()

    def any_of(*options: str) -> bool:
        return any(name == option or name.startswith(f"{option}/") for name in names for option in options)

    sharded = any(name.startswith("global_step") for name in names)  # ZeRO keeps optimizer and scheduler there
    lacking = []
    if not (any_of("optimizer.pt", "optimizer.bin", "optimizer_0") or sharded):
        lacking.append("optimizer.pt")
    if not (any_of("scheduler.pt") or sharded):
        lacking.append("scheduler.pt")
    if not any_of("trainer_state.json"):
        lacking.append("trainer_state.json")
    ranks = content.world_size
    random = ["rng_state.pth"] if ranks <= 1 else [f"rng_state_{rank}.pth" for rank in range(ranks)]
    return lacking, [name for name in random if name not in names]


def inspect(folder: Path, *, check_hash: bool = False) -> Entry | None:
    """The state of one folder; None when its name is not that of a checkpoint."""
    if match := STAGING.match(folder.name):
        return Entry(int(match[1]), folder, "staging", problem=_("its writing never ended"))
    match = NAME.match(folder.name)
    if match is None:
        return None
    step = int(match[1])
    content = manifest.read(folder)
    if content is None:
        if (folder / manifest.NAME).exists():
            return Entry(step, folder, "broken", problem=_("its MANIFEST.json cannot be read"))
        return Entry(step, folder, "foreign", problem=_("it has no MANIFEST.json"))
    found = {
        "sealed": True,
        "bytes": content.bytes,
        "attempt": content.attempt,
        "world_size": content.world_size,
        "metrics": content.metrics,
        "tier": content.tier,
    }
    problem: str | None
    if content.step != step:
        problem = _("its MANIFEST.json is that of step {step}").format(step=content.step)
        return Entry(step, folder, "broken", problem=problem, **found)  # type: ignore[arg-type]
    if bad := manifest.damage(folder, content, check_hash=check_hash):
        problem = _("missing or damaged: {files}").format(files=", ".join(bad[:5]))
        return Entry(step, folder, "broken", problem=problem, **found)  # type: ignore[arg-type]
    if content.tier == manifest.WEIGHTS:
        return Entry(step, folder, "complete", problem=_("only its weights were kept"), **found)  # type: ignore[arg-type]
    lacking, random = _lacking(content)
    problem = _("it lacks {files}").format(files=", ".join((lacking + random)[:5])) if lacking or random else None
    return Entry(
        step,
        folder,
        "complete",
        resumable=not lacking,
        exact=not problem,
        problem=problem,
        **found,  # type: ignore[arg-type]
    )


def list(checkpoints: Path, *, check_hash: bool = False) -> builtins.list[Entry]:
    """All checkpoints, oldest first: in the order in which they were reached.

    After a return to an earlier step the newer attempt's checkpoints come after all those of the attempt before,
    though their steps are lower: that is the run's line now.
    """
    try:
        folders = [path for path in checkpoints.iterdir() if path.is_dir()]
    except OSError:
        return []
    entries = (inspect(folder, check_hash=check_hash) for folder in folders)
    return sorted((e for e in entries if e is not None), key=lambda e: (e.attempt, e.step, e.path.name))


def newest(checkpoints: Path, step: int | None = None, *, check_hash: bool = False) -> Entry | None:
    """The newest checkpoint to resume from, or the one at `step`, by names and sizes; None when none is whole.

    For what is shown. What a run goes on from is chosen by content: `engine.checkpoint.choice`.
    """
    second = None
    for entry in reversed(list(checkpoints)):
        if not entry.resumable or (step is not None and entry.step != step):
            continue
        if check_hash:
            checked = inspect(entry.path, check_hash=True)
            if checked is None or not checked.resumable:
                continue
        if entry.exact:
            return entry
        second = second or entry
    return second


def problems(checkpoints: Path, *, check_hash: bool = False) -> builtins.list[Entry]:
    """The checkpoints that cannot be resumed from, each with its `problem`."""
    return [entry for entry in list(checkpoints, check_hash=check_hash) if not entry.resumable]
