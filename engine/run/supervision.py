"""One run from the start of its ranks to its end: starts them, watches them, answers, starts them again.

One thread, one selector, no torch; nothing that a disk, a driver or a client does wrong ends it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import signal
import socket
import time
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

from engine import journal
from engine.errors import FtuiError
from engine.process import ProcessId
from engine.process.child import Child, Exit
from engine.process.daemon import READY_FD
from engine.run import failure
from engine.run.choice import Choice
from engine.run.guard import KINDS, LossGuard, Trip
from engine.run.place import Place
from engine.run.progress import Progress, from_checkpoint
from engine.run.recovery import Recovery, Search
from engine.run.requests import Requests
from engine.run.sampler import Sampler
from engine.run.server import ControlServer
from engine.run.statefile import StateFile
from engine.run.watchdog import Watchdog
from engine.text import _
from engine.train import byhand, launcher
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
        recipe = run.read_resolved().get("recipe") or {}
        self.guard = LossGuard(recipe)
        self.watchdog = Watchdog(run, recipe, python)
        self.recovery = Recovery(max_restarts, self.guard.settings["max_rollbacks"])
        self.search: Search | None = None  # for the checkpoint of the next attempt
        self.restart_at = 0.0
        self.ending: dict[str, Any] | None = None  # the error for which we ended the attempt
        self.rolled_back = False
        self.reason: dict[str, Any] | None = None  # why we asked for a stop
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
        with contextlib.suppress(OSError):  # a full disk: the ranks will say so
            byhand.write(self.run, argv, env, int(self.state.get("world_size") or 1))
        self.requests.reset()
        self.watchdog = Watchdog(self.run, self.guard.settings, self.python)
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
        elif self.search is not None and time.monotonic() >= self.restart_at:
            self._again(self.search)
        self._watch()
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
        events = list(self.reader.all()) if to_end else self.reader.poll()
        self.progress.take(events)
        if self.progress.started and not was_running:
            self.event("running", attempt=self.attempt, step=self.progress.step)
            self.state.set(error=None)  # of the attempt before
        for news in self.progress.news:
            self.event(**news)
        self.progress.news.clear()
        self.state.set(**self.progress.take_changes())
        for event in events:
            if event.get("attempt", self.attempt) != self.attempt:
                continue
            self.watchdog.take(event)
            if event.get("event") == "save" and self.ending is None:  # else of the attempt that is to be forgotten
                self.recovery.saved()
            if (trip := self.guard.take(event)) is not None:
                self._tripped(trip)

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
        self.watchdog.close()
        self.event("rank_exit", attempt=self.attempt, code=ended.code, signal=ended.signal_name)
        log.info(
            "attempt %d ended: code %s, signal %s, outcome %s", self.attempt, ended.code, ended.signal_name, outcome
        )
        if outcome == "done" or (outcome == "stopped" and (self.stopping or ended.ok)):
            # Not a stop: ranks whose launcher was killed, or whose neighbor crashed, save and end.
            self.finish(outcome, self.reason if outcome == "stopped" else None)
        elif self.stopping == "stop_now" or (self.stopping and not self.progress.started):
            self.finish("stopped")
        else:
            self._crashed(ended)

    def _crashed(self, ended: Exit) -> None:
        step = self.progress.step if self.progress.started else None
        if self.ending is not None:
            step = self.ending.get("step", step)  # where it began: what was read of the journal may be further on
        error, self.ending = self.ending or failure.explain(self.run, self.attempt, ended), None
        if error.get("kind") == KINDS["nan"] and not self.rolled_back and self.guard.settings["on_nan"] == "rollback":
            self.rolled_back = self.recovery.rollback(step or 0)
        rolled_back, self.rolled_back = self.rolled_back, False
        if self.stopping:
            self.finish("failed", error)
            return
        delay, reason = self.recovery.after_crash(error, step, ended.seconds, rolled_back=rolled_back)
        if delay is None:
            self.event("given_up", attempt=self.attempt, step=step, reason=reason)
            self.finish("failed", {**error, "given_up": reason})
            return
        self.restart_at = time.monotonic() + delay
        self.search = Search(self.run.checkpoints, self.recovery.at_most)
        self.state.set(state="starting", phase="load", error=error, launcher=None, eta_s=None, tokens_per_s=None)
        self.state.flush(durable=True)

    def _again(self, search: Search) -> None:
        """The next attempt, once it is known where it goes on from."""
        found: tuple[Choice | None, list[str]] | None
        try:
            found = search.result()
        except Exception as error:
            log.exception("the checkpoints cannot be read")
            self.finish("failed", {**_plain(error), "where": str(self.run.checkpoints)})
            return
        if found is None:
            return
        self.search = None
        chosen, skipped = found
        entry = chosen.entry if chosen is not None else None
        self.state.set(
            attempt=self.attempt + 1,
            restarts=int(self.state.get("restarts") or 0) + 1,
            **from_checkpoint(self.run, entry),
        )
        self.event(
            "restart", attempt=self.attempt, resumed_from=str(entry.path) if entry else None, skipped=skipped,
            exact=chosen.exact if chosen else None,
        )  # fmt: skip
        try:
            self._launch(entry.path if entry else None)
        except FtuiError as error:
            self.finish("failed", error.to_json())

    # Watching over the training

    def _tripped(self, trip: Trip) -> None:
        """The loss guard saw something: say it, and do what the recipe wants done then."""
        self.event("guard", **asdict(trip))
        if trip.action == "warn" or self.stopping or self.ending is not None:
            return
        if trip.action == "rollback" and self.recovery.rollback(trip.back_to):
            self.rolled_back = True
            self._end_hard(trip.error())
        elif trip.what == "nan":
            self._end_hard(trip.error())
        else:
            self.reason = trip.error()
            self._stop("stop")

    def _watch(self) -> None:
        """Ranks that hang: note where they stand, then end them; the rest is that of a crash."""
        if self.child is None or not self.child.running or self.ending is not None:
            return
        events, error = self.watchdog.tick(self.child.id, self.attempt, self.progress.step)
        for event in events:
            self.event(**event)
        if error is not None:
            self._end_hard(error)

    def _end_hard(self, error: dict[str, Any]) -> None:
        """End the attempt without a word to the ranks: on TERM they would save what is not to be kept, or not react."""
        self.ending = error
        assert self.child is not None
        for stray in self.child.strays():
            stray.send(signal.SIGKILL)
        self.child.stop(grace=0.0)

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
        self.watchdog.close()
        self._end_ranks()
        self.server.close()
        self.sampler.close()
        if self.events is not None:
            self.events.close()

    def _end_ranks(self) -> None:
        if self.child is not None and self.child.running:
            self.child.stop(grace=STOP_NOW_GRACE_S)
            self.child.wait(STOP_NOW_GRACE_S + 5)


def _plain(error: Exception) -> dict[str, Any]:
    return {"kind": "failed", "message": f"{type(error).__name__}: {error}"[:300], "fix": None, "exit_code": 1}
