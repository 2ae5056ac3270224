"""What this run is to train: resolved.json, read once, and the parts of it that this version refuses."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.errors import FtuiError, UsageError
from engine.text import _
from engine.train.rank import Rank
from engine.workspace import RunFolder, locate

METHODS = ("lora", "qlora", "full")


@dataclass(frozen=True)
class Job:
    """The recipe of a run, as the ranks see it."""

    rank: Rank
    recipe: dict[str, Any]
    origin: dict[str, str] = field(default_factory=dict)
    skip_bad_rows: bool = False  # started with --force: rows that cannot be trained on are left out

    @property
    def run(self) -> RunFolder:
        return self.rank.run

    @property
    def cache(self) -> Path:
        """The workspace's cache: that of the workspace which holds the run folder, else the user's."""
        if self.run.path.parent.name == "runs":
            return self.run.path.parent.parent / "cache"
        return locate().cache_dir

    def get(self, key: str, default: Any = None) -> Any:
        """A recipe value; `default` when it is absent or null."""
        value = self.recipe.get(key)
        return default if value is None else value

    def chosen(self, key: str) -> bool:
        """Whether the user set this key."""
        return self.origin.get(key) in ("recipe", "override")

    @property
    def method(self) -> str:
        return str(self.get("method", "lora"))

    @property
    def recipe_sha256(self) -> str:
        """Hash of the recipe as it is trained."""
        return hashlib.sha256(self.run.resolved.read_bytes()).hexdigest()


def load(rank: Rank) -> Job:
    """The job of a run folder.

    Raises:
        UsageError: resolved.json is missing, damaged, or asks for something that this version cannot train.
    """
    document = rank.run.read_resolved()
    recipe = document.get("recipe")
    if not isinstance(recipe, dict):
        raise UsageError(
            _("the run folder has no readable resolved.json"),
            where=str(rank.run.resolved),
            fix=_("start the run again with `ftui run`"),
            kind="bad_run_folder",
        )
    origin = document.get("origin")
    job = Job(rank, recipe, origin if isinstance(origin, dict) else {}, document.get("skip_bad_rows") is True)
    _refuse(job)
    return job


def _refuse(job: Job) -> None:
    """Raise for what this version does not train, before anything is loaded."""
    sharding = job.get("sharding", "auto")
    refused = [
        ("task", job.get("task", "sft"), ("sft",)),
        ("method", job.method, METHODS),
        ("sharding", sharding, ("auto", "none", "ddp")),
        ("backend", job.get("backend", "trl"), ("trl",)),
        ("num_machines", job.get("num_machines", 1), (1,)),
        ("fp8", job.get("fp8", False), (False,)),
        ("cpu_offload", job.get("cpu_offload", False), (False,)),
    ]
    for key, value, supported in refused:
        if value not in supported:
            raise UsageError(
                _("this version cannot train with {key}: {value}").format(key=key, value=value),
                where=key,
                fix=_("use {supported}").format(supported=", ".join(str(option) for option in supported)),
                kind="not_supported",
            )
    for key in ("deepspeed", "fsdp", "parallelism_config", "push_to_hub", "save_only_model", "auto_find_batch_size"):
        if job.get(key):
            raise UsageError(
                _("this version cannot train with {key}").format(key=key),
                where=key,
                fix=_("remove {key} from the recipe").format(key=key),
                kind="not_supported",
            )
    if sharding == "none" and job.rank.world_size > 1:
        raise UsageError(
            _("sharding: none trains on one GPU, but {n} ranks were started").format(n=job.rank.world_size),
            where="sharding",
            fix=_("use sharding: ddp, or num_gpus: 1"),
            kind="conflict",
        )
    output = job.get("output_dir")
    if output and job.rank.resume_from is None and _occupied(Path(output)):
        raise FtuiError(
            _("output_dir is not empty, and nothing is overwritten"),
            where=str(output),
            fix=_("name another output_dir, or move what is there"),
            kind="output_exists",
        )


def _occupied(path: Path) -> bool:
    try:
        return path.exists() and (not path.is_dir() or any(path.iterdir()))
    except OSError:
        return True
