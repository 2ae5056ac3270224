"""The small model of a recipe, and the values that its rehearsal replaces."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from engine.errors import FtuiError, UsageError
from engine.files import read_json, write_json
from engine.process.daemon import own_environment
from engine.recipe import hub, paths
from engine.recipe.keys import table
from engine.settings import training_python
from engine.smoke.shrink import shrink
from engine.text import _
from engine.workspace import Workspace

if TYPE_CHECKING:
    from engine.recipe.model import Loaded

STEPS = 20
BUILD_S = 300
TOKENIZER = ("tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab*", "merges.txt", "*.jinja",
             "chat_template*", "spiece.model", "*.tiktoken", "generation_config.json")  # fmt: skip
# What only makes sense at the real size or length of the run.
DROPPED = ("resume_from_checkpoint", "gates", "backup", "output_dir", "attn_implementation")


def source(loaded: Loaded) -> Path | None:
    """The folder of the recipe's model; None where it is built in, and small anyway.

    Raises:
        UsageError: it is not on this machine.
    """
    name = str(loaded.recipe.get("model_name_or_path") or "")
    if name.startswith("builtin:"):
        return None
    folder = Path(name)
    if paths.source("model_name_or_path", name) == "hub" and not folder.is_dir():
        revision = loaded.recipe.get("model_revision")
        folder = next(hub.snapshots(name, None if revision in (None, "main") else str(revision)), folder)
    if not (folder / "config.json").is_file():
        raise UsageError(
            _("{name} is not here: a rehearsal needs its configuration and tokenizer").format(name=name),
            where="model_name_or_path",
            fix=_("`ftui model get {name}` fetches it").format(name=name),
            kind="missing_model",
        )
    return folder


def small_model(workspace: Workspace, folder: Path) -> Path:
    """A small random model of the same architecture with the tokenizer and template of `folder`, made once.

    Raises:
        FtuiError: the architecture cannot be made small.
    """
    config = read_json(folder / "config.json")
    if not isinstance(config, dict):
        raise UsageError(_("{path} is not JSON").format(path=folder / "config.json"), where=str(folder))
    small = shrink(config)
    files = sorted({path for pattern in TOKENIZER for path in folder.glob(pattern) if path.is_file()})
    digest = hashlib.sha256(json.dumps(small, sort_keys=True).encode())
    for path in files:
        digest.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    target = workspace.cache_dir / "smoke" / f"{folder.name}-{digest.hexdigest()[:12]}"
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=".new-", dir=target.parent))
    try:
        for path in files:
            shutil.copyfile(path, staging / path.name)
        write_json(staging / "config.json", small)
        _build(staging, str(config.get("model_type")))
        os.replace(staging, target)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    return target


def _build(folder: Path, kind: str) -> None:
    command = [training_python(), "-m", "engine.smoke", str(folder)]
    try:
        done = subprocess.run(
            command, env=own_environment(), capture_output=True, text=True, timeout=BUILD_S, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise FtuiError(_("the small model was not made: {reason}").format(reason=error), where=command[0]) from error
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["?"])[-1][:300]
        raise FtuiError(
            _("no small model of the architecture {kind} can be made: {reason}").format(kind=kind, reason=reason),
            where=str(folder),
            fix=_("rehearse with a small model of that family: ftui run RECIPE model_name_or_path=… max_steps=20"),
            kind="cannot_shrink",
        )


def overrides(loaded: Loaded, model: Path | None, steps: int) -> list[str]:
    """The values that a rehearsal replaces, as `key=value` texts.

    It saves and evaluates half-way and at the end; everything about data, method, sharding and batch is the recipe's.
    """
    half = max(1, steps // 2)
    values: dict[str, object] = {
        "max_steps": steps,
        "logging_steps": 1,
        "save_strategy": "steps",
        "save_steps": half,
        "report_to": "none",
    }
    if str(loaded.recipe.given.get("eval_strategy", "steps")) not in ("no", "False"):
        values.update(eval_strategy="steps", eval_steps=half)
    if model is not None:
        values["model_name_or_path"] = str(model)
        if loaded.recipe.given.get("model_revision") is not None:
            values["model_revision"] = "main"
    known = table(loaded.recipe.task)
    values.update({key: "null" for key in DROPPED if key in loaded.recipe.given and "null" in known[key].types})
    return [f"{key}={value}" for key, value in values.items()]
