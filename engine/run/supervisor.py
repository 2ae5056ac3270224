"""The process that owns one run: `python -m engine.run.supervisor RUN`.

It starts the ranks, watches them, answers the control socket, restarts them after a crash, and writes state.json.
One thread, one selector, no torch; nothing that a disk, a driver or a client does wrong ends it. Each supervisor holds
supervisor.lock, so a run has one at most.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import logging.handlers
import os
import selectors
import signal
import socket
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

from engine import journal
from engine.errors import FtuiError
from engine.files import Lock
from engine.process import ProcessId
from engine.process.child import Child, Exit, Restart
from engine.process.daemon import READY_FD, report_failure, report_ready
from engine.run import failure
from engine.run.place import Place
from engine.run.progress import Progress, from_checkpoint
from engine.run.requests import Requests
from engine.run.sampler import Sampler
from engine.run.server import ControlServer
from engine.run.statefile import StateFile
from engine.text import _
from engine.train import launcher
from engine.workspace import RunFolder

TICK_S = 0.2
STOP_NOW_GRACE_S = 5.0
LEFTOVER_GRACE_S = 90.0  # ranks whose launcher was killed save and end by themselves
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
log = logging.getLogger(__name__)


class Supervisor:
    """One run from the start of its ranks to its end."""

    def __init__(self, run: RunFolder, *, python: str, max_restarts: int) -> None:
        self.run = run
        self.python = python
        self.restart = Restart(max_restarts, first=1.0, longest=60.0)
        self.selector = selectors.DefaultSelector()
        self.server = ControlServer(run, self.selector, self._handle)
        self.state = StateFile(run)
        self.sampler = Sampler(run)
        self.requests = Requests(run)
        self.events: journal.JournalWriter | None = None
        self.reader = journal.JournalReader(run.journal, run.journal.stat().st_size if run.journal.exists() else 0)
        self.progress = Progress(run, self.attempt)
        self.child: Child | None = None
        self.stopping: str | None = None  # "stop" or "stop_now"
        self.restart_at: float | None = None
        self.crashed_at: int | None = -1  # the step of the crash before; None: before training began; -1: no crash
        self.exit_code: int | None = None
        self._signals: list[int] = []
        self.place = Place(run)

    @property
    def attempt(self) -> int:
        return int(self.state.get("attempt") or 1)

    # Start

    def open(self) -> None:
        """Everything that must stand before the starter is told that the run runs.

        Raises:
            FtuiError: the ranks cannot be started at all.
        """
        self._catch_signals()
        try:
            self.events = journal.JournalWriter(self.run.events)
        except OSError as error:
            log.warning("events.jsonl: %s", error)
        control = None
        try:
            control = str(self.server.open())
        except (OSError, FtuiError) as error:  # signals still reach us
            log.warning("no control socket: %s", error)
        self.state.set(
            supervisor=ProcessId.current().to_json(),
            path=str(self.run.path),
            control=control,
            error=None,
            exit_code=None,
            ended=None,
        )
        self.event("supervisor_started", pid=os.getpid())
        resumed_from = self.state.get("resumed_from")
        self._launch(Path(resumed_from) if resumed_from else None)

    def _catch_signals(self) -> None:
        ours, theirs = socket.socketpair()
        for end in (ours, theirs):
            end.setblocking(False)
        self._wakeup = (ours, theirs)
        signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        self.selector.register(ours, selectors.EVENT_READ, lambda _mask: ours.recv(4096))

        def remember(number: int, _frame: FrameType | None) -> None:
            self._signals.append(number)

        for number in STOP_SIGNALS:
            signal.signal(number, remember)

    def _launch(self, checkpoint: Path | None) -> None:
        gpus = list(self.state.get("gpus") or [])
        argv, env = launcher.command(
            self.run,
            python=self.python,
            nproc=int(self.state.get("world_size") or 1),
            attempt=self.attempt,
            resume_from=checkpoint,
            gpus=gpus,
            base={key: value for key, value in os.environ.items() if key != READY_FD},
        )
        self.requests.reset()
        self.progress = Progress(self.run, self.attempt)
        self.child = Child(
            argv,
            env=env,
            cwd=self.run.path,
            log=self.run.logs / "launcher.log",
            grace=LEFTOVER_GRACE_S,
        )
        try:
            process = self.child.start()
        except OSError as error:
            raise FtuiError(
                _("the training program cannot be started: {reason}").format(reason=error.strerror or error),
                where=argv[0],
                fix=_("set FTUI_PYTHON to the Python of an environment with torch; `ftui doctor` checks it"),
                kind="usage",
                exit_code=2,
            ) from error
        now = time.time()
        self.state.set(
            state="starting", phase="load", launcher=process.to_json(), started=self.state.get("started") or now
        )
        self.event("launched", attempt=self.attempt, command=argv, gpus=gpus)
        self.state.flush(durable=True)

    # The loop

    def loop(self) -> int:
        """Serve until the run has ended; its exit code."""
        while self.exit_code is None:
            for key, mask in self.selector.select(TICK_S):
                key.data(mask)
            while self._signals:
                number = self._signals.pop(0)
                self.event("signal", name=signal.Signals(number).name)
                self._stop("stop")
            if self.exit_code is None:
                self._tick()
        return self.exit_code

    def _tick(self) -> None:
        if not (in_place := self.place.look()):  # then nothing may be written: the path may be another run's
            if in_place is False:
                self._leave_moved_folder()
            return
        self._read_journal()
        if self.child is not None and (ended := self.child.poll()) is not None:
            self._read_journal(to_end=True)
            self._ended(ended)
        elif self.restart_at is not None and time.monotonic() >= self.restart_at:
            self._again()
        if self.progress.started and self.stopping != "stop_now":
            self.requests.send_next(self.progress.answered)
        process = self.child.id if self.child is not None else None
        for event in self.sampler.tick(process.pid if process else None):
            self.event(**event)
        if self.server.tick():
            self.state.set(control=str(self.server.path))
        self.state.tick()

    def _leave_moved_folder(self) -> None:
        """End: the ranks write to paths that are gone. Where the folder was only renamed, its state.json says why."""
        log.error("the run's folder is gone from %s", self.run.path)
        self._end_ranks()
        self.state.run = self.place.now()
        error = FtuiError(
            _("the run's folder was renamed, moved or deleted while it ran"),
            where=str(self.run.path),
            fix=_("`ftui resume RUN`, by its new name, goes on from the newest checkpoint"),
            kind="moved",
        )
        self.finish("failed", error.to_json())

    def _read_journal(self, *, to_end: bool = False) -> None:
        was_running = self.progress.started
        self.progress.take(self.reader.all() if to_end else self.reader.poll())
        if self.progress.started and not was_running:
            self.event("running", attempt=self.attempt, step=self.progress.step)
            self.state.set(error=None)  # of the attempt before
        for news in self.progress.news:
            self.event(**news)
        self.progress.news.clear()
        self.state.set(**self.progress.take_changes())

    def event(self, event: str, **fields: Any) -> None:
        """Note what happened; a full disk loses the note, not the run."""
        try:
            if self.events is not None:
                self.events.append(event, **fields)
        except OSError as error:
            log.warning("event %s not written: %s", event, error)

    # Requests

    def _handle(self, do: str, pid: int) -> dict[str, Any]:
        if do == "status":
            return {"ok": True, "state": self.state.fields}
        self.event("control", do=do, **{"from": pid})
        if do in ("stop", "stop_now"):
            number = self._stop(do)
        elif self.stopping:
            raise FtuiError(_("the run is stopping"), fix=_("`ftui resume` goes on from where it stopped"))
        else:
            number = self.requests.add(do)
        return {"ok": True, "do": do, "id": number, "state": "requested"}

    def _stop(self, how: str) -> int | None:
        if self.stopping == "stop_now" or self.stopping == how:
            return self.requests.last_id
        self.stopping = how
        self._read_journal()
        if self.child is None or not self.child.running:
            self.finish("stopped")
            return None
        if how == "stop" and self.progress.started:
            return self.requests.add("stop", first=True)
        self.child.stop(grace=STOP_NOW_GRACE_S)  # told not to wait, or nothing to save yet
        return None

    # Ends

    def _ended(self, ended: Exit) -> None:
        outcome = self.progress.outcome
        self.event("rank_exit", attempt=self.attempt, code=ended.code, signal=ended.signal_name)
        log.info(
            "attempt %d ended: code %s, signal %s, outcome %s", self.attempt, ended.code, ended.signal_name, outcome
        )
        if outcome == "done" or (outcome == "stopped" and (self.stopping or ended.ok)):
            self.finish(outcome)  # not a stop: ranks whose launcher was killed, or whose neighbor crashed, save and end
        elif self.stopping == "stop_now" or (self.stopping and not self.progress.started):
            self.finish("stopped")
        else:
            self._crashed(ended)

    def _crashed(self, ended: Exit) -> None:
        error = failure.explain(self.run, self.attempt, ended)
        step = self.progress.step if self.progress.started else None
        hopeless = step == self.crashed_at or (step is None and self.crashed_at == -1)
        self.crashed_at = step
        if self.stopping or hopeless or failure.is_final(error):
            self.finish("failed", error)
            return
        delay = self.restart.next_delay(ended.seconds)
        if delay is None:
            self.finish("failed", error)
            return
        self.restart_at = time.monotonic() + delay
        self.state.set(state="starting", phase="load", error=error, launcher=None, eta_s=None, tokens_per_s=None)
        self.state.flush(durable=True)

    def _again(self) -> None:
        from engine.checkpoint import ledger

        self.restart_at = None
        entry = ledger.newest(self.run.checkpoints)
        self.state.set(
            attempt=self.attempt + 1,
            restarts=int(self.state.get("restarts") or 0) + 1,
            **from_checkpoint(self.run, entry),
        )
        self.event(
            "restart",
            attempt=self.attempt,
            resumed_from=str(entry.path) if entry else None,
            skipped=[f"{found.path.name}: {found.problem}" for found in ledger.problems(self.run.checkpoints)],
        )
        try:
            self._launch(entry.path if entry else None)
        except FtuiError as error:
            self.finish("failed", error.to_json())

    def finish(self, state: str, error: dict[str, Any] | None = None) -> None:
        """The run ends as `state`; the exit code 75 promises that a resume loses nothing."""
        progress = self.progress
        saved = progress.saved_step == progress.step if progress.started else bool(self.state.get("resumed_from"))
        code = {"done": 0, "stopped": 75 if saved else 1}.get(state)
        self.exit_code = code if code is not None else int((error or {}).get("exit_code") or 1)
        self.state.set(
            state=state,
            phase=None,
            error=error,
            exit_code=self.exit_code,
            ended=time.time(),
            eta_s=None,
            tokens_per_s=None,
            launcher=None,
            control=None,
        )
        self.event(state, step=self.state.get("step"), **({"error": error} if error else {}))
        self.state.flush(durable=True)

    def close(self) -> None:
        """Let go of everything."""
        self._end_ranks()
        self.server.close()
        self.sampler.close()
        if self.events is not None:
            self.events.close()

    def _end_ranks(self) -> None:
        if self.child is not None and self.child.running:
            self.child.stop(grace=STOP_NOW_GRACE_S)
            self.child.wait(STOP_NOW_GRACE_S + 5)


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
