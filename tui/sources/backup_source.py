"""What is elsewhere, for the checkpoint screen: a cell for each checkpoint, the upload, and what would be lost now.

For one thread; no widgets. The ledger is read again only when it or the run's own files changed.
"""

from __future__ import annotations

import os
import time
from typing import Any

from engine.errors import FtuiError
from engine.text import _, clock, duration, gigabytes, money, ngettext, number
from engine.workspace import RunFolder
from tui.state.checkpoints import BackupView, Extra
from tui.widgets.figures import percent

LOSS_S = 3.0
TONES = {
    "VERIFIED_ETAG": "good", "VERIFIED_FULL": "good", "UPLOADED": "", "UPLOADING": "", "HASHED": "muted",
    "SEALED": "muted", "STALLED": "warning", "AUTH_NEEDED": "error", "SOURCE_CHANGED": "error", "FAILED": "error",
}  # fmt: skip


def state_text(state: str, verified_at: float | None, share: float | None) -> str:
    """A state of a backup in a few letters."""
    if state in ("VERIFIED_ETAG", "VERIFIED_FULL"):
        when = "" if verified_at is None else " " + clock(verified_at)[:5]
        return (_("verified") if state == "VERIFIED_ETAG" else _("read back")) + when
    if state == "UPLOADING" and share is not None:
        return _("uploading {share}").format(share=percent(share))
    return {
        "UPLOADED": _("sent, not proved"),
        "UPLOADING": _("uploading"),
        "HASHED": _("not sent"),
        "SEALED": _("not sent"),
        "STALLED": _("stalled"),
        "AUTH_NEEDED": _("access refused"),
        "SOURCE_CHANGED": _("changed here"),
        "FAILED": _("failed"),
    }.get(state, state.lower())


class BackupSource:
    """Reads one run's ledger, its running upload and the wishes for uploads."""

    def __init__(self, run: RunFolder) -> None:
        self.run = run
        self.cells: dict[str, dict[str, Extra]] = {}
        self._stamp: object = None
        self._remote: str | None = None
        self.version = 0  # of the cells
        self._lost: tuple[object, float, tuple[str, str]] | None = None

    def stamp(self) -> object:
        """Changes with what `read` reads, and not with each byte of an upload."""
        backup = self.run.path / "backup"
        found: list[Any] = [_changed(self.run.checkpoints), _changed(self.run.resolved)]
        try:
            found += sorted(
                (entry.name, _changed(entry.path)) for entry in os.scandir(backup) if entry.name.endswith(".jsonl")
            )
        except OSError:
            pass
        return found

    def read(self) -> dict[str, dict[str, Extra]]:
        """A cell for each checkpoint, by its name; the column is called as the remote."""
        from engine.backup import progress
        from engine.backup.ledger import Ledger
        from engine.backup.status import effective

        running = progress.read(self.run.path / "backup") or {}
        flying = running.get("items") if isinstance(running.get("items"), dict) else {}
        stamp = (self.stamp(), sorted((flying or {}).items()))
        if stamp == self._stamp:
            return self.cells
        self._stamp = stamp
        try:
            policy = effective(self.run)
        except FtuiError:
            policy = None
        self.version += 1
        self.cells, self._remote = {}, policy.remote if policy else None
        if policy is None:
            return self.cells
        ledger = Ledger(self.run.path / "backup", policy.remote)
        for name, record in ledger.items.items():
            if "/checkpoint-" not in name or record.gone:
                continue
            size = sum(file.size for file in record.files.values())
            sent = sum(file.size for file in record.files.values() if file.uploaded)
            sent = max(sent, int((flying or {}).get(name) or 0))
            text = state_text(record.state, record.verified_at, sent / size if size else None)
            cell = Extra(text, TONES.get(record.state, ""))
            self.cells.setdefault(name.rpartition("/")[2], {})[policy.remote] = cell
        return self.cells

    def view(self) -> BackupView:
        """The two lines, as of now."""
        loss, tone = self._loss()
        upload, upload_tone = self._upload()
        return BackupView(loss, tone, upload, upload_tone)

    def _loss(self) -> tuple[str, str]:
        """Reading ledger and journal costs some milliseconds: again after a change there, else every few seconds."""
        state = self.run.read_state()
        mark = (self.stamp(), state.get("state"), state.get("last_checkpoint"))
        now = time.monotonic()
        if self._lost is None or self._lost[0] != mark or now - self._lost[1] > LOSS_S:
            self._lost = (mark, now, self._loss_now(state))
        return self._lost[2]

    def _loss_now(self, state: dict[str, Any]) -> tuple[str, str]:
        from engine.lease import disks
        from engine.run import status

        step = int(state.get("step") or 0)
        try:
            kept = disks.persistence(self.run.path) == "persistent"
        except FtuiError:
            kept = False
        found = status.at_risk(self.run, state) if kept else status.elsewhere(self.run)
        if found is None:  # no remote, and a disk that goes with the server
            if not step:
                return "", ""
            text = ngettext(
                "you would lose all of it: {n} step. It has no remote",
                "you would lose all of it: {n} steps. It has no remote",
                step,
            )
            return text.format(n=number(step)), "error"
        steps, seconds, price = found["steps"], found.get("seconds"), found.get("money")
        if not kept and status.state_of(state) not in status.LIVE:  # what was not saved when it ended is lost already
            saved = int((state.get("last_checkpoint") or {}).get("step") or 0)
            there = min(steps, max(0, saved - int(found.get("safe_step") or 0)))
            if there < steps:
                seconds, price = (seconds or 0.0) * there / steps, None
            steps = there
        if not steps:
            return _("you would lose no step of this run"), "good"
        parts = [ngettext("{n} step", "{n} steps", steps).format(n=number(steps))]
        if seconds:
            parts.append(duration(seconds))
        if price:
            parts.append(money(price["amount"], price["currency"]))
        nothing = not kept and found.get("safe_step") is None
        text = _("you would lose {what}").format(what=", ".join(parts))
        if nothing:
            text += _(": nothing is proved elsewhere yet")
        return text, "error" if nothing else "warning"

    def _upload(self) -> tuple[str, str]:
        from engine.backup import control, progress
        from engine.workspace import Workspace

        running = progress.read(self.run.path / "backup")
        wish = control.read(Workspace(self.run.path.parents[1]))
        if running is None:
            if wish.paused:
                return _("uploads are paused"), "warning"
            if self._remote and wish.limit:
                return _("at most {rate} a second").format(rate=gigabytes(wish.limit)), "muted"
            return "", "muted"
        done, total = running.get("bytes_done") or 0, running.get("bytes_total") or 0
        parts = [
            str(running.get("item") or ""),
            _("{done} of {total}").format(done=gigabytes(done), total=gigabytes(total)),
        ]
        if running.get("state"):
            parts.append(
                _("{state}: {reason}").format(
                    state=state_text(str(running["state"]), None, None), reason=running.get("reason") or "-"
                )
            )
            return "  ".join(filter(None, parts)), "warning"
        rate, band = running.get("rate"), running.get("eta_band_s")
        if isinstance(rate, dict):
            parts.append(_("{rate} a second").format(rate=gigabytes(rate["mid"])))
        if isinstance(band, list) and len(band) == 2:
            parts.append(_("{low} to {high} left").format(low=duration(band[0]), high=duration(band[1])))
        elif running.get("doing") == "verify":
            parts.append(_("proving"))
        if limit := running.get("limit"):
            parts.append(_("limit {rate} a second").format(rate=gigabytes(limit)))
        return "  ".join(filter(None, parts)), "muted"


def lease_strip(run: RunFolder) -> tuple[str, str]:
    """The lease in one line: how long, until when it is safe, the latest stop, what the upload takes."""
    from engine.lease import clock as lease_clock
    from engine.lease import record
    from engine.lease.autopilot import read
    from engine.text import when
    from engine.workspace import Workspace

    workspace = Workspace(run.path.parents[1])
    try:
        lease = record.read(workspace)
    except FtuiError as error:
        return error.what, "error"
    if lease is None:
        return "", "muted"
    at = lease_clock.now()
    left = lease.left(at)
    parts = [_("{time} left").format(time=duration(max(0.0, left.seconds)))]
    tone = "muted"
    known = read(workspace)
    if known is not None and known.get("runs"):
        plan = known["plan"]
        safe, latest = left.seconds - plan["need_s"], left.seconds - plan["likely_s"]
        parts.append(
            _("safe until {when}").format(when=when(at.wall + safe)) if safe > 0 else _("too late to save all")
        )
        parts.append(_("latest stop {when}").format(when=when(at.wall + latest)))
        parts.append(_("stop and upload take {time}").format(time=duration(plan["need_s"])))
        if not plan.get("measured"):
            parts.append(_("rate not measured yet"))
        tone = "error" if safe < 0 else "warning" if safe < 3600 else "muted"
    if left.moved:
        parts.append(_("the clock was moved"))
    return "  ".join(parts), tone


def _changed(path: str | os.PathLike[str]) -> tuple[int, int] | None:
    try:
        info = os.stat(path)
    except OSError:
        return None
    return (info.st_mtime_ns, info.st_size)
