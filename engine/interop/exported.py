"""Writes a recipe of ours for another tool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from engine.errors import UsageError
from engine.findings import Finding
from engine.interop import axolotl, llamafactory, script
from engine.recipe.model import Loaded
from engine.text import _

TARGETS = ("trl", "axolotl", "llamafactory")
# Ours alone: they change what this program does around the run, not what is trained.
AROUND = frozenset(("retention", "backup", "gates", "save_total_limit", "device", "num_gpus", "num_machines"))


@dataclass(frozen=True)
class Exported:
    """The files of an export by name, and what they do not carry."""

    files: dict[str, str]
    findings: list[Finding]


def export(loaded: Loaded, values: dict[str, Any], target: str) -> Exported:
    """The files of a recipe for another tool.

    Args:
        loaded: the recipe as it was read (for its lines).
        values: the same, resolved.
        target: one of `TARGETS`.

    Raises:
        UsageError: the recipe cannot be said in the other tool's terms at all.
    """
    given = set(loaded.recipe.given)
    for key in ("model_name_or_path", "dataset_path"):
        value = values.get(key)
        if not isinstance(value, str) or value.startswith("builtin:"):
            raise UsageError(
                _("{key}: {value} is known to this program only").format(key=key, value=value),
                where=f"{loaded.path}:{key}",
                fix=_("name a file, a folder or a name on the hub"),
                kind="not_exportable",
            )
    if target == "axolotl":
        config, lost = axolotl.write(values, given)
        files = {"axolotl.yaml": _yaml(config)}
    elif target == "llamafactory":
        config, info, lost = llamafactory.write(values, given)
        files = {"llamafactory.yaml": _yaml(config), "dataset_info.json": info}
    else:
        text = script.script(values, _defaults(values["task"]), script.title(loaded.path.stem))
        files = {"train.py": text, "accelerate.yaml": _yaml(script.accelerate(values))}
        lost = given & {"fp8", "backend", "kbit_prepare", "gates", "retention", "backup"}
    findings = [_lost(loaded, key, target) for key in sorted(lost)]
    if target == "trl" and values["task"] == "sft" and values.get("assistant_only_loss") is None:
        detail = _("assistant_only_loss is on in the script; TRL stops where the chat template cannot mark the answers")
        findings.append(Finding("carried_partly", "note", detail, _("set it to False there")))
    return Exported(files, findings)


def _lost(loaded: Loaded, key: str, target: str) -> Finding:
    if key in AROUND:
        detail = _("{key}: this program's own, it is not carried to {target}").format(key=key, target=target)
        return loaded.recipe.finding("not_carried", "note", detail, "", (key,))
    detail = _("{key}: {target} has no counterpart that is known here").format(key=key, target=target)
    return loaded.recipe.finding("not_carried", "warning", detail, _("set it there by hand"), (key,))


def _defaults(task: str) -> dict[str, Any]:
    """The library's defaults of the trainer's configuration."""
    from engine.recipe.keys import CONFIG_OF_TASK, table

    config = CONFIG_OF_TASK[task]
    return {name: key.default for name, key in table(task).items() if config in key.classes}


def _yaml(config: dict[str, Any]) -> str:
    import yaml

    text: str = yaml.safe_dump(config, sort_keys=False, allow_unicode=True, width=120)
    return text
