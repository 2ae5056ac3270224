"""Programs that outlive whoever started them: no parent, no terminal, a session of their own."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from engine.errors import FtuiError
from engine.process import ProcessId
from engine.text import _

READY_FD = "FTUI_READY_FD"
# Runs in a fresh interpreter: a fork of the caller, which may have threads, is no safe thing.
_DETACH = """
import json, os, sys
if os.fork():
    os._exit(0)
fd = int(os.environ["FTUI_READY_FD"])
os.write(fd, b"%d\\n" % os.getpid())
try:
    os.execvpe(sys.argv[1], sys.argv[1:], os.environ)
except OSError as error:
    os.write(fd, json.dumps({"error": {"message": f"{sys.argv[1]}: {error.strerror}"}}).encode())
    os._exit(127)
"""


def own_environment(base: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment for programs of ours: no folder of the user's that is called like one of ours shadows it.

    PYTHONSAFEPATH keeps the current folder out of the import path; entries of PYTHONPATH that hold a foreign `engine`
    are left out (relative ones, too: they mean another folder for a program with another current folder).
    """
    env = {**(os.environ if base is None else base), "PYTHONSAFEPATH": "1"}
    ours = Path(__file__).parents[2]
    entries = [entry for entry in env.pop("PYTHONPATH", "").split(os.pathsep) if entry]
    kept = [e for e in entries if Path(e).is_absolute() and (Path(e) == ours or not (Path(e) / "engine").exists())]
    if kept:
        env["PYTHONPATH"] = os.pathsep.join(kept)
    return env


def daemonize(
    argv: Sequence[str],
    *,
    name: str,
    env: Mapping[str, str] | None = None,
    cwd: Path | str = "/",
    log: Path | None = None,
    pass_fds: Sequence[int] = (),
    timeout: float = 30.0,
) -> ProcessId:
    """Start a program that nobody waits for, and return once it says it is ready (`report_ready`).

    It is forked twice (nobody's child), leads no terminal, reads /dev/null and writes to `log`.

    Args:
        name: what to call it in an error.
        pass_fds: open descriptors it inherits under the same numbers (locks held for it).

    Raises:
        FtuiError: it reported an error, ended, or was not ready in time (then it is killed).
    """
    reading, writing = os.pipe()
    try:
        try:
            output: int = subprocess.DEVNULL
            if log is not None:
                output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            subprocess.run(
                [sys.executable, "-I", "-S", "-c", _DETACH, *argv],
                env={**(os.environ if env is None else env), READY_FD: str(writing)},
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                pass_fds=(writing, *pass_fds),
                check=False,  # whatever went wrong, the pipe ends without a word
            )
        finally:
            os.close(writing)
            if log is not None and output >= 0:
                os.close(output)
        return _await_ready(reading, name, log, timeout)
    finally:
        os.close(reading)


def _await_ready(fd: int, name: str, log: Path | None, timeout: float) -> ProcessId:
    data = b""
    deadline = time.monotonic() + timeout
    while not (ended := data.count(b"\n") >= 2):
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([fd], [], [], left)[0]:
            break
        piece = os.read(fd, 65536)
        if not piece:
            ended = True
            break
        data += piece
    first, _newline, second = data.partition(b"\n")
    process = None
    try:
        process = ProcessId.of(int(first))
        answer = json.loads(second)
    except (ValueError, ProcessLookupError):
        answer = {}
    if answer.get("ready") and process is not None:
        return process
    if error := answer.get("error"):
        raise FtuiError(
            error["message"],
            where=error.get("where"),
            fix=error.get("fix"),
            kind=error.get("kind"),
            exit_code=error.get("exit_code"),
        )
    if not ended and process is not None:
        process.send(signal.SIGKILL)
    reason = "" if ended else _("not ready after {s} s").format(s=round(timeout))
    raise failed_to_start(name, log, reason)


def _report(answer: dict[str, Any]) -> None:
    number = os.environ.pop(READY_FD, None)
    if number is None:
        return  # started by hand
    try:
        os.write(int(number), json.dumps(answer).encode() + b"\n")
    except OSError:
        pass  # whoever started us has gone: that is no reason to stop
    finally:
        os.close(int(number))


def report_ready() -> None:
    """Tell the starter that all is well; further calls, and calls without a starter, do nothing."""
    _report({"ready": True})


def report_failure(error: FtuiError) -> None:
    """Give the starter the error to show instead."""
    _report({"error": error.to_json()})


def last_lines(path: Path, count: int = 20, window: int = 64 * 1024) -> list[str]:
    """The last non-empty lines of a log ([] when it cannot be read)."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - window))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    return [line.rstrip() for line in text.splitlines() if line.strip()][-count:]


def failed_to_start(name: str, log: Path | None, reason: str = "") -> FtuiError:
    """The error of a program that ended, or said nothing, before it was ready."""
    lines = last_lines(log, 1) if log else []
    return FtuiError(
        _("{program} did not start: {reason}").format(
            program=name, reason=reason or (lines or [_("it said nothing")])[0]
        ),
        where=str(log) if log else None,
        fix=_("read the log for the details"),
        kind="not_started",
    )
