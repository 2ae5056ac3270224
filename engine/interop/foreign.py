"""Reads another tool's recipe file and writes ours from it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import UsageError
from engine.findings import Finding
from engine.interop import axolotl, llamafactory, torchtune, trl
from engine.interop.draft import Draft
from engine.text import _
from engine.yamldoc import MAX_BYTES, Mapping, decode, parse
from engine.yamledit import scalar

TOOLS = {tool.NAME: tool for tool in (torchtune, axolotl, llamafactory, trl)}  # in the order in which they are tried


@dataclass(frozen=True)
class Imported:
    """What became of a foreign file: our keys in order, and what is said of theirs."""

    tool: str
    values: dict[str, Any]
    findings: list[Finding]


def read(path: Path, tool: str | None = None) -> Imported:
    """Read a recipe of another tool.

    Args:
        path: the YAML file; its relative paths start at its folder.
        tool: `axolotl`, `llamafactory`, `trl` or `torchtune`; recognized by its keys where None.

    Raises:
        UsageError: the file cannot be read, is no YAML mapping, or is not known to be of any tool.
    """
    root = _parsed(path)
    draft = Draft(root, path.absolute().parent)
    name = tool or next((name for name, module in TOOLS.items() if module.matches(draft.given)), None)
    if name is None:
        raise UsageError(
            _("this is no recipe of {tools} that is recognized").format(tools=", ".join(sorted(TOOLS))),
            where=str(path),
            fix=_("say which with --from"),
            kind="unknown_tool",
        )
    TOOLS[name].read(draft)
    if "warmup_ratio" in draft.values:  # one setting under two names: the share was given, the steps are a default
        draft.values.pop("warmup_steps", None)
    draft.rest(name)
    _anchor(draft)
    draft.findings.sort(key=lambda finding: ("error", "warning", "note").index(finding.level))
    return Imported(name, draft.values, draft.findings)


def _parsed(path: Path) -> Mapping:
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(
            _("the file cannot be read: {reason}").format(reason=reason),
            where=str(path),
            fix=_("give a readable YAML file"),
            kind="recipe_unreadable",
        ) from error
    text, findings = decode(data)
    root = None
    if not findings:
        root, findings = parse(text)
    errors = [finding for finding in findings if finding.level == "error"]
    if errors or not isinstance(root, Mapping):
        line = errors[0].lines[0] if errors and errors[0].lines else 1
        raise UsageError(
            errors[0].detail if errors else _("the file is not a mapping of keys to values"),
            where=f"{path}:{line}",
            fix=errors[0].fix if errors else _("give the other tool's YAML file"),
            kind=errors[0].kind if errors else "recipe_not_mapping",
        )
    return root


def _anchor(draft: Draft) -> None:
    """Relative paths of the foreign file become absolute: the recipe may be written elsewhere."""
    for key in ("dataset_path", "eval_dataset_path", "output_dir", "chat_template_path"):
        value = draft.values.get(key)
        if isinstance(value, str) and not value.startswith(("/", "~", "$")) and "://" not in value:
            draft.values[key] = str(draft.folder / value)
    model = draft.values.get("model_name_or_path")
    if isinstance(model, str) and os.path.isdir(draft.folder / model):  # noqa: PTH112 (Path raises for a name that is too long)
        draft.values["model_name_or_path"] = str((draft.folder / model).resolve())


def recipe_text(imported: Imported, source: str) -> str:
    """The recipe as YAML, with what was not carried as comments at its top."""
    lines = [_("# From {source} ({tool})").format(source=source, tool=imported.tool)]
    lines += [f"# {finding.level}: {finding.detail}" for finding in imported.findings if finding.level != "note"]
    lines += [f"{key}: {scalar(value)}" for key, value in imported.values.items()]
    return "\n".join(line.replace("\n", " ") for line in lines) + "\n"
