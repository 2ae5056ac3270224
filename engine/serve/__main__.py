"""`python -m engine.serve FOLDER`: keeps one server running. Restarts it when it dies, asks for its health, ends it."""

from __future__ import annotations

import logging
import os
import select
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

from engine.errors import FtuiError
from engine.files import Lock, write_json
from engine.process import ProcessId
from engine.process.child import Child, Exit, Health, Restart, http_probe
from engine.process.daemon import last_lines, report_failure, report_ready
from engine.serve.launch import Served

LOOK_S = 0.5
WRITE_S = 5.0
GRACE_S = 20.0  # for requests under way
log = logging.getLogger("engine.serve")


class Supervisor:
    """One server: started, watched, ended."""

    def __init__(self, served: Served) -> None:
        self.served, self.spec = served, served.spec
        self.lock = Lock(served.folder / "serve.lock")
        self.created = time.time()
        self.ready_at: float | None = None
        self.last: Exit | None = None
        self._stop, self._written, self._shown = False, 0.0, ""
        self._wakeup = -1
        url = f"http://{self.spec['host']}:{self.spec['port']}/health"
        self.child = Child(
            self.spec["argv"],
            env={**os.environ, **self.spec["env"], self.spec["key_variable"]: served.key},
            cwd=served.folder,
            log=served.log,
            grace=GRACE_S,
            health=Health(http_probe(url), every=5.0, start_timeout=float(self.spec["start_timeout"]), failures=6),
            restart=Restart(limit=3),
        )

    def open(self) -> None:
        """Become the one supervisor of this folder.

        Raises:
            FtuiError: it has one, or the server cannot be executed.
        """
        if not self.lock.acquire():
            raise FtuiError("this server has a supervisor", where=str(self.lock.path), kind="already_running")
        self._wakeup, theirs = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(theirs, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._told_to_stop)
        try:
            self.child.start()
        except OSError as error:
            raise FtuiError(str(error), where=str(self.spec["argv"][0]), kind="not_started") from error
        self.write("starting")

    def _told_to_stop(self, number: int, _frame: FrameType | None) -> None:
        log.info("%s: ending", signal.Signals(number).name)
        self._stop = True

    def loop(self) -> None:
        """Watch until it is told to end, or the server cannot be kept up."""
        while True:
            ended = self.child.poll()
            if ended is not None:
                self.last = ended
                log.info("the server ended: code %s, %s, after %.1f s", ended.code, ended.signal_name, ended.seconds)
            if self._stop and not self.child.stopping:
                self.child.stop()
            if not self.child.running and not self.child.restarting:
                break
            self.write(self._state())
            select.select([self._wakeup], [], [], LOOK_S)
        self.write("stopped" if self.child.stopping else "failed")

    def _state(self) -> str:
        if self.child.stopping:
            return "stopping"
        if self.child.restarting:
            return "restarting"
        if self.child.healthy is None:
            return "starting"
        if self.child.healthy and self.ready_at is None:
            self.ready_at = time.time()
        return "ready" if self.child.healthy else "unhealthy"

    def write(self, state: str) -> None:
        """Write state.json when something changed, and now and then."""
        if state == self._shown and time.monotonic() - self._written < WRITE_S:
            return
        self._shown, self._written = state, time.monotonic()
        process = self.child.id
        document: dict[str, Any] = {
            "format": 1,
            "state": state,
            "supervisor": ProcessId.current().to_json(),
            "pid": process.pid if process is not None and self.child.running else None,
            "created": self.created,
            "ready": self.ready_at,
            "updated": time.time(),
            "restarts": max(0, self.child.starts - 1),
            "error": self._error() if state in ("failed", "restarting") else None,
        }
        try:
            write_json(self.served.folder / "state.json", document, durable=False)
        except OSError as error:
            log.warning("state.json not written: %s", error)

    def _error(self) -> dict[str, Any]:
        """Why the last life ended, with the last words of the log."""
        ended = self.last
        how = "" if ended is None else ended.signal_name or f"exit code {ended.code}"
        return {"how": how, "lines": last_lines(self.served.log, 8)}


def main(argv: list[str]) -> int:
    """Supervise the server of the folder named on the command line."""
    served = Served(Path(argv[0]))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        supervisor = Supervisor(served)
        supervisor.open()
    except FtuiError as error:
        report_failure(error)
        return error.exit_code
    report_ready()
    supervisor.loop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
