"""What happens before the server ends: warnings, the stop with a save in time, the uploads, and the final account.

The keeper calls `look()` every two seconds. All that must outlive it stands in keeper/autopilot.json, so a keeper that
was killed goes on where it was. A spot notice is the same with less time.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Any

from engine import settings
from engine.errors import FtuiError
from engine.files import read_json, write_json
from engine.lease import clock, record, schedule
from engine.lease.clock import Now
from engine.lease.preemption import Preemption
from engine.lease.record import Lease
from engine.lease.schedule import Plan, Work
from engine.lease.when import duration
from engine.text import _
from engine.workspace import Workspace

NAME = "autopilot.json"
LOOK_S = 2.0  # from one look of the keeper to the next
SOONEST_S, LATEST_S = 2.0, 30.0  # between two plans
AFTER_S = 3600.0  # a lease that ended is spoken of for so long: then somebody prolonged it and did not say
WARN = "24h, 6h, 1h, 15min"
ASK_AGAIN_S = 60.0
log = logging.getLogger("engine.keeper")


class Autopilot:
    """The lease of one workspace.

    Args:
        workspace: whose.
        notify: tells people (kind, and the fields of the notice).
        works: what the runs have to do; raises nothing that is not an FtuiError.
        stop: asks a run to stop with a save, by its name.
        hurry: called while uploads must go on whatever was wished: no pause, no limit, no waiting.
        now: the clocks.
    """

    def __init__(
        self,
        workspace: Workspace,
        notify: Callable[..., None],
        *,
        works: Callable[[], Sequence[Work]],
        stop: Callable[[str], None],
        hurry: Callable[[bool], None] = lambda _on: None,
        now: Callable[[], Now] = clock.now,
        preemption: Preemption | None = None,
    ) -> None:
        self.workspace = workspace
        self.notify = notify
        self.works = works
        self.stop = stop
        self.hurry = hurry
        self.now = now
        self.preemption = preemption or Preemption(workspace)
        self.path = workspace.keeper_dir / NAME
        known = read_json(self.path)
        self.state: dict[str, Any] = known if isinstance(known, dict) else {}
        self._plan: Plan | None = None
        self._works: Sequence[Work] = ()
        self._known = False  # the runs could be read: nothing is called safe before
        self._planned = -1e18
        self._margin = schedule.MARGIN_S
        self._warnings: list[float] = []
        self._set_version: object = None

    def look(self) -> bool:
        """Look once; whether there is a lease to be watched, so that the keeper must stay."""
        at = self.now()
        lease = self._lease(at)
        notice = self.preemption.look(at)
        if lease is None and notice is None:
            if self.state:
                self.state = {}
                self.path.unlink(missing_ok=True)
            self.hurry(False)
            return False
        self._settings()
        left = lease.left(at) if lease else clock.Left(float("inf"))
        remaining = min(left.seconds, float("inf") if notice is None else notice - at.boottime)
        mark = [lease.set_at if lease else None, lease.end if lease else None, notice is not None]
        if self.state.get("lease") != mark:
            self.hurry(False)
            self.state = {"format": 1, "lease": mark, "phase": "watch", "warned": [], "asked": {}}
            self._planned = -1e18
        if remaining < -AFTER_S:
            self._finish(at, remaining)
            return False
        self._clock_moved(left.moved)
        self._replan(at, remaining)
        assert self._plan is not None
        self._warn(remaining)
        if self.state["phase"] == "watch" and self._must_act(notice is not None):
            self._begin(at, "preempted" if notice is not None else "lease")
        if self.state["phase"] == "act":
            self._act(at, remaining)
        if remaining <= 0:
            self._finish(at, remaining)
        return True

    # Looking

    def _lease(self, at: Now) -> Lease | None:
        try:
            lease = record.read(self.workspace)
            return record.refresh(self.workspace, lease, at) if lease else self._from_settings(at)
        except FtuiError as error:
            if self.state.get("unreadable") != error.what:
                self.state["unreadable"] = error.what
                self.notify("lease_unreadable", reason=error.what)
        except OSError as error:
            log.warning("the lease could not be kept: %s", error)
            with contextlib.suppress(FtuiError):
                return record.read(self.workspace)
        return None

    def _from_settings(self, at: Now) -> Lease | None:
        """The end that the provider tells, where the settings say how and nobody set another."""
        from engine.lease import when

        source = settings.load().lease
        if not source:
            return None
        try:
            found = when.parse(source, at.wall)
        except FtuiError:
            return None  # a provider may tell it later
        return record.save(self.workspace, found, at)

    def _settings(self) -> None:
        try:
            version = settings.path().stat().st_mtime_ns
        except OSError:
            version = None
        if version == self._set_version and self._warnings:
            return
        self._set_version = version
        known = settings.Settings()
        with contextlib.suppress(FtuiError):  # the commands say what is wrong with it
            known = settings.load()
        self._margin = known.lease_margin_min * 60.0
        self._warnings = [duration(WARN)]
        try:
            texts = (known.lease_warn or WARN).split(",")
            self._warnings = sorted((duration(text) for text in texts), reverse=True)
        except FtuiError:
            self._warnings = sorted((duration(text) for text in WARN.split(",")), reverse=True)

    def _replan(self, at: Now, remaining: float) -> None:
        """Plan again: often when the time is near, and with the last plan's figures in between."""
        slack = self._plan.safe_s if self._plan else 0.0
        every = min(LATEST_S, max(SOONEST_S, slack / 20))
        if self._plan is not None and 0 <= at.boottime - self._planned < every:
            self._plan = Plan(remaining, self._plan.need_s, self._plan.likely_s, self._plan.measured)
            return
        try:
            self._works = list(self.works())
            self._known = True
        except (FtuiError, OSError) as error:
            self._known = False
            log.warning("the runs cannot be read: %s", error)
        self._planned = at.boottime
        self._plan = schedule.plan(remaining, self._works, self._margin)
        self._write(at)

    def _clock_moved(self, moved: float) -> None:
        told = self.state.get("moved", 0.0)
        if abs(moved - told) > 60.0:
            self.state["moved"] = moved
            if moved:
                self.notify("clock_moved", seconds=round(moved))

    # Acting

    def _warn(self, remaining: float) -> None:
        """Once for each of the set times before the stop; the smallest that applies, not all of them at once."""
        assert self._plan is not None
        if not any(work.live or not work.safe for work in self._works):
            return
        passed = [limit for limit in self._warnings if self._plan.safe_s <= limit and limit not in self.state["warned"]]
        if passed and self.state["phase"] == "watch":
            self.state["warned"] += passed
            self.notify(
                "lease_soon",
                seconds=round(max(0.0, self._plan.safe_s)),
                remaining_s=round(max(0.0, remaining)),
                runs=[work.run for work in self._works if work.live],
                trouble=[f"{work.run}: {work.trouble}" for work in self._works if work.trouble][:5],
                no_remote=[work.run for work in self._works if work.live and work.remote is None],
            )

    def _must_act(self, preempted: bool) -> bool:
        """Whether this is the last look at which the stop is in time."""
        assert self._plan is not None
        if preempted:
            return True
        due = self._plan.safe_s <= 2 * LOOK_S
        return due and (any(work.live or not work.safe for work in self._works) or self._plan.remaining_s <= 0)

    def _begin(self, at: Now, reason: str) -> None:
        self.state.update(phase="act", began=at.wall, reason=reason)
        live = [work.run for work in self._works if work.live]
        self.notify("lease_stop", reason=reason, runs=live)
        self._planned = -1e18
        self._write(at)

    def _act(self, at: Now, remaining: float) -> None:
        """Ask every run that lives to stop, see the uploads through, and say when all is done."""
        self.hurry(True)
        asked = self.state["asked"]
        for work in self._works:
            if not work.live or 0 <= at.boottime - asked.get(work.run, -1e18) < ASK_AGAIN_S:
                continue
            if self.state["reason"] == "lease" and (work.started or 0.0) > self.state["began"]:
                continue  # somebody started it with --force, knowing the time
            try:
                self.stop(work.run)
                asked[work.run] = at.boottime
                self._planned = -1e18
            except FtuiError as error:  # it starts, or just ended: the next look tells
                log.info("%s could not be stopped yet: %s", work.run, error.what)
        if self._planned == -1e18:
            self._replan(at, remaining)
        safe = self._known and all(work.safe for work in self._works)
        if safe != bool(self.state.get("safe")):
            self.state["safe"] = safe
            if safe:
                self.notify("lease_safe", runs=[work.run for work in self._works])
            self._write(at)

    def _finish(self, at: Now, remaining: float) -> None:
        """The time is over: one account of what is safe and what is not."""
        if self.state.get("phase") == "ended":
            return
        self.state["phase"] = "ended"
        self._planned = -1e18
        self._replan(at, remaining)
        safe = [work.run for work in self._works if work.safe and self._known]
        lost = [work.run for work in self._works if work.run not in safe]
        self.state["safe"] = self._known and not lost
        self.state["report"] = {"time": at.wall, "safe": safe, "unsafe": lost}
        self.notify("lease_ended", unsafe=lost, safe=safe)
        self.hurry(False)
        self._write(at)

    def _write(self, at: Now) -> None:
        """autopilot.json: what screens show and what a killed keeper goes on with."""
        assert self._plan is not None
        document = {
            **self.state,
            "time": at.wall,
            "plan": self._plan.to_json(),
            "runs": [
                {
                    "run": work.run,
                    "remote": work.remote,
                    "live": work.live,
                    "safe": work.safe,
                    "bytes": work.other + work.checkpoints,
                    "need_s": round(work.seconds("low", saves=False, finishes=False), 1),
                    "trouble": work.trouble,
                }
                for work in self._works
                if work.live or not work.safe
            ],
        }
        with contextlib.suppress(OSError):  # a full disk stops no autopilot
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_json(self.path, document, durable=False)
        self.state = {key: value for key, value in document.items() if key not in ("time", "plan", "runs")}


def read(workspace: Workspace) -> dict[str, Any] | None:
    """What the autopilot last wrote; None: nothing."""
    value = read_json(workspace.keeper_dir / NAME)
    return value if isinstance(value, dict) and isinstance(value.get("plan"), dict) else None


def explain(phase: str) -> str:
    """A phase in words."""
    return {
        "watch": _("training goes on until the last safe stop"),
        "act": _("stopping and sending what is not safe yet"),
        "ended": _("the lease has ended"),
    }.get(phase, phase)
