"""What serving something would mean, before it is done; and doing it, step by step. For whoever shows it."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from engine.errors import FtuiError
from engine.serve import check, engines, launch, target, whole
from engine.serve.engines import Engine
from engine.serve.fit import Fit
from engine.serve.launch import Served
from engine.serve.target import Target
from engine.text import _
from engine.workspace import Workspace

HOST = "127.0.0.1"


@dataclass(frozen=True)
class Offer:
    """One way to serve something.

    Attributes:
        target: what is served.
        engine: what serves it.
        merged: whether it is one whole model made from an adapter.
        choice: whether it could also be the other way.
        to_merge: the merge that comes first, where that was not done yet.
        command: the command that will run, for people.
        fit: how it fits.
        base: the base beside it, which the same server does not serve.
        warning: what an evaluation's gates said.
    """

    target: Target
    engine: Engine
    merged: bool
    choice: bool
    to_merge: Path | None
    command: str
    fit: Fit
    base: Path | None
    warning: str | None


def gate_warning(found: Target) -> str | None:
    """What an evaluation's gates said of what is to be served; None where that is nothing to say."""
    if found.run is None:
        return None
    from engine.evaluate import gate

    told = gate.word(found.run, found.step)
    if told["state"] == "failed":
        return _("the gate said no to this model: {gates}").format(gates=", ".join(told["failed"]))
    if told["state"] == "missing":
        return _("its gates were not asked yet: `ftui eval {run}` does").format(run=found.run.name)
    return None


def look(workspace: Workspace, name: str, *, merged: bool = False) -> Offer:
    """What serving `name` would be; nothing is started or kept.

    Raises:
        FtuiError: there is no such thing, no engine, or it does not fit.
    """
    found, engine, merged = _chosen(workspace, name, merged)
    served, folder = found, None
    if merged:
        folder = whole.ready(workspace, found)
        # Until it is made the base's size and shape stand for it.
        served = whole.as_one(found, folder or found.model)
    prepared = launch.prepare(workspace, served, engine, host=HOST, port=None, max_length=None, gpus=None, extra=[])
    prepared.placement.release()
    to_merge = whole.place(workspace, found) if merged and folder is None else None
    words = [str(to_merge) if to_merge and word == str(found.model) else word for word in prepared.argv]
    return Offer(
        replace(served, model=to_merge or served.model),
        engine,
        merged,
        choice=bool(found.adapters) and engine.name == "vllm",
        to_merge=to_merge,
        command=shlex.join(words),
        fit=prepared.fit,
        base=found.model if merged else None,
        warning=gate_warning(found),
    )


def begin(
    workspace: Workspace, name: str, *, merged: bool = False, say: Callable[[str], None] = lambda text: None
) -> Served:
    """Merge where that is needed, start, wait until it answers, and check what it answers.

    Raises:
        FtuiError: any of it failed.
    """
    found, engine, merged = _chosen(workspace, name, merged)
    if merged:
        found = whole.make(workspace, found, say=say)
    served = _started(workspace, found, engine, say)
    rows = check.held_out(found.run.data) if found.run is not None else []
    check.check(served, rows, say)
    return served


def begin_base(
    workspace: Workspace, served: Served, base: Path, say: Callable[[str], None] = lambda text: None
) -> Served:
    """Start a server of the base beside one that serves a whole model.

    Raises:
        FtuiError: it did not come up.
    """
    name = base_name(served.name)
    wanted = Target(name, base, name)
    return _started(workspace, wanted, engines.choose(served.spec["engine"]), say)


def base_name(name: str) -> str:
    """The server of the base beside that of `name`."""
    return f"{name}-base"


def _started(workspace: Workspace, wanted: Target, engine: Engine, say: Callable[[str], None]) -> Served:
    prepared = launch.prepare(workspace, wanted, engine, host=HOST, port=None, max_length=None, gpus=None, extra=[])
    served = launch.start(workspace, prepared)
    check.wait_ready(served, say)
    return served


def _chosen(workspace: Workspace, name: str, merged: bool) -> tuple[Target, Engine, bool]:
    """Target, engine, and whether it has to be one whole model."""
    engine = engines.choose(None)
    found = target.find(workspace, name)
    return found, engine, bool(found.adapters) and (merged or engine.name != "vllm")


def existing(workspace: Workspace, name: str) -> Served | None:
    """The server of that name, running or not; None where there never was one."""
    served = Served(launch.folder_of(workspace) / target.slug(name))
    try:
        return served if served.spec else None
    except (OSError, FtuiError):
        return None
