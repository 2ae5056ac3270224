"""`python -m engine.keeper HOME`: the keeper of one workspace."""

from __future__ import annotations

import argparse
import logging
import logging.handlers
import os
import select
import signal
import sys
import time
from pathlib import Path
from types import FrameType

from engine import journal
from engine.errors import FtuiError
from engine.files import Lock, write_json
from engine.keeper import IDLE_S
from engine.keeper.backups import Backups
from engine.keeper.lease import LeaseWatch
from engine.keeper.watch import Watch
from engine.process import ProcessId
from engine.process.daemon import report_failure, report_ready
from engine.workspace import Workspace

LOOK_S = 2.0
HEARTBEAT_S = 10.0
log = logging.getLogger("engine.keeper")


class Keeper:
    """Looks at the runs every two seconds until it is told to end, or has had nothing to watch for a while."""

    def __init__(self, workspace: Workspace, idle: float) -> None:
        self.workspace = workspace
        self.idle = idle
        self.lock = Lock(workspace.keeper_dir / "keeper.lock")
        self.started = time.time()
        self.live_runs = 0
        self._stop = False
        self._wakeup = -1
        self._written = 0.0

    def open(self) -> None:
        """Become the workspace's keeper.

        Raises:
            FtuiError: it has one.
        """
        if not self.lock.acquire():
            raise FtuiError("this workspace has a keeper", where=str(self.lock.path), kind="already_running")
        self._wakeup, theirs = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)  # a signal ends the pause between two looks
        signal.set_wakeup_fd(theirs, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._told_to_stop)
        self.write()

    def _told_to_stop(self, number: int, _frame: FrameType | None) -> None:
        log.info("%s: ending", signal.Signals(number).name)
        self._stop = True

    def write(self, *, ended: bool = False) -> None:
        """Write state.json: who we are and that we still look."""
        self._written = time.monotonic()
        state = {
            "format": 1,
            "process": ProcessId.current().to_json(),
            "started": self.started,
            "heartbeat": time.time(),
            "live_runs": self.live_runs,
            "idle_exit_s": self.idle,
            "ended": ended,
        }
        try:
            write_json(self.workspace.keeper_dir / "state.json", state, durable=False)
        except OSError as error:
            log.warning("state.json not written: %s", error)

    def loop(self) -> None:
        """Watch."""
        notices = journal.JournalWriter(self.workspace.keeper_dir / "notices.jsonl")
        watch = Watch(self.workspace, notices)
        watch.tidy()
        backups = Backups(self.workspace, notices)
        lease = LeaseWatch(self.workspace, notices, backups)
        active = time.monotonic()
        while not self._stop and self._still_ours():
            try:
                live = watch.look()
            except Exception:
                log.exception("a look failed")  # the next one may not
                live = self.live_runs
            try:
                backing_up = backups.look()
            except Exception:
                log.exception("a look at the backups failed")
                backing_up = backups.working
            try:
                leased = lease.look()
            except Exception:
                log.exception("a look at the lease failed")
                leased = True
            if live or backing_up or leased:
                active = time.monotonic()
            elif time.monotonic() - active > self.idle:
                log.info("nothing to watch for %.0f s: ending", self.idle)
                break
            if live != self.live_runs or time.monotonic() - self._written > HEARTBEAT_S:
                self.live_runs = live
                self.write()
            select.select([self._wakeup], [], [], LOOK_S)
        backups.stop()
        self.write(ended=True)

    def _still_ours(self) -> bool:
        """Whether the lock we hold is the one that others see: the workspace may have been deleted."""
        try:
            return os.stat(self.lock.path).st_ino == os.fstat(self.lock.fileno()).st_ino
        except OSError:
            return False


def main(argv: list[str]) -> int:
    """Keep the workspace named on the command line."""
    parser = argparse.ArgumentParser(prog="python -m engine.keeper")
    parser.add_argument("home", type=Path)
    parser.add_argument("--idle", type=float, default=IDLE_S, help="end after so many seconds without a live run")
    args = parser.parse_args(argv)
    workspace = Workspace(args.home.absolute())
    try:
        workspace.prepare()
        logging.raiseExceptions = False
        handler = logging.handlers.RotatingFileHandler(
            workspace.keeper_dir / "keeper.log", maxBytes=4 << 20, backupCount=1
        )
        logging.basicConfig(level=logging.INFO, handlers=[handler], format="%(asctime)s %(levelname)s %(message)s")
        keeper = Keeper(workspace, args.idle)
        keeper.open()
    except FtuiError as error:
        report_failure(error)
        return error.exit_code
    report_ready()
    log.info("keeping %s as process %d", workspace.root, os.getpid())
    keeper.loop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
