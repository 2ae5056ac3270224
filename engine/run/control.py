"""Asking a run's supervisor for something, over its control socket (docs/files.md)."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import stat
import struct
import time
from pathlib import Path
from typing import Any

import orjson

from engine.errors import FtuiError, UsageError
from engine.process import ProcessId
from engine.run.status import LIVE, state_of
from engine.text import _
from engine.workspace import RunFolder

REQUESTS = ("status", "save", "evaluate", "stop", "stop_now")
LONGEST_PATH = 100  # sun_path has 108 bytes, and some systems fewer
LONGEST_LINE = 64 * 1024


def runtime_dir() -> Path:
    """A private folder with a short path for sockets; made when it is not there.

    Raises:
        FtuiError: it cannot be made, or somebody else owns it.
    """
    base = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    if not (Path(base).is_dir() and os.access(base, os.W_OK)) or len(os.fsencode(base)) > LONGEST_PATH - 30:
        base = "/tmp"  # noqa: S108 - the folder below is 0700 and its owner is checked
    folder = Path(base) / f"ftui-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        info = folder.lstat()
    except OSError as error:
        raise FtuiError(str(error.strerror), where=str(folder), kind="runtime_dir") from error
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid() or info.st_mode & 0o077:
        raise FtuiError(
            _("the runtime folder belongs to somebody else or is open to others"),
            where=str(folder),
            fix=_("remove it, or set XDG_RUNTIME_DIR to a folder of your own"),
            kind="runtime_dir",
        )
    return folder


def short_path(run: RunFolder) -> Path:
    """The socket's place where the run folder's own path is too long or takes no sockets."""
    return runtime_dir() / (hashlib.sha256(os.fsencode(run.path)).hexdigest()[:16] + ".sock")


def peer(connection: socket.socket) -> tuple[int, int]:
    """Pid and uid of the process at the other end."""
    pid, uid, _gid = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid


def send(run: RunFolder, do: str, timeout: float = 10.0) -> dict[str, Any]:
    """Ask the supervisor of `run` for `do` and return its answer (`ok` is true in it).

    `save`, `evaluate` and `stop` are answered when the request is taken, with its `id`; the ranks act on it at the
    end of a step, and the journal's `request` event with that id says so.

    Raises:
        FtuiError: nobody is there, the answer does not come, or it is a refusal.
    """
    state = run.read_state()
    supervisor = ProcessId.from_json(state.get("supervisor"))
    if state_of(state) not in LIVE or supervisor is None:
        raise not_running(run, state)
    path = state.get("control")
    if not path:
        raise FtuiError(
            _("{run} is just starting and does not listen yet").format(run=run.name),
            where=str(run.path),
            fix=_("try again in a moment; TERM to process {pid} stops it with a save").format(pid=supervisor.pid),
            kind="not_ready",
        )
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as connection:
        connection.settimeout(timeout)
        try:
            _connect(connection, path, timeout)
            answer = _ask(connection, supervisor, path, do, time.monotonic() + timeout)
        except TimeoutError as error:
            raise FtuiError(
                _("{run} did not answer within {s} s; the request has lapsed and will not be carried out").format(
                    run=run.name, s=round(timeout)
                ),
                where=path,
                fix=_("look at {log}; TERM to process {pid} stops the run with a save").format(
                    log=run.logs / "supervisor.log", pid=supervisor.pid
                ),
                kind="timeout",
            ) from error
        except OSError as error:
            if not supervisor.alive():
                raise not_running(run, run.read_state()) from error
            raise FtuiError(
                _("{run} cannot be reached: {reason}").format(run=run.name, reason=error.strerror or error),
                where=path,
                fix=_("TERM to process {pid} stops the run with a save").format(pid=supervisor.pid),
                kind="unreachable",
            ) from error
    if not answer.get("ok"):
        problem = answer.get("error") or {}
        raise FtuiError(str(problem.get("message") or _("the request was refused")), where=path, fix=problem.get("fix"))
    return answer


def _connect(connection: socket.socket, path: str, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while True:
        try:
            connection.connect(path)
            return
        except BlockingIOError:  # many at once: a Unix socket does not wait for a place in the queue
            if time.monotonic() > deadline:
                raise TimeoutError from None
            time.sleep(0.05)


def _ask(connection: socket.socket, supervisor: ProcessId, path: str, do: str, expires: float) -> dict[str, Any]:
    pid, _uid = peer(connection)
    if pid not in (0, supervisor.pid):  # 0: in another pid namespace
        raise FtuiError(
            _("the control socket belongs to process {pid}, not to the run's supervisor").format(pid=pid),
            where=path,
            fix=_("TERM to process {pid} stops the run with a save").format(pid=supervisor.pid),
            kind="socket_in_use",
        )
    with contextlib.suppress(BrokenPipeError):  # a refusal that came before the question can still be read
        connection.sendall(orjson.dumps({"do": do, "expires": expires}) + b"\n")
    data = b""
    while not data.endswith(b"\n"):
        piece = connection.recv(65536)
        if not piece:
            raise ConnectionResetError(104, os.strerror(104))
        data += piece
    answer = orjson.loads(data)
    return answer if isinstance(answer, dict) else {}


def not_running(run: RunFolder, state: dict[str, Any]) -> FtuiError:
    """The error of a request to a run that nobody supervises."""
    name = state_of(state)
    if name == "done":
        fix = _("nothing needs to be done: the result is in {path}").format(path=run.final)
    elif state.get("last_checkpoint"):
        fix = _("`ftui resume {run}` goes on from the newest checkpoint").format(run=run.name)
    else:
        fix = _("`ftui status {run}` says how it ended").format(run=run.name)
    return UsageError(
        _("{run} is not running: it is {state}").format(run=run.name, state=name),
        where=str(run.path),
        fix=fix,
        kind="not_running",
    )
