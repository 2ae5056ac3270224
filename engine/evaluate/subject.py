"""What is evaluated: a run's result or checkpoint, an adapter's folder, or a whole model; and its base."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.checkpoint import ledger, manifest
from engine.errors import UsageError
from engine.files import read_json, user_path
from engine.recipe import hub
from engine.text import _
from engine.workspace import NAME, RunFolder, Workspace

ADAPTER = "adapter_config.json"
PLAIN = {"model_name_or_path": None, "dtype": "auto", "device": "auto", "method": "lora", "bf16": False}


@dataclass
class Subject:
    """The tuned model (a folder, an adapter or not), the folder of its base, and the run that it comes from."""

    folder: Path
    base: Path
    run: RunFolder | None = None
    step: int | None = None
    label: str = ""
    recipe: dict[str, Any] = field(default_factory=dict)

    @property
    def is_adapter(self) -> bool:
        return (self.folder / ADAPTER).exists()

    @property
    def tokenizer(self) -> Path:
        """The tokenizer that both models are asked through: the tuned one's, with its chat template."""
        places = (self.folder, self.base)
        return next((place for place in places if (place / "tokenizer_config.json").exists()), self.base)

    def roles(self) -> dict[str, dict[str, Any]]:
        """The models as the child takes them."""
        base: dict[str, Any] = {"path": str(self.base), "adapter": None}
        if self.is_adapter:
            return {"base": base, "tuned": {"path": str(self.base), "adapter": str(self.folder)}}
        return {"base": base, "tuned": {"path": str(self.folder), "adapter": None}}


def find(
    workspace: Workspace, name: str, *, step: int | None = None, base: str | None = None, run: str | None = None
) -> Subject:
    """What `name` stands for.

    Args:
        workspace: where runs are looked for.
        name: a run, the folder of an adapter, or that of a model (merged or trained in full).
        step: a run's checkpoint; None means its result, else the newest.
        base: the base's folder or name; None asks the adapter, the merged model's provenance and the run.
        run: of a folder: the run whose held-out rows and recipe are meant; None asks the folder.

    Raises:
        UsageError: there is nothing of that name, or its base is not on this machine.
    """
    if NAME.match(name) and RunFolder(workspace.runs_dir / name).is_run():
        return _of_run(workspace, RunFolder(workspace.runs_dir / name), step, base)
    path = user_path(name).absolute()
    if not path.is_dir():
        return _of_run(workspace, workspace.find(name), step, base)
    if RunFolder(path).is_run():
        return _of_run(workspace, RunFolder(path.resolve()), step, base)
    if step is not None:
        raise UsageError(_("--step is for runs, and {path} is not one").format(path=path), fix=_("leave it out"))
    if not (path / ADAPTER).exists() and not (path / "config.json").exists():
        raise UsageError(
            _("{path} holds neither an adapter nor a model").format(path=path),
            where=str(path),
            fix=_("name a run, or a folder with adapter_config.json or config.json"),
            kind="no_model",
        )
    content = manifest.read(path)
    owner = workspace.find(run) if run else _owner(workspace, path)
    label = path.name if content is None else f"step-{content.step}"
    return _made(workspace, path, owner, content.step if content else None, label, base)


def _of_run(workspace: Workspace, run: RunFolder, step: int | None, base: str | None) -> Subject:
    entries = [entry for entry in ledger.list(run.checkpoints) if entry.state == "complete"]
    if step is None and run.final.is_dir():
        reached = run.read_state().get("step")
        reached = reached if isinstance(reached, int) else entries[-1].step if entries else 0
        return _made(workspace, run.final, run, reached, f"step-{reached}", base)
    chosen = next((e for e in reversed(entries) if step is None or e.step == step), None)
    if chosen is None:
        what = _("{run} has neither a result nor a whole checkpoint").format(run=run.name)
        if step is not None:
            what = _("there is no whole checkpoint of step {step}").format(step=step)
        raise UsageError(
            what,
            where=str(run.checkpoints),
            fix=_("`ftui ckpt list {run}` shows them").format(run=run.name),
            kind="no_such_checkpoint",
        )
    return _made(workspace, chosen.path, run, chosen.step, f"step-{chosen.step}", base)


def _made(
    workspace: Workspace, folder: Path, run: RunFolder | None, step: int | None, label: str, base: str | None
) -> Subject:
    recipe = dict(run.read_resolved().get("recipe") or {}) if run is not None else dict(PLAIN)
    subject = Subject(folder, folder, run, step, label, recipe)
    names = [base] if base else _base_names(folder, run, recipe)
    if not names:
        raise UsageError(
            _("nothing here names the base model"),
            where=str(folder),
            fix=_("name it with --base DIR"),
            kind="base_not_found",
        )
    for name in names:
        if (place := _place(workspace, name, folder)) is not None:
            subject.base = place
            break
    else:
        raise UsageError(
            _("the base model {name} is not on this machine").format(name=names[0]),
            where=str(folder),
            fix=_("download it, or name its folder with --base DIR"),
            kind="base_not_found",
        )
    if not subject.is_adapter:
        # Both whole models are loaded as they are: a quantized base against a full result would compare two things.
        subject.recipe.update(load_in_4bit=False, load_in_8bit=False, method="full", kbit_prepare=False)
    return subject


def _owner(workspace: Workspace, folder: Path) -> RunFolder | None:
    """The run that a folder lies in, or that its provenance names."""
    real = folder.resolve()
    for above in (real.parent, real.parent.parent):
        if RunFolder(above).is_run():
            return RunFolder(above)
    provenance = read_json(real / "provenance.json")
    told = provenance.get("run") if isinstance(provenance, dict) else None
    name = told.get("name") if isinstance(told, dict) else None
    if isinstance(name, str) and NAME.match(name) and RunFolder(workspace.runs_dir / name).is_run():
        return RunFolder(workspace.runs_dir / name)
    return None


def _base_names(folder: Path, run: RunFolder | None, recipe: dict[str, Any]) -> list[str]:
    adapter, provenance = read_json(folder / ADAPTER), read_json(folder / "provenance.json")
    names: list[Any] = [adapter.get("base_model_name_or_path")] if isinstance(adapter, dict) else []
    if isinstance(provenance, dict) and isinstance(provenance.get("base"), dict):
        names += [provenance["base"].get("path"), provenance["base"].get("name")]
    if run is not None:
        environment = read_json(run.environment)
        names += [environment.get("model") if isinstance(environment, dict) else None, recipe.get("model_name_or_path")]
    return list(dict.fromkeys(name for name in names if isinstance(name, str) and name))


def _place(workspace: Workspace, name: str, folder: Path) -> Path | None:
    if name.startswith("builtin:"):
        made = (workspace.cache_dir / "builtin").glob(f"{name.removeprefix('builtin:')}-*/config.json")
        return max((config.parent for config in made), key=lambda model: model.stat().st_mtime, default=None)
    for place in (user_path(name), folder.parent / name):
        if (place / "config.json").is_file():
            return place.absolute()
    return next((snapshot for snapshot in hub.snapshots(name) if (snapshot / "config.json").is_file()), None)
