"""Supervised child processes: the ranks' launcher, serving engines, the rclone daemon.

No threads, no waiting: the owner calls `Child.poll()` from a loop of its own.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.process import ProcessId, die_with_parent, marked, prctl

MARK = "FTUI_CHILD"
LOG_LIMIT = 16 * 1024 * 1024
STRAY_CHECK_S = 0.1  # a look at all processes costs some milliseconds


@dataclass(frozen=True)
class Exit:
    """How a process ended: a code, or the signal that ended it."""

    code: int | None
    signal: int | None
    seconds: float

    @property
    def ok(self) -> bool:
        return self.code == 0

    @property
    def signal_name(self) -> str | None:
        """For example SIGKILL."""
        if self.signal is None:
            return None
        try:
            return signal.Signals(self.signal).name
        except ValueError:
            return f"signal {self.signal}"


class Restart:
    """How often something may be started again, and after how long: the delay doubles up to `longest`.

    A life longer than `forgive_after` clears the count: what crashed once a day is not what crashes in a loop.
    """

    def __init__(self, limit: int = 3, *, first: float = 1.0, longest: float = 60.0, forgive_after: float = 3600.0):
        self.limit = limit
        self.first = first
        self.longest = longest
        self.forgive_after = forgive_after
        self.count = 0

    def next_delay(self, lived: float) -> float | None:
        """Seconds to wait before the next start; None when it has been tried often enough."""
        if lived > self.forgive_after:
            self.count = 0
        if self.count >= self.limit:
            return None
        self.count += 1
        return float(min(self.longest, self.first * 2 ** (self.count - 1)))


@dataclass(frozen=True)
class Health:
    """A probe of a running child: `check` says whether it answers; it must return within about a second."""

    check: Callable[[], bool]
    every: float = 5.0
    start_timeout: float = 60.0  # until it answered for the first time
    failures: int = 3  # in a row, afterwards


def http_probe(url: str, *, socket: Path | None = None, timeout: float = 1.0) -> Callable[[], bool]:
    """A health check by HTTP, over TCP or a Unix socket: any answer below 500 is health."""

    def check() -> bool:
        import httpx

        try:
            transport = httpx.HTTPTransport(uds=str(socket) if socket else None)
            with httpx.Client(transport=transport, timeout=timeout, trust_env=False) as client:
                return client.get(url).status_code < 500
        except httpx.HTTPError:
            return False

    return check


class Child:
    """A supervised child process in a process group of its own (a session of its own where asked).

    It ends with its supervisor (PDEATHSIG), writes its output straight into a log that is rotated, is probed for
    health and started again where a policy says so. `poll()` drives all of it and returns an `Exit` once per life,
    only after the whole group and every stray descendant (found by a mark in the environment) is gone.

    The kernel ties PDEATHSIG to the thread that starts the child: call `start` and `poll` from the main thread.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        log: Path | None = None,
        log_limit: int = LOG_LIMIT,
        new_session: bool = False,
        death_signal: int = signal.SIGTERM,
        grace: float = 10.0,
        mark: tuple[str, str] | None = None,
        health: Health | None = None,
        restart: Restart | None = None,
    ) -> None:
        self.argv = list(argv)
        self.env = dict(os.environ if env is None else env)
        self.cwd = cwd
        self.log = log
        self.log_limit = log_limit
        self.new_session = new_session
        self.death_signal = death_signal
        self.grace = grace
        self.mark = mark or (MARK, uuid.uuid4().hex)
        self.health = health
        self.restart = restart
        self.id: ProcessId | None = None
        self.healthy: bool | None = None
        self.starts = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._result: Exit | None = None  # the main process ended; descendants may not have
        self._stop_asked = False
        self._kill_at: float | None = None
        self._start_at: float | None = None
        self._started = self._checked = self._swept = 0.0
        self._failures = 0

    @property
    def running(self) -> bool:
        """Whether any of it may still be alive."""
        return self._process is not None

    @property
    def restarting(self) -> bool:
        """Whether it waits for its next start."""
        return self._start_at is not None

    @property
    def stopping(self) -> bool:
        """Whether it was told to stop."""
        return self._stop_asked

    def start(self) -> ProcessId:
        """Start the program.

        Raises:
            OSError: it cannot be executed, or the log cannot be opened.
        """
        assert self._process is None, "already running"
        parent = os.getpid()
        prctl()  # loaded before the fork: between fork and exec nothing may be imported
        output: int = subprocess.DEVNULL
        if self.log is not None:
            self.log.parent.mkdir(parents=True, exist_ok=True)
            output = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            self._process = subprocess.Popen(
                self.argv,
                env={**self.env, self.mark[0]: self.mark[1]},
                cwd=self.cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=self.new_session,
                process_group=None if self.new_session else 0,
                preexec_fn=lambda: die_with_parent(self.death_signal, parent),  # noqa: PLW1509 - owners have no threads
            )
        finally:
            if output >= 0:
                os.close(output)
        self.id = ProcessId.of(self._process.pid)
        self.starts += 1
        self._started = self._checked = time.monotonic()
        self._result, self._kill_at, self._start_at, self._failures = None, None, None, 0
        self.healthy = None if self.health else True
        return self.id

    def stop(self, *, grace: float | None = None, number: int = signal.SIGTERM) -> None:
        """Ask the group to end; `poll` KILLs what is left after `grace` seconds. Cancels a restart."""
        self._stop_asked = True
        self._start_at = None
        self._end(self.grace if grace is None else grace, number)

    def send(self, number: int) -> None:
        """Send a signal to the whole group."""
        if self._process is not None and self._result is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def _end(self, grace: float, number: int = signal.SIGTERM) -> None:
        if self._process is None:
            return
        deadline = time.monotonic() + grace
        self._kill_at = deadline if self._kill_at is None else min(self._kill_at, deadline)
        self.send(number)
        if self._result is not None:
            for stray in self.strays():
                stray.send(number)

    def strays(self) -> list[ProcessId]:
        """Live descendants beside the main process, in whatever group, session or parentage."""
        main = self._process.pid if self._process is not None and self._result is None else None
        return [process for process in marked(*self.mark) if process.pid != main]

    def poll(self) -> Exit | None:
        """Move on; the result of a life that has fully ended since the last call, else None."""
        now = time.monotonic()
        if self._process is None:
            if self._start_at is not None and now >= self._start_at:
                self._restart()
            return None
        if self._result is None and (code := self._process.poll()) is not None:
            seconds = now - self._started
            self._result = Exit(code, None, seconds) if code >= 0 else Exit(None, -code, seconds)
            if strays := self.strays():
                self._kill_at = min(self._kill_at or now + self.grace, now + self.grace)
                for stray in strays:
                    stray.send(signal.SIGTERM)
        if self._result is not None:
            return self._finish(now)
        if self._kill_at is not None and now >= self._kill_at:
            self.send(signal.SIGKILL)
        elif self._kill_at is None and self.health is not None:
            self._probe(self.health, now)
        self._rotate()
        return None

    def wait(self, timeout: float) -> Exit | None:
        """Poll until a life has ended; None after `timeout` seconds. Blocks."""
        deadline = time.monotonic() + timeout
        while (ended := self.poll()) is None and time.monotonic() < deadline:
            time.sleep(0.02)
        return ended

    def _finish(self, now: float) -> Exit | None:
        if now - self._swept < STRAY_CHECK_S:
            return None
        self._swept = now
        if strays := self.strays():
            if self._kill_at is not None and now >= self._kill_at:
                for stray in strays:
                    stray.send(signal.SIGKILL)
            return None
        result, self._process = self._result, None
        self._rotate()
        if self.restart is not None and result is not None and not self._stop_asked:
            delay = self.restart.next_delay(result.seconds)
            self._start_at = None if delay is None else now + delay
        return result

    def _restart(self) -> None:
        try:
            self.start()
        except OSError:
            assert self.restart is not None
            delay = self.restart.next_delay(0.0)
            self._start_at = None if delay is None else time.monotonic() + delay

    def _probe(self, health: Health, now: float) -> None:
        every = health.every if self.healthy else min(health.every, 0.5)
        if now - self._checked < every:
            return
        self._checked = now
        if health.check():
            self.healthy, self._failures = True, 0
            return
        self._failures += 1
        too_late = self.healthy is None and now - self._started > health.start_timeout
        if too_late or (self.healthy is not None and self._failures >= health.failures):
            self._end(self.grace)
        if self.healthy is not None:
            self.healthy = False

    def _rotate(self) -> None:
        """Copy and truncate: the child holds the file open in append mode, so a rename would not move it over."""
        if self.log is None:
            return
        with contextlib.suppress(OSError):
            if self.log.stat().st_size > self.log_limit:
                shutil.copyfile(self.log, self.log.with_name(self.log.name + ".1"))
                os.truncate(self.log, 0)
