"""What is to be served: a base with adapters, or a whole model, and the names that requests use."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import UsageError
from engine.files import read_json, user_path
from engine.merge import base as bases
from engine.merge import source as sources
from engine.merge.report import Report
from engine.text import _
from engine.workspace import NAME, RunFolder, Workspace

ADAPTER = "adapter_config.json"


@dataclass(frozen=True)
class Adapter:
    """An adapter on the base: the name that requests give, its folder, its largest rank."""

    name: str
    path: Path
    rank: int


@dataclass(frozen=True)
class Target:
    """What a server serves.

    Attributes:
        name: of the server, and of the model in requests where there is no adapter.
        model: the folder of the base or of the whole model.
        served: the name in requests of `model` itself.
        adapters: on top of it.
        run: the run it came from.
        step: of the run, where known.
    """

    name: str
    model: Path
    served: str
    adapters: tuple[Adapter, ...] = ()
    run: RunFolder | None = None
    step: int | None = None

    @property
    def tuned(self) -> str:
        """The name in requests of what was trained."""
        return self.adapters[0].name if self.adapters else self.served

    @property
    def config(self) -> dict[str, Any]:
        """The model's config.json."""
        config = read_json(self.model / "config.json")
        return config if isinstance(config, dict) else {}


def find(workspace: Workspace, name: str, *, base: str | None = None, step: int | None = None) -> Target:
    """What RUN_OR_DIR stands for.

    Args:
        workspace: where runs are looked for.
        name: a run, an adapter's folder, or the folder of a whole model.
        base: the base model of the adapter, where it is elsewhere than the adapter says.
        step: a run's checkpoint; its result where None.

    Raises:
        UsageError: there is no such thing, or its base is not here.
    """
    run = _run(workspace, name)
    if run is None:
        path = user_path(name).absolute()
        if path.is_dir() and not (path / ADAPTER).exists():
            return _whole(path, None)
        source = sources.find(workspace, name, step)
    else:
        if step is None and run.final.is_dir() and not (run.final / ADAPTER).exists():
            return _whole(run.final, run)
        source = sources.of_run(run, step)
    report = Report()
    config = read_json(source.folder / ADAPTER)
    revision = config.get("revision") if isinstance(config, dict) else None
    place = bases.locate(
        base, source.folder, source.base_names(), revision if isinstance(revision, str) else None, report
    )
    if place is None:
        problem = report.findings[0]
        raise UsageError(problem.detail, where=str(source.folder), fix=problem.fix, kind=problem.kind)
    label = slug(source.run.name if source.run is not None else source.folder.name)
    adapter = Adapter(label, source.folder, rank(source.folder))
    return Target(label, place[0], _other_than("base", label), (adapter,), source.run, source.step)


def _run(workspace: Workspace, name: str) -> RunFolder | None:
    """The run of that name or folder, or None where the name is that of another folder."""
    if NAME.match(name) and RunFolder(workspace.runs_dir / name).is_run():
        return RunFolder(workspace.runs_dir / name)
    path = user_path(name).absolute()
    if path.is_dir():
        return RunFolder(path.resolve()) if RunFolder(path).is_run() else None
    return workspace.find(name) if "/" not in name else None


def _whole(path: Path, run: RunFolder | None) -> Target:
    if not (path / "config.json").is_file():
        raise UsageError(
            _("{path} is no model: it has no config.json").format(path=path),
            where=str(path),
            fix=_("name a run, an adapter's folder, or a folder with config.json, tokenizer and weights"),
            kind="not_a_model",
        )
    if not any(path.glob("*.safetensors")) and not any(path.glob("*.bin")):
        raise UsageError(
            _("{path} has no weights").format(path=path),
            where=str(path),
            fix=_("copy the model again; `ftui merge` makes such a folder from an adapter"),
            kind="model_incomplete",
        )
    label = slug(run.name if run is not None else path.name)
    return Target(label, path, label, (), run)


def slug(name: str) -> str:
    """A name that is safe in a path, a URL and a command."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "model"


def _other_than(wanted: str, taken: str) -> str:
    return wanted if wanted != taken else f"{wanted}-model"


def rank(folder: Path) -> int:
    """The largest rank of an adapter.

    Raises:
        UsageError: its adapter_config.json says none.
    """
    config = read_json(folder / ADAPTER)
    config = config if isinstance(config, dict) else {}
    pattern = config.get("rank_pattern")
    ranks = [config.get("r"), *(pattern.values() if isinstance(pattern, dict) else ())]
    numbers = [value for value in ranks if isinstance(value, int) and value > 0]
    if not numbers:
        raise UsageError(
            _("{path} says no rank").format(path=folder / ADAPTER),
            where=str(folder / ADAPTER),
            fix=_("copy the adapter again"),
            kind="adapter_broken",
        )
    return max(numbers)
