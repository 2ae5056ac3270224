"""A recipe that is being thought about: its values, the changes over it, the machine that it is held against.

What the planner screen edits; frozen, so that an older draft is an undo. `plan()` takes some milliseconds.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine import recipe as recipes
from engine.errors import FtuiError, UsageError
from engine.findings import Finding
from engine.hardware.catalogue import Card
from engine.plan import from_recipe, measured, on_cpu, servers
from engine.plan.plan import Result, plan
from engine.plan.request import parse
from engine.recipe import defaults, keys, paths
from engine.text import _
from engine.workspace import Workspace

FIRST_BF16 = 8.0  # compute capability of Ampere


@dataclass(frozen=True)
class Here:
    """This machine, as the planner asks for it; `count` is 0 without GPUs."""

    gpu: str | None
    gpu_memory_gb: float | None
    count: int
    bf16: bool = True

    @classmethod
    def look(cls) -> Here:
        """The GPUs of this machine, or its processor."""
        from engine.hardware.gpus import Probe, visible

        with Probe() as probe:
            cards = visible(probe.list())
        if not cards:
            local = on_cpu.local()
            return cls(local["gpu"], local["gpu_memory_gb"], 0)
        smallest = min(cards, key=lambda card: card.memory_total or 0)
        size = None if smallest.memory_total is None else smallest.memory_total / 1e9
        bf16 = all(card.capability is None or float(card.capability) >= FIRST_BF16 for card in cards)
        return cls(smallest.name, size, len(cards), bf16)


@dataclass(frozen=True)
class Draft:
    """A recipe with changes over it. `server` is a server of the catalogue or its cards; empty is this machine."""

    path: Path
    text: str
    given: Mapping[str, Any]
    here: Here
    changes: Mapping[str, Any] = field(default_factory=dict)
    server: str = ""
    problems: tuple[Finding, ...] = ()

    @property
    def said(self) -> dict[str, Any]:
        """The recipe's own values with the changes; None is a key that the recipe no longer gives."""
        merged = {**self.given, **self.changes}
        return {key: value for key, value in merged.items() if value is not None}

    def gpus(self) -> int:
        """GPUs of one machine, 0 for the processor.

        Raises:
            UsageError: no such server.
        """
        if self.server:
            return self._card()[0]
        if self.said.get("device") == "cpu" or self.said.get("use_cpu") is True:
            return 0
        wanted = self.said.get("num_gpus")
        return min(self.here.count, wanted) if isinstance(wanted, int) and wanted > 0 else self.here.count

    def values(self) -> dict[str, Any]:
        """Every key with its value.

        Raises:
            UsageError: a global batch that cannot be made, or no such server.
        """
        bf16 = self._card()[1].bf16_tflops is not None if self.server else self.here.bf16
        return defaults.fill(self.said, num_gpus=self.gpus(), bf16_available=bf16)

    def _card(self) -> tuple[int, Card]:
        count, card, _server = servers.find(servers.offers(servers.user_file()), self.server)
        return count, card

    def change(self, key: str, value: Any) -> Draft:
        """The draft with another value of a recipe's key; None takes the key out.

        Raises:
            UsageError: a path with a variable that is not set.
        """
        if isinstance(value, str) and key in paths.PATH_KEYS and value:
            try:
                value = paths.expand(key, value, Path.cwd())
            except paths.Undefined as undefined:
                raise UsageError(_("the variable ${name} is not set").format(name=undefined.name), where=key) from None
        changes = {**self.changes, key: value}
        if (key in self.given and self.given[key] == value) or (key not in self.given and value is None):
            del changes[key]
        if key == "global_batch_size":  # it decides; an accumulation beside it would contradict
            changes |= {"gradient_accumulation_steps": None} if "gradient_accumulation_steps" in self.given else {}
        return dataclasses.replace(self, changes=changes)

    def on(self, server: str) -> Draft:
        """The draft against another server; empty is this machine."""
        return dataclasses.replace(self, server=server.strip())

    def apply(self, row: Mapping[str, Any]) -> Draft | None:
        """The draft that takes a piece of advice, or None where a recipe cannot say it."""
        change = dict(row["change"])
        if "server" in change:
            return self.on(change["server"])
        found = from_recipe.recipe_changes(change, self.said)
        if found is None:
            return None
        draft: Draft = self
        for key, value in found.items():
            draft = draft.change(key, value)
        return draft

    def request(self) -> dict[str, Any]:
        """The planner's request.

        Raises:
            UsageError: a global batch that cannot be made, or no such server.
        """
        resolved, gpus = self.values(), self.gpus()
        machines = int(resolved.get("num_machines") or 1)
        values = from_recipe.values(resolved, num_gpus=max(1, gpus) * machines)
        if self.server:
            values["server"] = self.server
        elif not gpus and self.here.count:
            values |= on_cpu.local()
        else:
            values |= {"gpu": self.here.gpu, "gpu_memory_gb": self.here.gpu_memory_gb}
        if self.said.get("sharding", "auto") == "auto":
            values["sharding"] = "auto"
        if found := lengths(resolved.get("dataset_path")):
            values |= {"length_histogram": found, "lengths_estimated": True}
        return {key: value for key, value in values.items() if value is not None}

    def plan(self, workspace: Workspace) -> Result:
        """The plan, corrected by what earlier runs of the workspace measured.

        Raises:
            UsageError: a value makes no sense; `where` is its key.
        """
        history = _history(workspace.root, _stamp(workspace.root / measured.NAME))
        history = history.about(self.said.get("dataset_path"))
        home = None if self.server else workspace.root
        return plan(parse(self.request()), user=servers.user_file(), history=history, home=home)

    # Files

    def overrides(self) -> list[str]:
        """The changes as `key=value` texts over the recipe."""
        from engine.yamledit import scalar

        return [f"{key}={scalar(value)}" for key, value in self.changes.items()]

    def save(self, target: Path, *, replace: bool = False) -> Draft:
        """Write a recipe file with the changes in it, comments and all, and go on from that file.

        Args:
            target: the file.
            replace: write over a file that is there.

        Raises:
            UsageError: the file is there, or what would be written is not the same recipe.
            FtuiError: it cannot be written.
        """
        from engine.files import write_atomic
        from engine.recipe import loader
        from engine.yamledit import edited

        if os.path.lexists(target) and not replace:
            raise UsageError(
                _("{path} is there already").format(path=target), where=str(target),
                fix=_("give another name, or confirm that it shall be replaced"), kind="exists",
            )  # fmt: skip
        # Relative paths are relative to the file: those that lead somewhere from the old place go on doing so.
        moved = {key: self.given[key] for key in paths.PATH_KEYS if _is_there(self.given.get(key))}
        same_folder = target.absolute().parent == self.path.absolute().parent
        text = edited(self.text, ({} if same_folder else moved) | dict(self.changes), keys.canonical)
        try:
            write_atomic(target, text.encode())
        except OSError as error:
            raise FtuiError(
                _("the recipe cannot be written: {reason}").format(reason=error.strerror or error),
                where=str(target), fix=_("choose a folder that is there and writable"), kind="unwritable",
            ) from error  # fmt: skip
        loaded = loader.load(target, [])
        return dataclasses.replace(
            self, path=target, text=text, given=loaded.recipe.given, changes={}, problems=tuple(loaded.findings)
        )


def open_recipe(name: str | Path, here: Here, overrides: list[str] | tuple[str, ...] = ()) -> Draft:
    """A draft of a recipe file, or of a built-in one; what is wrong with it is in `problems`.

    Raises:
        UsageError: there is no such recipe.
    """
    path = recipes.find(name)
    plain = recipes.load(path)
    given = dict(plain.recipe.given)
    over = recipes.load(path, overrides) if overrides else plain
    problems = tuple(finding for finding in over.findings if finding.level == "error")
    draft = Draft(path, plain.text, given, here, problems=problems)
    changed = over.recipe.given
    for key in (*changed, *(key for key in given if key not in changed)):
        draft = draft.change(key, changed.get(key))
    return draft


def _is_there(value: Any) -> bool:
    return isinstance(value, str) and value.startswith("/") and os.path.lexists(value)


def lengths(path: Any) -> list[tuple[int, int]] | None:
    """The lengths of the data, read once as long as the file stays what it is."""
    return None if not isinstance(path, str) else _lengths(path, _stamp(Path(path)))


@functools.lru_cache(maxsize=32)
def _lengths(path: str, _stamp: float) -> list[tuple[int, int]] | None:
    try:
        return from_recipe.lengths(path)
    except (OSError, ValueError):  # a plan needs no data; preparing them says what is wrong
        return None


@functools.lru_cache(maxsize=2)
def _history(home: Path, _stamp: float) -> measured.History:
    return measured.read(home)


def _stamp(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except (OSError, ValueError):
        return 0.0
