"""The supervisor's end of the control socket: no client, however slow, hostile or chatty, holds up the loop."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import stat
import time
from collections.abc import Callable
from os.path import samestat
from pathlib import Path
from typing import Any

import orjson

from engine.errors import FtuiError
from engine.run.control import LONGEST_LINE, LONGEST_PATH, REQUESTS, peer, short_path
from engine.workspace import RunFolder

MOST_CLIENTS = 32
IDLE_S = 30.0
LOOK_S = 5.0  # how often to see whether the socket is still there: cleaners of /tmp take old ones away
Handler = Callable[[str, int], dict[str, Any]]


class _Client:
    """One connection: what it said so far and what it has not read yet."""

    def __init__(self, connection: socket.socket, pid: int) -> None:
        self.connection = connection
        self.pid = pid
        self.heard = b""
        self.unsent = b""
        self.active = time.monotonic()
        self.closing = False


class ControlServer:
    """Listens for one run; register it with a selector and call `tick` now and then.

    `handle(do, pid)` answers each request; it is called from the loop and must return at once.
    """

    def __init__(self, run: RunFolder, selector: selectors.BaseSelector, handle: Handler) -> None:
        self.run = run
        self.selector = selector
        self.handle = handle
        self.path: Path | None = None
        self._listener: socket.socket | None = None
        self._clients: set[_Client] = set()
        self._bound: os.stat_result | None = None
        self._looked = 0.0

    def open(self) -> Path:
        """Listen in the run folder, or at the short place where that is impossible.

        The caller holds the run's lock: a socket that lies there is a dead supervisor's.

        Raises:
            OSError: neither place takes a socket.
            FtuiError: there is no private runtime folder.
        """
        if len(os.fsencode(self.run.control)) <= LONGEST_PATH:
            with contextlib.suppress(OSError):  # a file in the way, or a file system without sockets
                return self._listen(self.run.control)
        return self._listen(short_path(self.run))

    def _listen(self, path: Path) -> Path:
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISSOCK(path.lstat().st_mode):
                path.unlink()
        listener = socket.socket(socket.AF_UNIX)
        before = os.umask(0o177)
        try:
            listener.bind(os.fspath(path))
            listener.listen(64)
        except OSError:
            listener.close()
            raise
        finally:
            os.umask(before)
        listener.setblocking(False)
        self.selector.register(listener, selectors.EVENT_READ, self._accept)
        self._listener, self.path, self._bound = listener, path, path.lstat()
        return path

    def _is_there(self) -> bool:
        """Whether the path still leads to our socket."""
        try:
            return self.path is not None and self._bound is not None and samestat(self.path.lstat(), self._bound)
        except OSError:
            return False

    def close(self) -> None:
        """Stop listening and take the socket away."""
        for client in list(self._clients):
            self._drop(client)
        if self._listener is not None:
            self.selector.unregister(self._listener)
            self._listener.close()
            self._listener = None
        if self.path is not None and self._is_there():
            with contextlib.suppress(OSError):
                self.path.unlink()

    def tick(self) -> bool:
        """Drop clients that have said and taken nothing for a while; True when `path` is another now.

        A socket that was deleted or replaced is made anew: without one only signals would reach the run.
        """
        now = time.monotonic()
        for client in [c for c in self._clients if now - c.active > IDLE_S]:
            self._drop(client)
        if self._listener is None or now - self._looked < LOOK_S:
            return False
        self._looked = now
        if self._is_there():
            return False
        old = self._listener
        try:
            self.open()
        except (OSError, FtuiError):
            return False
        self.selector.unregister(old)
        old.close()
        return True

    def _accept(self, _mask: int) -> None:
        assert self._listener is not None
        try:
            connection, _address = self._listener.accept()
        except OSError:
            return
        connection.setblocking(False)
        pid, uid = peer(connection)
        if uid != os.geteuid():
            _send_once(connection, _error("only the owner of the run may ask", f"become uid {os.geteuid()}"))
            connection.close()
        elif len(self._clients) >= MOST_CLIENTS:
            _send_once(connection, _error("too many connections", "try again in a moment"))
            connection.close()
        else:
            client = _Client(connection, pid)
            self._clients.add(client)
            self.selector.register(connection, selectors.EVENT_READ, lambda mask: self._serve(client, mask))

    def _serve(self, client: _Client, mask: int) -> None:
        client.active = time.monotonic()
        try:
            if mask & selectors.EVENT_WRITE:
                self._flush(client)
            if mask & selectors.EVENT_READ and not client.closing:
                self._hear(client)
        except BlockingIOError:
            return
        except OSError:
            self._drop(client)

    def _hear(self, client: _Client) -> None:
        piece = client.connection.recv(65536)
        if not piece:
            self._drop(client)
            return
        client.heard += piece
        while b"\n" in client.heard and not client.closing:
            line, client.heard = client.heard.split(b"\n", 1)
            self._reply(client, self._answer(line, client.pid))
        if len(client.heard) > LONGEST_LINE:
            client.closing = True
            self._reply(client, _error("the request is too long", "send one JSON object a line"))
        self._flush(client)

    def _reply(self, client: _Client, answer: dict[str, Any]) -> None:
        client.unsent += orjson.dumps(answer) + b"\n"
        if len(client.unsent) > 16 * LONGEST_LINE:  # asks and asks, and reads nothing
            raise ConnectionAbortedError

    def _answer(self, line: bytes, pid: int) -> dict[str, Any]:
        try:
            request = orjson.loads(line)
        except ValueError:
            return _error("the request is not JSON", 'send one JSON object a line, for example {"do": "status"}')
        do = request.get("do") if isinstance(request, dict) else None
        if do not in REQUESTS:
            return _error("unknown request", "known: " + ", ".join(REQUESTS))
        expires = request.get("expires")
        if isinstance(expires, int | float) and time.monotonic() > expires:
            # Whoever asked was told that nothing came of it (this process was stopped, or the machine was).
            return _error("the request came too late", "ask again")
        try:
            return self.handle(do, pid)
        except FtuiError as error:
            return _error(error.what, error.fix)

    def _flush(self, client: _Client) -> None:
        if client.unsent:
            with contextlib.suppress(BlockingIOError):
                client.unsent = client.unsent[client.connection.send(client.unsent) :]
        if client.closing and not client.unsent:
            self._drop(client)
            return
        wanted = selectors.EVENT_WRITE if client.unsent else 0
        wanted |= 0 if client.closing else selectors.EVENT_READ  # what is not read would wake the loop for ever
        key = self.selector.get_key(client.connection)
        if key.events != wanted:
            self.selector.modify(client.connection, wanted, key.data)

    def _drop(self, client: _Client) -> None:
        self._clients.discard(client)
        with contextlib.suppress(KeyError, ValueError):
            self.selector.unregister(client.connection)
        client.connection.close()


def _error(message: str, fix: str | None) -> dict[str, Any]:
    return {"ok": False, "error": {"message": message, "fix": fix}}


def _send_once(connection: socket.socket, answer: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):
        connection.send(orjson.dumps(answer) + b"\n")
