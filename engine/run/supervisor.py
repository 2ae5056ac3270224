"""The process that owns one run: `python -m engine.run.supervisor RUN`.

This module is the program: it takes supervisor.lock (a run has one supervisor at most), opens the log, says when it is
ready, and ends with the run's exit code. What it does in between is in `supervision`.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import logging.handlers
import os
import sys
from pathlib import Path

from engine.errors import FtuiError
from engine.files import Lock
from engine.process.daemon import report_failure, report_ready
from engine.run.supervision import Supervisor
from engine.text import _
from engine.workspace import RunFolder

log = logging.getLogger(__name__)


def _take_lock(run: RunFolder, inherited: int | None) -> Lock:
    lock = Lock(run.lock)
    if inherited is not None:
        lock.adopt(inherited)
    elif not lock.acquire():
        raise FtuiError(
            _("{run} has a supervisor already").format(run=run.name), where=str(run.lock), kind="already_running"
        )
    return lock


def _log_to(run: RunFolder) -> None:
    logging.raiseExceptions = False  # a full disk must not fill stderr
    run.logs.mkdir(exist_ok=True)
    handler = logging.handlers.RotatingFileHandler(run.logs / "supervisor.log", maxBytes=4 << 20, backupCount=1)
    logging.basicConfig(
        level=logging.INFO, handlers=[handler], format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )


def main(argv: list[str]) -> int:
    """Supervise the run named on the command line until it ends."""
    parser = argparse.ArgumentParser(prog="python -m engine.run.supervisor")
    parser.add_argument("run", type=Path)
    parser.add_argument("--python", help="interpreter with torch (default: as the settings say)")
    parser.add_argument("--max-restarts", type=int, default=3)
    parser.add_argument("--lock-fd", type=int, help="descriptor that already holds supervisor.lock")
    args = parser.parse_args(argv)
    run = RunFolder(args.run.absolute())
    supervisor = None
    try:
        _log_to(run)
        lock = _take_lock(run, args.lock_fd)
        for number in _inherited_gpu_locks():
            os.set_inheritable(number, False)
        if run.read_state().get("state", "starting") != "starting":  # by hand, on a run that has been
            raise FtuiError(
                _("{run} is not waiting for a supervisor").format(run=run.name),
                where=str(run.state),
                fix=_("`ftui resume {run}` takes it up again").format(run=run.name),
                kind="usage",
                exit_code=2,
            )
        supervisor = Supervisor(run, python=args.python or _training_python(), max_restarts=args.max_restarts)
        supervisor.open()
    except FtuiError as error:
        _give_up(supervisor, error)
        return error.exit_code
    except Exception as error:  # the starter shows one sentence, the log has the rest
        log.exception("cannot start")
        _give_up(supervisor, FtuiError(f"{type(error).__name__}: {error}", where=str(run.logs / "supervisor.log")))
        return 1
    report_ready()
    try:
        code = supervisor.loop()
        if supervisor.state.get("state") in ("done", "stopped"):
            from engine.run import measure  # with the planner behind it: not while the ranks need the processor

            measure.keep(run)
        return code
    except BaseException as error:
        log.exception("the supervisor failed")
        _give_up(supervisor, FtuiError(f"{type(error).__name__}: {error}", where=str(run.logs / "supervisor.log")))
        raise
    finally:
        supervisor.close()
        lock.release()


def _give_up(supervisor: Supervisor | None, error: FtuiError) -> None:
    report_failure(error)
    log.error("%s", error.what)
    if supervisor is not None:
        with contextlib.suppress(OSError):
            supervisor.finish("failed", error.to_json())


def _inherited_gpu_locks() -> list[int]:
    """The descriptors that hold the run's GPUs; open is all they need to be."""
    return [int(number) for number in os.environ.pop("FTUI_LOCK_FDS", "").split(",") if number]


def _training_python() -> str:
    from engine import settings

    return settings.training_python()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
