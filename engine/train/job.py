"""What this run is to train: resolved.json, read once, and the parts of it that this version refuses."""

from __future__ import annotations

import hashlib
import importlib.util
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from engine.errors import FtuiError, UsageError
from engine.recipe.limits import SUPPORTED
from engine.text import _
from engine.train.rank import Rank
from engine.workspace import RunFolder, locate


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
    def task(self) -> str:
        return str(self.get("task", "sft"))

    @property
    def recipe_sha256(self) -> str:
        """Hash of the recipe as it is trained; of its values, whatever the run is called."""
        return hashlib.sha256(orjson.dumps(self.recipe, option=orjson.OPT_SORT_KEYS)).hexdigest()


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
    for key, supported in SUPPORTED.items():
        value = job.recipe.get(key)
        if value is not None and value not in (*supported, "", [], {}, ["none"]):
            raise UsageError(
                _("this version cannot train with {key}: {value}").format(key=key, value=value),
                where=key,
                fix=_("use {supported}").format(
                    supported=", ".join(str(option) for option in supported if option not in (None, ""))
                ),
                kind="not_supported",
            )
    for key in ("push_to_hub", "save_only_model", "auto_find_batch_size"):
        if job.get(key):
            raise UsageError(
                _("this version cannot train with {key}").format(key=key),
                where=key,
                fix=_("remove {key} from the recipe").format(key=key),
                kind="not_supported",
            )
    _refuse_sharding(job)
    output = job.get("output_dir")
    if output and job.rank.resume_from is None and _occupied(Path(output)):
        raise FtuiError(
            _("output_dir is not empty, and nothing is overwritten"),
            where=str(output),
            fix=_("name another output_dir, or move what is there"),
            kind="output_exists",
        )


def _refuse_sharding(job: Job) -> None:
    sharding, ranks = job.get("sharding", "auto"), job.rank.world_size
    if sharding in ("none", "pipeline") and ranks > 1:
        raise UsageError(
            _("sharding: {sharding} trains with one rank, but {n} were started").format(sharding=sharding, n=ranks),
            where="sharding",
            fix=_("use sharding: ddp, or num_gpus: 1"),
            kind="conflict",
        )
    if sharding in ("zero2", "zero3") and importlib.util.find_spec("deepspeed") is None:
        raise UsageError(
            _("sharding: {sharding} needs DeepSpeed, which the training environment has not").format(sharding=sharding),
            where="sharding",
            fix=_("install it: `pip install 'finetune-tui[deepspeed]'`, or use sharding: fsdp2"),
            kind="missing_package",
            exit_code=2,
        )


def _occupied(path: Path) -> bool:
    try:
        return path.exists() and (not path.is_dir() or any(path.iterdir()))
    except OSError:
        return True
