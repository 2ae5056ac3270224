"""`python -m engine.backup.worker HOME`: the backups of a workspace in the background, one run after another.

The keeper starts it when something is to be done. It ends when nothing is left, or when all that is left has to wait;
what it found out stands in each run's backup/pass.json. Killing it loses nothing: the next one reconciles.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

from engine.backup import control, items, protect
from engine.backup.backup import Pass, run_lock
from engine.backup.jobs import AuthNeeded, Limits
from engine.backup.ledger import Ledger
from engine.backup.policy import Policy
from engine.backup.progress import Progress
from engine.backup.rclone import Daemon
from engine.backup.remote import config_of
from engine.backup.status import policy_of
from engine.errors import FtuiError
from engine.files import read_json, write_json
from engine.workspace import RunFolder, Workspace

NOTE = "pass.json"
RETRY_S = (30.0, 60.0, 120.0, 300.0, 600.0)
AUTH_RETRY_S = 60.0
log = logging.getLogger("engine.backup")


def signature(run: RunFolder) -> list[Any]:
    """What changes when a run has something new to be backed up; costs a few stats."""
    parts: list[Any] = []
    paths = [run.checkpoints, run.final, run.resolved, run.path / "pins.json"]
    state = run.read_state().get("state")
    ended = state in ("done", "failed", "stopped")
    parts.append(state if ended else "live")
    if ended:  # what is still written then is the last word: reports, a drill, how it ended
        paths += [run.journal, run.events, run.state, *(run.path / name for name in items.REPORTS)]
    for path in paths:
        try:
            parts.append(path.stat().st_mtime_ns)
        except OSError:
            parts.append(None)
    return parts


def due(run: RunFolder, now: float) -> bool:
    """Whether a pass over the run has something to do now."""
    last = read_json(run.path / "backup" / NOTE)
    if not isinstance(last, dict):
        return policy_or_none(run) is not None
    if last.get("signature") != signature(run):
        return policy_or_none(run) is not None
    retry = last.get("retry_at")
    return isinstance(retry, int | float) and now >= retry


def pending(run: RunFolder) -> bool:
    """Whether the run waits for another pass, now or later."""
    last = read_json(run.path / "backup" / NOTE)
    if isinstance(last, dict) and last.get("signature") == signature(run):
        return last.get("retry_at") is not None
    return policy_or_none(run) is not None


def policy_or_none(run: RunFolder) -> Policy | None:
    """The run's policy; None also where it is wrong: `ftui backup status` says so."""
    try:
        return policy_of(run)
    except FtuiError:
        return None


class Worker:
    """Works through the runs of a workspace."""

    def __init__(self, workspace: Workspace, *, now: bool = False) -> None:
        self.workspace = workspace
        self.now = now  # also what waits for its time, once
        self.daemons: dict[Path | None, Daemon] = {}
        self.watch: control.StepWatch | None = None
        self._rate: float | None = None

    def go(self) -> int:
        """Pass over every run that is due, until none is; how many passes were made."""
        passes = 0
        try:
            while True:
                if control.read(self.workspace).paused:
                    return passes
                at = float("inf") if self.now else time.time()
                self.now = False
                waiting = [run for run in self.workspace.runs() if due(run, at)]
                if not waiting:
                    return passes
                for run in waiting:  # the newest first: its work is the one that is not elsewhere yet
                    passes += self._one(run)
        finally:
            for daemon in self.daemons.values():
                daemon.stop()

    def _one(self, run: RunFolder) -> int:
        lock = run_lock(run)
        if not lock.acquire():
            _note(run, None, retry=RETRY_S[0])  # `ftui backup now` is at it
            return 0
        before = signature(run)
        failures = int((read_json(run.path / "backup" / NOTE) or {}).get("failures") or 0)
        try:
            policy = policy_of(run)
            if policy is None:
                _note(run, before)
                return 0
            self.watch, self._rate = control.StepWatch(run.journal, time.time()), None
            limits = Limits(look=self._look)
            daemon = self._daemon(policy)
            outcome = Pass(self.workspace, run, policy, daemon, limits=limits, on_progress=self._told).go()
            log.info("%s: sent %d bytes in %.1f s, ok %s", run.name, outcome.sent_bytes, outcome.seconds, outcome.ok)
            for problem in outcome.problems:
                log.warning("%s: %s", run.name, problem)
            if outcome.ok:
                _note(run, before)
            else:
                _note(
                    run, before, retry=_wait(failures), failures=failures + 1, error="; ".join(outcome.problems)[:500]
                )
        except FtuiError as error:
            log.warning("%s: %s", run.name, error.what)
            wait = AUTH_RETRY_S if isinstance(error, AuthNeeded) else _wait(failures)
            _note(run, before, retry=wait, failures=failures + 1, error=error.what, kind=error.kind)
            self._forget_daemons()  # new credentials are read at the next start
        except OSError as error:
            log.exception("%s: a pass failed", run.name)
            _note(run, before, retry=_wait(failures), failures=failures + 1, error=str(error))
        finally:
            lock.release()
        return 1

    def _told(self, progress: Progress) -> None:
        """Keep the rate: the limit that spares training begins from it."""
        band = progress.rate.band()
        self._rate = band.mid if band is not None else self._rate

    def _look(self) -> tuple[bool, float | None]:
        """Paused or not, and the limit: the user's wish, and what training needs."""
        wish = control.read(self.workspace)
        limits = [wish.limit] if wish.limit else []
        if self.watch is not None and (slow := self.watch.look(time.time(), self._rate)):
            limits.append(slow)
        return wish.paused, min(limits) if limits else None

    def _daemon(self, policy: Policy) -> Daemon:
        config = config_of(policy.remote)
        if config not in self.daemons:
            self.daemons[config] = Daemon(config, log=self.workspace.keeper_dir / "rclone.log")
            self.daemons[config].start()
        self.daemons[config].ensure()
        return self.daemons[config]

    def _forget_daemons(self) -> None:
        for daemon in self.daemons.values():
            daemon.stop()
        self.daemons.clear()


def _wait(failures: int) -> float:
    return RETRY_S[min(failures, len(RETRY_S) - 1)]


def _note(run: RunFolder, seen: list[Any] | None, *, retry: float | None = None, **more: Any) -> None:
    document = {
        "format": 1,
        "time": time.time(),
        "signature": signature(run) if seen is None else seen,
        "retry_at": None if retry is None else time.time() + retry,
        **more,
    }
    try:
        write_json(run.path / "backup" / NOTE, document, durable=False)
    except OSError as error:
        log.warning("pass.json not written: %s", error)


def guard(run: RunFolder) -> bool:
    """Protect what is wanted and not proved, before any byte is sent; False while a pass does that itself."""
    policy = policy_or_none(run)
    if policy is None or not run.checkpoints.is_dir():
        return True
    lock = run_lock(run)
    if not lock.acquire():
        return False
    try:
        ledger = Ledger(run.path / "backup", policy.remote)
        protect.update(run, policy, ledger, items.wanted(run, policy, ledger))
    finally:
        lock.release()
    return True


def _ended(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def main(argv: list[str]) -> int:
    """Back up the workspace named on the command line."""
    parser = argparse.ArgumentParser(prog="python -m engine.backup.worker")
    parser.add_argument("home", type=Path)
    parser.add_argument("--now", action="store_true", help="do not wait until a failed pass may be tried again")
    args = parser.parse_args(argv)
    workspace = Workspace(args.home.absolute())
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _ended)
    control.lower_priority()
    log.info("backing up %s as process %d", workspace.root, os.getpid())
    Worker(workspace, now=args.now).go()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
