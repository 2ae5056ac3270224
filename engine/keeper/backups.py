"""The keeper's part in backups: it starts the worker when a run has something new, and says when one is in trouble."""

from __future__ import annotations

import logging
import sys
import time
from pathlib import Path
from typing import Any

from engine import journal, settings
from engine.backup import control, progress, worker
from engine.backup.remote import config_of
from engine.files import read_json
from engine.process.child import Child
from engine.process.daemon import own_environment
from engine.workspace import RunFolder, Workspace

CRASH_WAIT_S = 30.0
URGENT_S = 10.0
log = logging.getLogger("engine.keeper")


class Backups:
    """Looked at every two seconds by the keeper; a run that has not changed costs a few stats."""

    def __init__(self, workspace: Workspace, notices: journal.JournalWriter) -> None:
        self.workspace = workspace
        self.notices = notices
        self._child: Child | None = None
        self._not_before = 0.0
        self._policies: dict[str, tuple[Any, bool]] = {}
        self._guarded: dict[str, list[Any]] = {}
        self._told: dict[str, str | None] = {}
        self._config: Any = None
        self.urgent = False  # the server ends: neither a pause nor a waiting time holds it back

    @property
    def working(self) -> bool:
        """Whether the worker runs."""
        return self._child is not None and self._child.running

    def look(self) -> bool:
        """Look once; whether a backup runs or is waited for, so that the keeper must stay."""
        self._poll()
        waiting = []
        for run in self.workspace.folders():
            if not self._has_policy(run):
                continue
            self._guard(run)
            self._tell(run)
            if worker.pending(run):
                waiting.append(run)
        paused = control.read(self.workspace).paused and not self.urgent
        if waiting and not paused and not self.working and time.monotonic() >= self._not_before:
            renewed = self._credentials_changed()
            now = time.time()
            if self.urgent:
                self._not_before = time.monotonic() + URGENT_S
                self._start(True)
            elif any(worker.due(run, now) or (renewed and _refused(run)) for run in waiting):
                self._start(renewed)
        return self.working or (bool(waiting) and not paused)

    def stop(self) -> None:
        """End the worker: what it was sending is aborted in order, and sent again by the next one."""
        if self._child is not None and self._child.running:
            self._child.stop()
            self._child.wait(15.0)

    def _poll(self) -> None:
        if self._child is None:
            return
        ended = self._child.poll()
        if ended is not None and not ended.ok:
            log.warning("the backup worker ended with %s", ended.signal_name or ended.code)
            # killed from outside: there is no reason to wait; ended by itself: it would again
            self._not_before = time.monotonic() + (0.0 if ended.signal else CRASH_WAIT_S)

    def _start(self, renewed: bool) -> None:
        argv = [sys.executable, "-m", "engine.backup.worker", str(self.workspace.root)]
        argv += ["--now"] if renewed else []
        self._child = Child(argv, env=own_environment(), log=self.workspace.keeper_dir / "backup.log", grace=15.0)
        try:
            self._child.start()
        except OSError as error:
            log.warning("the backup worker does not start: %s", error)
            self._not_before = time.monotonic() + CRASH_WAIT_S

    def _has_policy(self, run: RunFolder) -> bool:
        try:
            version: Any = (run.resolved.stat().st_mtime_ns, _mtime(settings.path()))
        except OSError:
            return False
        known = self._policies.get(run.name)
        if known is None or known[0] != version:
            known = self._policies[run.name] = (version, worker.policy_or_none(run) is not None)
        return known[1]

    def _guard(self, run: RunFolder) -> None:
        """A new checkpoint is protected from retention before anything else is done for it."""
        now = worker.signature(run)
        if self._guarded.get(run.name) != now and worker.guard(run):
            self._guarded[run.name] = now

    def _credentials_changed(self) -> bool:
        """Whether an rclone.conf was written to since the last look: refused credentials may be good now."""
        paths = {config_of(""), config_of("any:"), Path.home() / ".config" / "rclone" / "rclone.conf"} - {None}
        now = sorted((str(path), _mtime(path)) for path in paths)
        changed, self._config = self._config is not None and now != self._config, now
        return changed

    def _tell(self, run: RunFolder) -> None:
        """A notice when a backup gets into trouble, and when it is out of it; once each."""
        last = read_json(run.path / "backup" / worker.NOTE)
        last = last if isinstance(last, dict) else {}
        kind, reason = None, None
        if last.get("error"):
            kind = "backup_auth" if last.get("kind") == "auth_needed" else "backup_failed"
            reason = last["error"]
        running = progress.read(run.path / "backup")
        if running and running.get("state") == "STALLED":
            kind, reason = "backup_stalled", running.get("reason")
        before = self._told.get(run.name)
        if kind != before and (kind or before):
            self.notices.append("notice", kind=kind or "backup_ok", run=run.name, path=str(run.path), reason=reason)
        self._told[run.name] = kind


def _refused(run: RunFolder) -> bool:
    last = read_json(run.path / "backup" / worker.NOTE)
    return isinstance(last, dict) and last.get("kind") == "auth_needed"


def _mtime(path: Any) -> int | None:
    try:
        return int(path.stat().st_mtime_ns)
    except OSError:
        return None
