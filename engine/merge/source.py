"""What the operator means by RUN_OR_ADAPTER: an adapter's folder, or a run's result."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.checkpoint import ledger, manifest, pruning
from engine.errors import UsageError
from engine.files import read_json, user_path
from engine.merge.adapter import CONFIG
from engine.text import _
from engine.workspace import NAME, RunFolder, Workspace


@dataclass
class Source:
    """An adapter's folder, and the run that it comes from where that is known."""

    folder: Path
    run: RunFolder | None = None
    step: int | None = None
    metrics: dict[str, Any] = field(default_factory=dict)
    home: Path | None = None  # the workspace

    @property
    def quantized(self) -> bool:
        """Whether the run is known to have trained on a quantized base."""
        recipe = self._recipe()
        return bool(recipe.get("load_in_4bit") or recipe.get("load_in_8bit") or recipe.get("method") == "qlora")

    def _recipe(self) -> dict[str, Any]:
        recipe = self.run.read_resolved().get("recipe") if self.run else None
        return recipe if isinstance(recipe, dict) else {}

    def quantization(self) -> dict[str, Any] | None:
        """How the run quantized its base to 4 bits; None where it is not known to have done so."""
        recipe = self._recipe()
        if not self.quantized or recipe.get("load_in_8bit"):
            return None
        loaded = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}.get(str(recipe.get("dtype")))
        return {
            "type": recipe.get("bnb_4bit_quant_type") or "nf4",
            "nested": bool(recipe.get("use_bnb_nested_quant", True)),
            "dtype": loaded,  # None: that of the base's files
        }

    def base_names(self) -> list[str]:
        """What the adapter and its run call the base model, best first."""
        config = read_json(self.folder / CONFIG)
        names = [config.get("base_model_name_or_path")] if isinstance(config, dict) else []
        if self.run is not None:
            environment = read_json(self.run.environment)
            names.append(environment.get("model") if isinstance(environment, dict) else None)
            names.append(self._recipe().get("model_name_or_path"))
        return list(dict.fromkeys(name for name in names if isinstance(name, str) and name))


def find(workspace: Workspace, name: str, step: int | None = None) -> Source:
    """The adapter that `name` stands for.

    Args:
        workspace: where runs are looked for.
        name: a folder with adapter_config.json, a run's folder or name, or the beginning of one.
        step: the checkpoint of a run; None means its result, else its best checkpoint, else the newest.

    Raises:
        UsageError: there is nothing of that name, or no adapter in it.
    """
    found = _find(workspace, name, step)
    found.home = workspace.root
    return found


def _find(workspace: Workspace, name: str, step: int | None) -> Source:
    if NAME.match(name) and RunFolder(workspace.runs_dir / name).is_run():
        return of_run(RunFolder(workspace.runs_dir / name), step)
    path = user_path(name).absolute()  # the child reads by these paths
    if path.is_dir():
        if RunFolder(path).is_run():
            return of_run(RunFolder(path.resolve()), step)
        if step is not None:
            raise UsageError(_("--step is for runs, and {path} is not one").format(path=path), fix=_("leave it out"))
        if not (path / CONFIG).exists():
            raise _no_adapter(path)
        return _of_folder(path)
    if path.exists() or "/" in name:
        raise UsageError(
            _("{path} is not a folder").format(path=path),
            where=str(path),
            fix=_("name a run, or the folder that holds adapter_config.json"),
            kind="not_a_folder",
        )
    return of_run(workspace.find(name), step)


def _of_folder(path: Path) -> Source:
    """An adapter given by its folder; one that lies inside a run's folder belongs to that run."""
    real = path.resolve()
    for above, depth in ((real.parent, 1), (real.parent.parent, 2)):
        if RunFolder(above).is_run() and (depth == 1 or real.parent.name == "checkpoints"):
            content = manifest.read(real)
            step = content.step if content else None
            return Source(path, RunFolder(above), step, content.metrics if content else {})
    return Source(path)


def of_run(run: RunFolder, step: int | None = None) -> Source:
    """A run's adapter: its result, else its best checkpoint, else the newest; or that of a step.

    Raises:
        UsageError: there is none.
    """
    entries = [entry for entry in ledger.list(run.checkpoints) if entry.state == "complete"]
    if step is not None:
        chosen = next((entry for entry in reversed(entries) if entry.step == step), None)
        if chosen is None:
            raise UsageError(
                _("there is no whole checkpoint of step {step}").format(step=step),
                where=str(run.checkpoints),
                fix=_("`ftui ckpt list {run}` shows them").format(run=run.name),
                kind="no_such_checkpoint",
            )
    elif run.final.is_dir():
        if not (run.final / CONFIG).exists():
            raise _no_adapter(run.final)
        return Source(run.final, run, run.read_state().get("step"), entries[-1].metrics if entries else {})
    else:
        best = pruning.best_of(entries)
        chosen = next((entry for entry in entries if entry.path.name == best), entries[-1] if entries else None)
        if chosen is None:
            raise UsageError(
                _("{run} has neither a result nor a whole checkpoint").format(run=run.name),
                where=str(run.path),
                fix=_("`ftui ckpt verify {run}` says what there is").format(run=run.name),
                kind="no_such_checkpoint",
            )
    if not (chosen.path / CONFIG).exists():
        raise _no_adapter(chosen.path)
    return Source(chosen.path, run, chosen.step, chosen.metrics)


def _no_adapter(path: Path) -> UsageError:
    whole = any(path.glob("*.safetensors")) or any(path.glob("pytorch_model*.bin"))
    if not whole and any(path.glob("pytorch_model_fsdp_*")):
        what = _("{path} holds only the shards of its ranks, no adapter and no whole model")
        fix = _("take the run's result, or resume from this checkpoint: the result is written at the end")
    elif (path / "config.json").exists():
        what, fix = _("{path} holds a whole model: there is nothing to merge"), _("use it as it is")
    else:
        what, fix = _("{path} holds no adapter_config.json"), _("name a run, or the folder of an adapter")
    return UsageError(what.format(path=path), where=str(path), fix=fix, kind="no_adapter")
