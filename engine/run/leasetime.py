"""Whether a run that begins now would be done, and safe elsewhere, before the server ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine.errors import FtuiError
from engine.findings import Finding
from engine.lease import record, schedule
from engine.text import _, duration, when
from engine.workspace import Workspace

GB = 1e9
CHECKPOINT_FILES = 20
SAVE_RATE = 100e6


def remarks(home: Path, resolved: dict[str, Any], hours: dict[str, Any] | None, checkpoint_gb: float) -> list[Finding]:
    """A finding where the planned time does not fit before the last safe stop.

    Args:
        home: the workspace.
        resolved: the flat recipe.
        hours: the plan's `time` part: `hours`, `low`, `high`.
        checkpoint_gb: the size of a checkpoint.
    """
    workspace = Workspace(home)
    try:
        lease = record.read(workspace)
    except FtuiError as error:
        return [Finding("lease", "warning", error.what, error.fix or "", key="lease")]
    if lease is None:
        return []
    left = lease.left().seconds
    if left <= 0:
        fix = _("`ftui lease set WHEN` where it was prolonged, else `ftui lease clear`")
        return [Finding("lease", "error", _("the lease of this server has ended"), fix, key="lease")]
    if not hours or not hours.get("hours"):
        return []
    work = _work(workspace, resolved, checkpoint_gb * GB)
    expected, longest = hours["hours"] * 3600, (hours.get("high") or hours["hours"]) * 3600
    plan = schedule.plan(left, [work], _margin())
    if longest <= plan.safe_s:
        return []
    end, until = when(_now() + left), when(_now() + plan.safe_s)
    if expected <= plan.safe_s:
        detail = _("it may take until after the last safe stop ({until}); the server ends {end}").format(
            until=until, end=end
        )
        return [Finding("lease", "warning", detail, _("it is stopped with a save then"), key="lease")]
    detail = _("it takes {hours}, and must stop in {left} to be safe elsewhere before the server ends ({end})").format(
        hours=duration(expected), left=duration(max(0.0, plan.safe_s)), end=end
    )
    fix = _("fewer steps or epochs, or go on elsewhere from the backup")
    return [Finding("lease", "error", detail, fix, key="lease")]


def _work(workspace: Workspace, resolved: dict[str, Any], checkpoint: float) -> schedule.Work:
    """What the run will leave to be sent when it ends."""
    from engine.backup import forecast
    from engine.backup.policy import of_run

    stop_s = 1.5 * checkpoint / SAVE_RATE + 60.0
    try:
        policy = of_run({"recipe": resolved})
    except FtuiError:
        policy = None  # the recipe's own check says so
    if policy is None:
        return schedule.Work("new", None, live=True, stop_s=stop_s)
    return schedule.training(
        schedule.Work(
            "new", policy.remote, band=forecast.measured(workspace, policy.remote), full=policy.verify == "full"
        ),
        checkpoint=int(checkpoint),
        checkpoint_files=CHECKPOINT_FILES,
        stop_s=stop_s,
        step=0,
        max_steps=0,
        eta_s=None,
        save_every=None,
        keep=policy.keep,
    )


def _margin() -> float:
    from engine import settings

    try:
        return settings.load().lease_margin_min * 60.0
    except FtuiError:
        return schedule.MARGIN_S


def _now() -> float:
    from engine.lease import clock

    return clock.now().wall
