"""Models on this machine: what the cache holds, which runs use them, and removing one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import UsageError
from engine.files import read_json
from engine.recipe import hub
from engine.text import _
from engine.workspace import Workspace


@dataclass(frozen=True)
class Cached:
    """A model in the cache: its revisions (commit -> folder), bytes on disk, and the runs whose base it is."""

    name: str
    revisions: dict[str, Path]
    bytes: int
    verified: str | None
    complete: bool
    used_by: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The model as a JSON object."""
        return {
            "model": self.name,
            "revisions": {commit: str(path) for commit, path in self.revisions.items()},
            "bytes": self.bytes,
            "verified": self.verified,
            "complete": self.complete,
            "used_by": list(self.used_by),
        }


def listing(workspace: Workspace) -> list[Cached]:
    """The models in the cache, largest first."""
    used = _used(workspace)
    found = []
    try:
        folders = sorted(hub.cache().glob("models--*"))
    except OSError:
        return []
    for folder in folders:
        name = folder.name.removeprefix("models--").replace("--", "/")
        snapshots = folder / "snapshots"
        revisions = {path.name: path for path in sorted(snapshots.iterdir())} if snapshots.is_dir() else {}
        record = read_json(workspace.root / "models" / f"{name.replace('/', '--')}.json")
        commit = record.get("commit") if isinstance(record, dict) else None
        found.append(
            Cached(
                name,
                revisions,
                _bytes(folder),
                commit if commit in revisions else None,
                bool(revisions) and all(_complete(path) for path in revisions.values()),
                tuple(sorted(used.get(name, ()))),
            )
        )
    return sorted(found, key=lambda model: -model.bytes)


def _bytes(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            if path.is_file() and not path.is_symlink():
                total += path.stat().st_size
        except OSError:
            continue
    return total


def _complete(snapshot: Path) -> bool:
    """Whether a snapshot has a configuration and all the weights that its index names."""
    if not (snapshot / "config.json").is_file():
        return False
    index = read_json(snapshot / "model.safetensors.index.json")
    if isinstance(index, dict) and isinstance(index.get("weight_map"), dict):
        return all((snapshot / str(name)).is_file() for name in set(index["weight_map"].values()))
    return any(path.is_file() for pattern in ("*.safetensors", "*.bin") for path in snapshot.glob(pattern))


def _used(workspace: Workspace) -> dict[str, set[str]]:
    """The runs by the model that they name."""
    used: dict[str, set[str]] = {}
    for run in workspace.runs():
        resolved = read_json(run.resolved)
        recipe = resolved.get("recipe") if isinstance(resolved, dict) else None
        if isinstance(recipe, dict) and isinstance(name := recipe.get("model_name_or_path"), str):
            used.setdefault(name, set()).add(run.name)
    return used


def find(workspace: Workspace, name: str) -> Cached:
    """One model of the cache.

    Raises:
        UsageError: it is not there.
    """
    for model in listing(workspace):
        if model.name == name:
            return model
    raise UsageError(
        _("{name} is not among the models on this machine").format(name=name),
        where=str(hub.cache()),
        fix=_("`ftui model list` shows them"),
        kind="no_such_model",
    )


def remove(workspace: Workspace, model: Cached) -> int:
    """Remove a model from the cache; it can be fetched again. Returns the bytes freed."""
    import shutil

    shutil.rmtree(hub.cache() / ("models--" + model.name.replace("/", "--")))
    (workspace.root / "models" / f"{model.name.replace('/', '--')}.json").unlink(missing_ok=True)
    return model.bytes
