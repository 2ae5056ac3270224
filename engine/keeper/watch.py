"""Watching the runs: a lost one is noticed, its leftover ranks are ended, and a notice says so."""

from __future__ import annotations

import contextlib
import shutil
import signal
import time
from dataclasses import dataclass

from engine import journal
from engine.files import Lock
from engine.run.launch import REAP_GRACE_S, leftovers
from engine.run.status import LIVE, state_of
from engine.workspace import RunFolder, Workspace

UNFINISHED_S = 3600.0


@dataclass
class _Seen:
    """What is known of a run as of one version of its state.json."""

    version: tuple[int, int]
    live: bool
    settled: bool = False
    kill_at: float | None = None


class Watch:
    """Looks at all runs; what has not changed since the last look costs one stat."""

    def __init__(self, workspace: Workspace, notices: journal.JournalWriter) -> None:
        self.workspace = workspace
        self.notices = notices
        self._seen: dict[str, _Seen] = {}

    def tidy(self) -> None:
        """Remove run folders whose making was cut short (hidden, and an hour old: nobody fills them any more)."""
        for folder in self.workspace.runs_dir.glob(".new-*"):
            with contextlib.suppress(OSError):
                if time.time() - folder.stat().st_mtime > UNFINISHED_S:
                    shutil.rmtree(folder)

    def look(self) -> int:
        """Look once; how many runs are alive or still being cleared away."""
        busy = 0
        for run in self.workspace.folders():
            try:
                info = run.state.stat()
            except OSError:
                continue
            version = (info.st_mtime_ns, info.st_ino)
            seen = self._seen.get(run.name)
            if seen is not None and seen.version == version and (seen.settled or not seen.live):
                continue
            state = run.read_state()
            claims = state.get("state") in LIVE
            if seen is None or seen.version != version:
                seen = self._seen[run.name] = _Seen(version, claims)
            if not claims:
                continue
            if state_of(state) == "lost":
                seen.settled = self._clear(run, seen)
            busy += not seen.settled
        return busy

    def _clear(self, run: RunFolder, seen: _Seen) -> bool:
        """Move a lost run towards being cleared away; True when nothing of it is left."""
        lock = Lock(run.lock)
        if not lock.acquire():
            return False  # somebody is taking it up again
        try:
            if state_of(run.read_state()) != "lost":
                return False
            left = leftovers(run)
            if seen.kill_at is None:
                seen.kill_at = time.monotonic() + REAP_GRACE_S
                self._note(run, [process.pid for process in left])
                for process in left:
                    process.send(signal.SIGTERM)  # they save, then end
                    process.send(signal.SIGCONT)  # one that was stopped, too
            elif time.monotonic() > seen.kill_at:
                for process in left:
                    process.send(signal.SIGKILL)
            return not left
        finally:
            lock.release()

    def _note(self, run: RunFolder, pids: list[int]) -> None:
        newest = journal.last(run.events) or {}
        if newest.get("event") == "lost":
            return  # an earlier keeper said so
        events = journal.JournalWriter(run.events)  # its one writer is gone, and we hold the run's lock
        try:
            events.append("lost", processes=pids)
        finally:
            events.close()
        self.notices.append("notice", kind="lost", run=run.name, path=str(run.path), processes=pids)
