"""What lies at a remote and what of it a restore fetches: read from the manifests there, before anything is written."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from engine.backup.remote import Remote
from engine.checkpoint import manifest
from engine.checkpoint.ledger import NAME as STEP
from engine.errors import GateError
from engine.text import _


@dataclass(frozen=True)
class Wanted:
    """One file to fetch: its path at the remote and here, and what it must be. `content`: it stands in the manifest."""

    source: str
    target: str
    size: int
    sha256: str
    content: str | None = None


@dataclass
class Plan:
    """What a restore would fetch. `base` is the base model, which must be got elsewhere."""

    remote: str
    run: str | None
    files: list[Wanted]
    checkpoints: list[int]
    others: list[str]
    base: dict[str, Any] = field(default_factory=dict)
    named: dict[str, str] = field(default_factory=dict)
    manifests: dict[str, bytes] = field(default_factory=dict)
    incomplete: list[str] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        return sum(wanted.size for wanted in self.files)

    def to_json(self) -> dict[str, Any]:
        return {
            "remote": self.remote,
            "run": self.run,
            "files": len(self.files),
            "bytes": self.bytes,
            "checkpoints": self.checkpoints,
            "others": self.others,
            "base_model": self.base,
            "incomplete": self.incomplete,
        }


def plan(remote: Remote, *, step: int | None = None, everything: bool = False) -> Plan:
    """What lies there and what of it to fetch: the run's files, the final model, the best and the newest checkpoint.

    Args:
        remote: the folder of a run, or of one checkpoint.
        step: only the checkpoint of this step beside the run's files.
        everything: all checkpoints.

    Raises:
        GateError: there is no backup, or no such checkpoint.
        RcloneError: the remote cannot be read.
    """
    there = remote.listing()
    if "BACKUP.json" not in there and manifest.NAME in there:
        found = _read_manifest(remote, manifest.NAME)
        files = [_file(name, name, known) for name, known in found["files"].items()]
        raw = {manifest.NAME: found["raw"]}
        return Plan(remote.path, None, files, [int(found.get("step") or 0)], [], manifests=raw)
    if "BACKUP.json" not in there:
        raise GateError(
            _("there is no backup of a run at {remote}").format(remote=remote.path),
            fix=_("give the folder that holds BACKUP.json or a checkpoint's MANIFEST.json; `rclone lsf` lists them"),
            kind="no_backup",
        )
    document = _read_manifest(remote, "BACKUP.json")
    base = document.get("base")
    result = Plan(remote.path, str(document.get("run") or "run"), [], [], [], base if isinstance(base, dict) else {})
    result.named = {str(k): str(v) for k, v in (document.get("named") or {}).items()}
    result.files += [_file(name, name, known) for name, known in document["files"].items()]
    result.manifests["BACKUP.json"] = document["raw"]
    folders = _folders(there)
    result.incomplete = sorted(name for name, whole in folders.items() if not whole)
    whole = [name for name, complete in folders.items() if complete]
    steps = sorted((int(name.rpartition("-")[2]), name) for name in whole if name.startswith("checkpoints/"))
    for name in _chosen(remote, whole, steps, step, everything, result):
        found = _read_manifest(remote, f"{name}/{manifest.NAME}")
        result.manifests[f"{name}/{manifest.NAME}"] = found["raw"]
        result.files += [_file(f"{name}/{path}", f"{name}/{path}", known) for path, known in found["files"].items()]
        if name.startswith("checkpoints/"):
            result.checkpoints.append(int(name.rpartition("-")[2]))
        else:
            result.others.append(name)
    return result


def _chosen(
    remote: Remote, whole: list[str], steps: list[tuple[int, str]], step: int | None, everything: bool, result: Plan
) -> list[str]:
    if step is not None:
        names = [name for number, name in steps if number == step]
        if not names:
            known = ", ".join(str(number) for number, _name in steps) or _("none")
            raise GateError(
                _("there is no whole checkpoint of step {step} there").format(step=step),
                where=remote.path,
                fix=_("there are: {steps}").format(steps=known),
                kind="no_such_checkpoint",
            )
        return names
    others = [name for name in whole if not name.startswith("checkpoints/")]
    if everything or not steps:
        return [*others, *(name for _number, name in steps)]
    newest = steps[-1][1]
    chosen = {newest}
    state = remote.read(f"{newest}/trainer_state.json")
    try:
        best = orjson.loads(state or b"{}").get("best_model_checkpoint")
    except (ValueError, AttributeError):
        best = None
    if isinstance(best, str) and (name := f"checkpoints/{Path(best).name}") in whole:
        chosen.add(name)
    return [*(name for name in others if not name.startswith("adapters/")), *sorted(chosen)]


def _folders(there: Iterable[str]) -> dict[str, bool]:
    """The items that lie there, and whether each has its commit mark."""
    found: dict[str, bool] = {}
    for path in there:
        parts = path.split("/")
        name = (
            parts[0]
            if parts[0] == "final"
            else "/".join(parts[:2])
            if parts[0] in ("checkpoints", "adapters")
            else None
        )
        if name and len(parts) > name.count("/") + 1 and ("/" not in name or STEP.match(parts[1])):
            found[name] = found.get(name, False) or path == f"{name}/{manifest.NAME}"
    return found


def _read_manifest(remote: Remote, path: str) -> dict[str, Any]:
    data = remote.read(path)
    try:
        document = orjson.loads(data or b"")
        good = isinstance(document["files"], dict) and all(
            manifest.is_inside(name) and isinstance(known["size"], int) and isinstance(known["sha256"], str)
            for name, known in document["files"].items()
        )
        good = good and isinstance(document.get("named") or {}, dict) and isinstance(document.get("step") or 0, int)
    except (ValueError, KeyError, TypeError):
        good = False
    if not good:
        raise GateError(
            _("{path} cannot be read there").format(path=path),
            where=remote.path,
            fix=_("restore another checkpoint, or copy the plain files with rclone"),
            kind="bad_manifest",
        )
    if document.get("format", 1) != 1:
        raise GateError(_("this backup was made by a newer version"), where=remote.path, kind="newer_format")
    return {**document, "raw": data}


def _file(source: str, target: str, known: dict[str, Any]) -> Wanted:
    content = known.get("content")
    return Wanted(
        source, target, int(known["size"]), str(known["sha256"]), content if isinstance(content, str) else None
    )
