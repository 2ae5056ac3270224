"""A notice that the server goes soon: a file that appears, or a command that begins to succeed (never by a shell)."""

from __future__ import annotations

import contextlib
import re
import shlex
import subprocess
import time
from pathlib import Path
from typing import Any

from engine import settings
from engine.errors import FtuiError
from engine.files import read_json, write_json
from engine.lease import when
from engine.lease.clock import Now
from engine.workspace import Workspace

NAME = "preemption.json"
EVERY_S = 5.0
TIMEOUT_S = 10.0
OVER_S = 600.0
LARGEST = 4096


class Preemption:
    """Asks for the notice every five seconds, without waiting for a command that hangs.

    A notice once seen stands until its time is over, also after a restart of the keeper.
    """

    def __init__(self, workspace: Workspace) -> None:
        self.path = workspace.keeper_dir / NAME
        self._child: subprocess.Popen[bytes] | None = None
        self._started = 0.0
        self._asked = -EVERY_S
        self._until: float | None = None
        self._known = False

    def look(self, at: Now) -> float | None:
        """When the server goes, by CLOCK_BOOTTIME; None while there is no notice."""
        if not self._known:
            self._known = True
            value = read_json(self.path)
            if isinstance(value, dict) and value.get("boot_id") == at.boot_id:
                self._until = float(value["until"])
        if self._until is not None and at.boottime - self._until < OVER_S:
            return self._until
        if self._until is not None:  # the server is still here: it was taken back, or is said again
            self._until = None
            self.path.unlink(missing_ok=True)
        answer = self._command_ended()
        if answer is None and at.boottime - self._asked >= EVERY_S:
            self._asked = at.boottime
            known = _settings()
            if known is None:
                return None
            answer = _file(known.preempt_file)
            if answer is None and known.preempt_command and self._child is None:
                self._start(known.preempt_command)
        if answer is None:
            return None
        known = _settings()
        seconds = _seconds(answer, at.wall)
        self._until = at.boottime + (seconds if seconds is not None else known.preempt_seconds if known else 120.0)
        with contextlib.suppress(OSError):
            write_json(self.path, {"format": 1, "boot_id": at.boot_id, "until": self._until, "seen": at.wall})
        return self._until

    def _start(self, command: str) -> None:
        try:
            argv = shlex.split(command)
            self._child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            self._started = time.monotonic()
        except (OSError, ValueError):
            self._child = None  # `ftui lease show` says that it cannot be run

    def _command_ended(self) -> str | None:
        """What the command printed when it succeeded; None while it runs, or when it says no."""
        if self._child is None:
            return None
        if self._child.poll() is None:
            if time.monotonic() - self._started > TIMEOUT_S:
                self._child.kill()
            return None
        child, self._child = self._child, None
        assert child.stdout is not None
        with child.stdout:
            text = child.stdout.read(LARGEST).decode(errors="replace")
        return text if child.returncode == 0 else None


def _settings() -> Any:
    try:
        return settings.load()
    except FtuiError:
        return None


def _file(path: str | None) -> str | None:
    if not path:
        return None
    try:
        with open(Path(path).expanduser(), encoding="utf-8", errors="replace") as file:
            return file.read(LARGEST)
    except (OSError, RuntimeError):
        return None


def _seconds(answer: str, wall: float) -> float | None:
    """The time left that a notice names: seconds, `in 2 min`, or a moment somewhere in it (as in JSON)."""
    text = answer.strip()
    if re.fullmatch(r"\d{1,5}(\.\d+)?", text):
        return float(text)
    moments = re.findall(r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?:Z|[+-]\d{2}:?\d{2})?", text)
    for part in (
        text,
        *(moment if re.search(r"(Z|[+-]\d{2}:?\d{2})\Z", moment[16:]) else f"{moment}Z" for moment in moments),
    ):
        with contextlib.suppress(FtuiError):
            return when.parse(part, wall).end - wall
    return None
