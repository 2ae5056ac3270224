"""How long the server lasts, as every screen's header says it. For one thread; no Textual here."""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import FtuiError
from engine.lease import clock, record
from engine.lease.autopilot import read as read_autopilot
from engine.run.background import running_keeper
from engine.text import _, duration, when
from engine.workspace import Workspace

HOUR = 3600.0
STALE_S = 120.0  # of the autopilot's figures


@dataclass(frozen=True)
class LeaseLine:
    """The words, the longest first, and how loud they are: `muted`, `warning`, `error`."""

    texts: tuple[str, ...] = ()
    tone: str = "muted"


class LeaseSource:
    """Reads two small files; what it says changes once a minute, in the last hour once a second."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.line = LeaseLine()

    def poll(self) -> LeaseLine:
        """What the header says now; the same object where nothing changed."""
        try:
            lease = record.read(self.workspace)
        except FtuiError as error:
            return self._keep(LeaseLine((error.what,), "error"))
        if lease is None:
            return self._keep(LeaseLine())
        at = clock.now()
        left = lease.left(at).seconds
        if left <= 0:
            return self._keep(LeaseLine((_("the lease has ended"),), "error"))
        short = _("lease {time}").format(time=duration(left if left < HOUR else left - left % 60))
        known = read_autopilot(self.workspace)
        told = known.get("time") if known else None
        fresh = isinstance(told, int | float) and abs(at.wall - told) < STALE_S
        if known is None or not fresh or running_keeper(self.workspace) is None:
            text = _("{lease} · no keeper watches it").format(lease=short)
            return self._keep(LeaseLine((text, short), "warning"))
        if known.get("phase") == "act":
            doing = _("all safe") if known.get("safe") else _("sending what is not safe yet")
            tone = "muted" if known.get("safe") else "error"
            return self._keep(LeaseLine((_("{lease} · {what}").format(lease=short, what=doing), short), tone))
        safe_s = left - float(known["plan"].get("need_s") or 0.0)
        if not known.get("runs"):  # nothing that could be lost
            return self._keep(LeaseLine((short,), "warning" if left < HOUR else "muted"))
        if safe_s < 0:
            return self._keep(LeaseLine((_("{lease} · too late to save all").format(lease=short), short), "error"))
        until = _("{lease} · safe until {when}").format(lease=short, when=_time(at.wall + safe_s, safe_s))
        return self._keep(LeaseLine((until, short), "warning" if safe_s < HOUR else "muted"))

    def _keep(self, line: LeaseLine) -> LeaseLine:
        if line != self.line:
            self.line = line
        return self.line


def _time(moment: float, away: float) -> str:
    from engine.text import clock as time_of_day

    moment -= moment % 60
    return time_of_day(moment)[:5] if away < 12 * HOUR else when(moment)


def candidates(risks: list[str], lease: LeaseLine) -> list[tuple[str, str]]:
    """What the right side may say, the best first: what is at risk, and the lease. The lease outlives the risk."""
    texts = list(lease.texts)
    if not texts:
        return [(risk, "") for risk in risks]
    found = [(risks[0], text) for text in texts] if risks else []
    found += [(risk, texts[-1]) for risk in risks[1:]]
    return [*found, *(("", text) for text in texts)]
