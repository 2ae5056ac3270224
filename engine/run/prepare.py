"""What comes before a run folder is made: the recipe checked, its GPUs chosen and locked, its plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.errors import UsageError
from engine.findings import Finding
from engine.run import datacheck, planned
from engine.run.datacheck import FORCIBLE
from engine.run.gpus import Placement, place, refuse_flash, refuse_fp8
from engine.run.planned import Planned
from engine.text import _
from engine.workspace import Workspace

if TYPE_CHECKING:
    from engine.recipe.model import Loaded


class RecipeError(UsageError):
    """A recipe with errors: all of them are in `findings`."""

    kind = "recipe"

    def __init__(
        self, what: str, findings: Sequence[Finding], *, where: str, fix: str, hint: str, kind: str | None = None
    ) -> None:
        super().__init__(what, where=where, fix=f"{fix}; {hint}" if fix else hint, kind=kind)
        self.findings = list(findings)
        self.hint = hint  # what helps against all of them

    def to_json(self) -> dict[str, Any]:
        """The error with its findings."""
        return {**super().to_json(), "findings": [finding.to_json() for finding in self.findings]}


@dataclass(frozen=True)
class Prepared:
    """A recipe that can be run; its GPUs are locked until `placement.release()`."""

    source: Path
    loaded: Loaded
    resolved: dict[str, Any]
    placement: Placement
    planned: Planned
    findings: list[Finding]


def prepare(
    workspace: Workspace, recipe: str | Path, overrides: Sequence[str], *, force: bool, in_use: bool | None = None
) -> Prepared:
    """Check a recipe, choose its GPUs, resolve and plan it.

    Args:
        workspace: where the run will be.
        recipe: a file, or the name of a built-in recipe.
        overrides: `key=value` texts that replace the recipe's values.
        force: go on in spite of data errors.
        in_use: take GPUs that are in use; as `force` where not given.

    Raises:
        RecipeError: the recipe has errors.
        FtuiError: no GPU is free.
    """
    from engine import recipe as recipes

    source = recipes.find(recipe)
    loaded = recipes.load(source, list(overrides))
    findings = recipes.check(loaded, run=True)
    refuse_errors(findings, str(source))
    findings += datacheck.look(loaded.recipe, workspace.root)
    refuse_errors(findings, str(source), force=force)
    workspace.prepare()
    on_cpu = loaded.recipe.get("device") == "cpu" or loaded.recipe.get("use_cpu") is True
    count = 0 if on_cpu else loaded.recipe.given.get("num_gpus")
    processes = loaded.recipe.get("num_gpus") or 1  # of ranks beside each other on the CPU
    placement = place(workspace, count=count, force=force if in_use is None else in_use, processes=processes)
    try:
        if loaded.recipe.get("fp8"):
            refuse_fp8(placement.cards)
        refuse_flash(loaded.recipe.get("attn_implementation"), on_gpus=bool(placement.gpus))
        resolved = recipes.resolve(loaded, num_gpus=len(placement.gpus), bf16_available=placement.bf16)
        given = loaded.recipe.given
        auto = given.get("sharding", "auto") == "auto"
        plan = planned.make(workspace.root, resolved, placement, given=given, auto=auto)
        if plan.sharding is not None and plan.sharding != resolved["sharding"]:
            given["sharding"], loaded.origin["sharding"] = plan.sharding, "derived"  # other defaults follow from it
            if plan.result is not None and plan.result.request.cpu_offload and not resolved["cpu_offload"]:
                given["cpu_offload"], loaded.origin["cpu_offload"] = True, "derived"
            resolved = recipes.resolve(loaded, num_gpus=len(placement.gpus), bf16_available=placement.bf16)
        if resolved["sharding"] == "pipeline":  # one process, its layers on all of the GPUs
            placement = replace(placement, ranks=1)
    except BaseException:
        placement.release()
        raise
    return Prepared(source, loaded, resolved, placement, plan, findings + plan.findings)


def refuse_errors(findings: Sequence[Finding], where: str, *, force: bool = False) -> None:
    """Stop at errors; `force` makes warnings of those in single rows of the data, which the run then leaves out.

    Raises:
        RecipeError: there are some.
    """
    for finding in findings:
        if force and finding.level == "error" and finding.extra.get(FORCIBLE):
            finding.level = "warning"
    errors = [finding for finding in findings if finding.level == "error"]
    if not errors:
        return
    first = errors[0]
    what, place = first.detail or first.kind, str(first.extra.get("file") or where)
    if len(errors) > 1:
        what = _("{first} (and {n} more)").format(first=what, n=len(errors) - 1)
    if override := first.extra.get("override"):
        place = _("{value} on the command line").format(value=override)
    elif first.lines:
        place += f":{first.lines[0]}"
    hint, kind = _("`ftui recipe check {recipe}` says all that is wrong").format(recipe=where), None
    if all(finding.extra.get("file") for finding in errors):
        hint, kind = _("`ftui data check {file}` says all that is wrong").format(file=first.extra["file"]), "data"
        if all(finding.extra.get(FORCIBLE) for finding in errors):
            hint = _("{check}; --force starts without such rows").format(check=hint)
    raise RecipeError(what, findings, where=place, fix=first.fix, hint=hint, kind=kind)
