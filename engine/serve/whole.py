"""An adapter as one whole model, for an engine that serves only those, or because the user wants it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from engine.errors import FtuiError
from engine.files import read_json
from engine.serve import launch
from engine.serve.target import Target
from engine.text import _
from engine.workspace import Workspace


def place(workspace: Workspace, found: Target) -> Path:
    """Where the merged model of a server lies."""
    return launch.folder_of(workspace) / f"{found.name}.merged"


def ready(workspace: Workspace, found: Target) -> Path | None:
    """A merged model of the adapter as it is now, where there is one already."""
    adapter = found.adapters[0]
    candidates = [found.run.path / "merged"] if found.run is not None else []
    for folder in (*candidates, place(workspace, found)):
        made = read_json(folder / "provenance.json")
        made = made if isinstance(made, dict) else {}
        origin = made.get("adapter")
        plain = made.get("adapters") is None and made.get("quantized_base") is None
        if (
            isinstance(origin, dict)
            and origin.get("path") == str(adapter.path)
            and plain
            and _newer(folder, adapter.path)
        ):
            return folder
    return None


def _newer(merged: Path, adapter: Path) -> bool:
    """Whether the merged folder was made after the adapter's weights were written."""
    weights = [path.stat().st_mtime for path in adapter.glob("adapter_model*")]
    return bool(weights) and (merged / "provenance.json").stat().st_mtime >= max(weights)


def as_one(found: Target, folder: Path) -> Target:
    """The target as the whole model in `folder`."""
    return replace(found, model=folder, served=found.name, adapters=())


def make(
    workspace: Workspace,
    found: Target,
    *,
    base: str | None = None,
    step: int | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Target:
    """Merge the adapter where that was not done yet.

    Raises:
        FtuiError: it cannot be merged.
    """
    from engine.merge import source as sources
    from engine.merge.run import merge

    folder = ready(workspace, found)
    if folder is not None:
        return as_one(found, folder)
    folder = place(workspace, found)
    adapter = found.adapters[0]
    folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if folder.exists():
        shutil.rmtree(folder)  # ours, made from an older adapter
    source = sources.find(workspace, str(found.run.path) if found.run else str(adapter.path), step)
    result = merge(source, folder, base=base or str(found.model), say=say)
    if result.code:
        finding = next(iter(result.findings), None)
        raise FtuiError(
            finding.detail if finding else _("the adapter could not be merged"),
            where=str(adapter.path),
            fix=finding.fix if finding else _("`ftui merge` says more"),
            kind=finding.kind if finding else "merge_failed",
            exit_code=result.code,
        )
    return as_one(found, folder)
