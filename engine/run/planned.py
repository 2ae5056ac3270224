"""The plan that a run starts with: kept as plan.json, and a reason not to start where it does not fit."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from engine.errors import DoesNotFit, FtuiError
from engine.findings import Finding
from engine.recipe.limits import SUPPORTED
from engine.run import leasetime
from engine.run.gpus import Placement
from engine.text import _, gigabytes, number
from engine.workspace import RunFolder

if TYPE_CHECKING:
    from engine.plan.plan import Result

GB = 1e9


class PlanRefused(DoesNotFit):
    """The plan does not fit; `plan` is the whole of it."""

    def __init__(self, what: str, plan: dict[str, Any], *, where: str | None, fix: str | None) -> None:
        super().__init__(what, where=where, fix=fix)
        self.plan = plan

    def to_json(self) -> dict[str, Any]:
        """The error with the plan's figures."""
        return {**super().to_json(), "plan": self.plan}


@dataclass(frozen=True)
class Planned:
    """A plan, or why there is none (in `findings`); `sharding` is what `sharding: auto` shall be."""

    result: Result | None = None
    document: dict[str, Any] | None = None
    sharding: str | None = None
    findings: list[Finding] = field(default_factory=list)


def make(
    home: Path, resolved: Mapping[str, Any], placement: Placement, *, given: Mapping[str, Any], auto: bool
) -> Planned:
    """Plan a resolved recipe on the GPUs it got. Whatever goes wrong is a note: a plan is no condition of training.

    Args:
        home: the workspace, where earlier runs left what they measured.
        resolved: the flat recipe.
        placement: its GPUs; none is the CPU.
        given: what the recipe itself says, for the fix.
        auto: the sharding may be chosen.
    """
    try:
        return _make(home, dict(resolved), placement, dict(given), auto)
    except FtuiError as error:
        detail = _("no plan of memory and time: {reason}").format(reason=error.what)
        return Planned(findings=[Finding("no_plan", "note", detail, error.fix or "")])
    except Exception as error:  # noqa: BLE001 - a fault of the planner must not keep anybody from training
        detail = _("no plan of memory and time: {reason}").format(reason=f"{type(error).__name__}: {error}"[:300])
        return Planned(findings=[Finding("no_plan", "note", detail)])


def _make(home: Path, resolved: dict[str, Any], placement: Placement, given: dict[str, Any], auto: bool) -> Planned:
    from engine.plan import from_recipe, measured, on_cpu
    from engine.plan.plan import card_name, plan
    from engine.plan.request import parse
    from engine.plan.servers import user_file
    from engine.plan.tokens import useful_share

    machine = _cards(placement) if placement.gpus else _processor(on_cpu.local(), placement.ranks)
    request = from_recipe.held_against(
        resolved, machine["num_gpus"] * int(resolved.get("num_machines") or 1), machine["gpu"], machine["gpu_memory_gb"]
    )
    history = measured.read(home, resolved.get("dataset_path"))
    findings: list[Finding] = []
    wanted = None
    result = None
    if auto and placement.gpus:
        chosen = plan(parse(request | {"sharding": "auto"}), user=user_file(), history=history, home=home)
        wanted, supported = chosen.request.sharding, _supported(chosen)
        reason = _("sharding: {kind}: {reason}").format(kind=wanted, reason=chosen.sharding_reason)
        if supported:
            result = chosen
        else:
            reason = _("{reason}. This version trains with {kind}").format(reason=reason, kind=resolved["sharding"])
            wanted = None
        if request["num_gpus"] > 1:
            findings.append(Finding("sharding", "note", reason, key="sharding"))
    if result is None:
        result = plan(parse(request), user=user_file(), history=history, home=home)
    document = {
        "format": 1,
        "made": time.time(),
        "request": request | {"sharding": result.request.sharding, "cpu_offload": result.request.cpu_offload},
        "dataset": resolved.get("dataset_path"),
        "card": card_name(result),
        "useful_share": useful_share(result.request),
        "result": result.to_json(),
    }
    findings += _remarks(result, given)
    findings += leasetime.remarks(home, resolved, result.time(), result.disk()["checkpoint"])
    return Planned(result, document, wanted, findings)


def _cards(placement: Placement) -> dict[str, Any]:
    """The GPUs as the planner asks for them; unequal ones count as the smallest."""
    sizes = [card.memory_total for card in placement.cards if card.memory_total]
    smallest = min(placement.cards, key=lambda card: card.memory_total or 0) if placement.cards else None
    return {
        "gpu": None if smallest is None else smallest.name,
        "gpu_memory_gb": min(sizes) / GB if sizes else None,
        "num_gpus": len(placement.gpus),
    }


def _processor(machine: dict[str, Any], ranks: int) -> dict[str, Any]:
    """The CPU as a device of each rank: they share the memory."""
    return machine | {"num_gpus": ranks, "gpu_memory_gb": machine["gpu_memory_gb"] / ranks}


def _supported(result: Result) -> bool:
    r = result.request
    return r.sharding in SUPPORTED["sharding"] and r.cpu_offload in SUPPORTED.get("cpu_offload", (False, True))


def _remarks(result: Result, given: dict[str, Any]) -> list[Finding]:
    """What is said about a plan: refused as an error, a warning where it is close."""
    from engine.plan import mounts

    found = []
    fix = best_fix(result, given)
    if result.verdict == "no":
        found.append(Finding("does_not_fit", "error", describe(result), fix, key="memory"))
    elif result.verdict == "tight":
        found.append(Finding("does_not_fit", "warning", _("tight: {what}").format(what=describe(result)), fix))
    if "host" in result.problems:
        detail = _("it takes {needs} of host memory, of {total}").format(
            needs=gigabytes(result.storage.host, 0), total=gigabytes(result.host_total or 0.0, 0)
        )
        fix = _("fewer ranks, or no offload; loading and merging are what takes it")
        found.append(Finding("does_not_fit", "warning", detail, fix, key="host"))
    for mount in result.mounts:
        if not mount.runs:
            level: Literal["warning", "error"] = "warning" if mount.possible else "error"
            detail, fix = mounts.shortage(mount), mounts.remedy(result.spread)
            found.append(Finding("does_not_fit", level, detail, fix, key="disk"))
    return found


def describe(result: Result) -> str:
    """The figures of a plan in one sentence."""
    from engine.plan import on_cpu

    needs, capacity = result.device.needs, result.context.capacity or 0.0
    if result.request.gpu == on_cpu.CPU:
        return _("it needs about {needs} GB of this server's memory, of {capacity} GB (± {band} %)").format(
            needs=number(needs / GB, 1), capacity=number(capacity / GB, 1), band=number(100 * result.band)
        )
    text = _("each GPU needs {needs} GB (allocated {low} to {high}), and has {capacity} GB")
    return text.format(
        needs=number(needs / GB, 1), low=number(result.low / GB, 1), high=number(result.high / GB, 1),
        capacity=number(capacity / GB, 1),
    )  # fmt: skip


def best_fix(result: Result, given: dict[str, Any]) -> str:
    """The first advice that makes it fit and that this version can train; empty where there is none."""
    from engine.plan.from_recipe import recipe_changes

    rows = sorted(result.advice, key=lambda row: {"fits": 0, "tight": 1}.get(row["verdict"], 2))
    for row in rows:
        keys = recipe_changes(row["change"], given)
        if row["verdict"] not in ("fits", "tight") or keys is None:
            continue
        if all(value in SUPPORTED.get(key, (value,)) for key, value in keys.items()):
            return _("{change} ({text}): {gb} GB").format(
                change=" ".join(f"{key}={_word(value)}" for key, value in keys.items()),
                text=row["text"], gb=number(row["needs_gb"], 1),
            )  # fmt: skip
    elsewhere = next((row for row in rows if "server" in row["change"] and row["verdict"] == "fits"), None)
    return "" if elsewhere is None else _("it fits {text}").format(text=elsewhere["text"])


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def refuse(planned: Planned, *, where: str, force: bool, resumes: bool = False) -> None:
    """Stop a start whose plan does not fit; with `force` its errors become warnings.

    A run that `resumes` has its checkpoints on the disk already: only memory counts.

    Raises:
        PlanRefused: it does not fit.
    """
    for finding in planned.findings:
        if finding.level != "error" or (resumes and finding.key != "memory"):
            continue
        if force:
            finding.level = "warning"
            continue
        assert planned.document is not None
        either = _("--force starts it anyway")
        fix = f"{finding.fix}; {either}" if finding.fix else either
        raise PlanRefused(
            _("the plan does not fit: {what}").format(what=finding.detail),
            planned.document["result"],
            where=where,
            fix=fix,
        )


def refuse_resume(document: dict[str, Any] | None, run: RunFolder, *, force: bool) -> None:
    """Stop a resume whose checkpoint does not fit while it is loaded: that may take more than training.

    Args:
        document: plan.json's content; without one nothing is said.
        run: the run, for the error.
        force: go on all the same.

    Raises:
        PlanRefused: it does not fit.
    """
    result = (document or {}).get("result") or {}
    card = result.get("per_gpu") or {}
    needs, capacity = card.get("resume_gb"), card.get("capacity_gb")
    if force or not needs or not capacity or needs <= capacity:
        return
    text = _("loading the checkpoint takes {needs} GB on each GPU, of {capacity} GB")
    if ((document or {}).get("request") or {}).get("gpu") == "cpu":
        text = _("loading the checkpoint takes {needs} GB of this server's memory, of {capacity} GB")
    raise PlanRefused(
        text.format(needs=number(needs, 1), capacity=number(capacity, 1)), result, where=str(run.plan),
        fix=_("more GPUs (--gpus N) or larger ones; --force tries it anyway"),
    )  # fmt: skip
