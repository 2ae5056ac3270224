"""The keeper's part in the lease: it drives the autopilot, and lets uploads through when the end is near."""

from __future__ import annotations

import logging
import threading
from typing import Any

from engine import journal
from engine.backup import control as wishes
from engine.errors import FtuiError
from engine.keeper.backups import Backups
from engine.lease.autopilot import Autopilot
from engine.lease.gather import Gatherer
from engine.notices.channels import Courier
from engine.notices.events import Events
from engine.run import control
from engine.workspace import RunFolder, Workspace

ASK_S = 10.0
log = logging.getLogger("engine.keeper")


class LeaseWatch:
    """Looked at every two seconds by the keeper."""

    def __init__(self, workspace: Workspace, notices: journal.JournalWriter, backups: Backups) -> None:
        self.workspace = workspace
        self.notices = notices
        self.backups = backups
        self.events = Events(workspace, self._notify)
        self.courier = Courier(workspace)
        self._asking: dict[str, threading.Thread] = {}
        self._refused: dict[str, FtuiError] = {}
        self.autopilot = Autopilot(
            workspace, self._notify, works=Gatherer(workspace).works, stop=self._stop, hurry=self._hurry
        )

    def look(self) -> bool:
        """Look once; whether a lease keeps the keeper."""
        for look in (self.events.look, self.courier.look):
            try:
                look()
            except Exception:
                log.exception("a look for notices failed")
        return self.autopilot.look()

    def _notify(self, kind: str, **fields: Any) -> None:
        self.notices.append("notice", kind=kind, **fields)

    def _stop(self, name: str) -> None:
        """Ask a run to stop with a save. A supervisor that does not answer must not hold up the others: in a thread.

        Raises:
            FtuiError: it said no the last time; it is asked again.
        """
        if (refused := self._refused.pop(name, None)) is not None:
            raise refused
        asking = self._asking.get(name)
        if asking is not None and asking.is_alive():
            return

        def ask() -> None:
            try:
                control.send(RunFolder(self.workspace.runs_dir / name), "stop", ASK_S)
            except FtuiError as error:
                self._refused[name] = error

        self._asking[name] = threading.Thread(target=ask, name=f"stop {name}", daemon=True)
        self._asking[name].start()

    def _hurry(self, on: bool) -> None:
        """Nothing that was wished for calmer times holds the last uploads back."""
        if on and not self.backups.urgent:
            wish = wishes.read(self.workspace)
            if wish.paused or wish.limit:
                wishes.change(self.workspace, paused=False, limit=None)
                self._notify("backup_unpaused", reason="lease")
        self.backups.urgent = on
