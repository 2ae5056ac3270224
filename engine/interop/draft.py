"""One foreign file on its way to a recipe: which of its keys were taken, and what is said of the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from engine.findings import Finding
from engine.text import _
from engine.yamldoc import Mapping, Node, merged, plain

# A tool's key -> ours, or (ours, what makes our value of its value).
Table = dict[str, str | tuple[str, Callable[[Any], Any]]]
EMPTY: tuple[Any, ...] = (None, False, "", [], {})


class Draft:
    """The keys of a foreign file and the recipe that is made of them.

    Attributes:
        folder: where the file lies; its relative paths start there.
        given: its keys with plain values.
        lines: key -> line.
        values: our recipe, in the order in which it was put.
        findings: what is not carried, or carried with a difference.
    """

    def __init__(self, root: Mapping, folder: Path) -> None:
        self.folder = folder
        self.given: dict[str, Any] = {}
        self.lines: dict[str, int] = {}
        self.values: dict[str, Any] = {}
        self.findings: list[Finding] = []
        self._open: dict[str, None] = {}
        for key, node in merged(root):
            self._note(key.text, key.line, node)

    def _note(self, name: str, line: int, node: Node) -> None:
        self.given[name], self.lines[name] = plain(node), line
        self._open[name] = None
        if isinstance(node, Mapping):
            for key, inner in merged(node):
                self.lines.setdefault(f"{name}.{key.text}", key.line)
                if isinstance(inner, Mapping):
                    self.lines.update({f"{name}.{key.text}.{deep.text}": deep.line for deep, _value in merged(inner)})

    def take(self, key: str, default: Any = None) -> Any:
        """The value of a key, which is thereby dealt with."""
        self._open.pop(key, None)
        value = self.given.get(key)
        return default if value is None else value

    def items(self, key: str) -> list[Any]:
        """The value of a key as a list: one text counts as a list of one, comma-separated text as several."""
        value = self.take(key)
        if isinstance(value, str):
            return [part.strip() for part in value.split(",") if part.strip()]
        if isinstance(value, dict):
            return [value]
        if value is None or isinstance(value, list):
            return value or []
        self.unreadable(key)
        return []

    def number(self, key: str) -> float | None:
        """The value of a key as a positive number, or None."""
        value = self.take(key)
        if value is None or value is False:
            return None
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = float("nan")
        if number > 0:
            return number
        self.unreadable(key)
        return None

    def unreadable(self, key: str) -> None:
        """Say that a value is not of the kind that its key takes."""
        self.lost(key, _("the value of {key} is not understood").format(key=key), _("write it by hand"), "error")

    def put(self, ours: str, value: Any) -> None:
        """Set a key of the recipe; the first one to set it wins, None sets nothing."""
        if value is not None:
            self.values.setdefault(ours, value)

    def carry(self, table: Table) -> None:
        """Carry all keys that have a counterpart."""
        for theirs, target in table.items():
            if theirs not in self.given:
                continue
            value = self.take(theirs)
            ours, convert = target if isinstance(target, tuple) else (target, None)
            if value is None:
                continue
            try:
                self.put(ours, convert(value) if convert else value)
            except (TypeError, ValueError):
                self.unreadable(theirs)

    def ignore(self, keys: Iterable[str], why: str) -> None:
        """Keys that mean nothing here: said in a note, because the run does not change by them."""
        for key in keys:
            if key in self.given and self.take(key) not in EMPTY:
                self.say("not_needed", "note", why.format(key=key), "", key)

    def defaults(self, values: dict[str, Any]) -> None:
        """What the tool does where its file says nothing, written out because our default is another."""
        missing = {ours: value for ours, value in values.items() if ours not in self.values}
        self.values.update(missing)
        if missing:
            names = ", ".join(f"{key}: {value}" for key, value in missing.items())
            detail = _("defaults of the other tool, written out: {names}").format(names=names)
            self.say("carried_default", "note", detail, _("delete the lines to get ours"))

    def lost(self, key: str, detail: str, fix: str = "", level: Any = "warning") -> None:
        """A key that cannot be carried, and why."""
        self._open.pop(key.partition(".")[0], None)
        self.say("not_carried", level, detail, fix, key)

    def say(self, kind: str, level: Any, detail: str, fix: str, key: str | None = None) -> None:
        """Add a finding on the line of `key`."""
        line = self.lines.get(key or "") or self.lines.get((key or "").partition(".")[0])
        self.findings.append(Finding(kind, level, detail, fix, [line] if line else [], key=key))

    def rest(self, tool: str) -> None:
        """Whatever nobody took is listed, so that nothing is dropped silently."""
        for key in list(self._open):
            if self.given[key] not in EMPTY:
                detail = _("{tool}'s {key} has no counterpart here").format(tool=tool, key=key)
                self.lost(key, detail, _("look whether the run needs it"))
            self._open.pop(key, None)


def dataset(draft: Draft, key: str, ours: str, found: list[str]) -> None:
    """Put the one data set of the tool; further ones are listed, because a recipe has one path."""
    if not found:
        return
    draft.put(ours, found[0])
    for extra in found[1:]:
        detail = _("a recipe has one {ours}: '{extra}' is left out").format(ours=ours, extra=extra)
        fix = _("put the files into one folder and give that folder")
        draft.say("not_carried", "error", detail, fix, key)


def deepspeed_stage(value: Any, folder: Path) -> tuple[str | None, bool]:
    """(`zero2`, `zero3` or None, whether it offloads to the CPU) of a DeepSpeed configuration or the path of one."""
    from engine.files import read_json

    if isinstance(value, str):
        path = folder / value
        content = read_json(path)
        if not isinstance(content, dict):  # only the name is known: `…/zero3_bf16_cpuoffload.json`, `ds_z2_config.json`
            name = Path(value).name.lower()
            stage = next((n for n in ("3", "2") if f"zero{n}" in name or f"z{n}" in name or f"stage{n}" in name), None)
            return (f"zero{stage}" if stage else None), "offload" in name
        value = content
    if not isinstance(value, dict) or not isinstance(zero := value.get("zero_optimization"), dict):
        return None, False
    stage = zero.get("stage")
    offload = any(
        isinstance(part := zero.get(name), dict) and part.get("device") == "cpu"
        for name in ("offload_optimizer", "offload_param")
    )
    return (f"zero{stage}" if stage in (2, 3) else None), offload


def sharding(draft: Draft, key: str) -> None:
    """Carry a `deepspeed` key."""
    if key not in draft.given:
        return
    value = draft.take(key)
    if value in EMPTY:
        return
    stage, offload = deepspeed_stage(value, draft.folder)
    if stage is None:
        detail = _("the stage of this DeepSpeed configuration is not known, or not 2 or 3")
        draft.lost(key, detail, _("set `sharding: zero2` or `zero3`"))
        return
    draft.put("sharding", stage)
    if offload:
        draft.put("cpu_offload", True)
    draft.say(
        "carried_partly",
        "note",
        _("{key} became `sharding: {stage}`; its other settings are not carried").format(key=key, stage=stage),
        "",
        key,
    )
