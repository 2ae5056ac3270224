"""A TCP proxy on loopback that misbehaves on demand: overloaded, slow, cut short, silent, away."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from typing import Any

SLOW_DOWN = b'<?xml version="1.0"?><Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>'
CHUNK = 64 * 1024


class FaultProxy:
    """Forwards connections to a port; `mode` is what happens to all of them from now on.

    ok, 503 (each request is answered SlowDown), drop (connections are closed), hang (nothing is answered), truncate
    (`after` bytes of each response pass, then the connection closes). `rate` limits the bytes sent to the server a
    second, `down_rate` those sent back.
    """

    def __init__(self, port: int) -> None:
        self.target = port
        self.port = 0
        self.after = 100_000
        self.rate: float | None = None
        self.down_rate: float | None = None
        self.requests_refused = 0
        self.sent_up = 0
        self._mode = "ok"
        self._open: set[asyncio.StreamWriter] = set()
        self._next = {"up": 0.0, "down": 0.0}
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> FaultProxy:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_exc: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def mode(self) -> str:
        return self._mode

    @mode.setter
    def mode(self, value: str) -> None:
        self._mode = value
        if value not in ("ok", "truncate"):  # connections that are open end, so that new ones meet the fault
            self._loop.call_soon_threadsafe(lambda: [writer.transport.abort() for writer in list(self._open)])

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        listening = socket.socket()
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, CHUNK)  # a slow link, not a deep buffer
        listening.bind(("127.0.0.1", 0))
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, sock=listening, limit=CHUNK))
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        server.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        with contextlib.suppress(Exception):
            self._loop.run_until_complete(asyncio.sleep(0.05))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            if self._mode == "drop":
                return
            if self._mode == "hang":
                await asyncio.sleep(3600)
            if self._mode == "503":
                await self._refuse(reader, writer)
                return
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self.target, limit=1 << 20)
            self._open.add(up_writer)
            try:
                await asyncio.gather(self._pump(reader, up_writer, "up"), self._pump(up_reader, writer, "down"))
            finally:
                self._open.discard(up_writer)
                up_writer.close()
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            self._open.discard(writer)
            writer.close()

    async def _refuse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        self.requests_refused += 1
        head = f"HTTP/1.1 503 Slow Down\r\nContent-Type: application/xml\r\nContent-Length: {len(SLOW_DOWN)}\r\n"
        writer.write(head.encode() + b"Connection: close\r\n\r\n" + SLOW_DOWN)
        await writer.drain()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: str) -> None:
        passed = 0
        while data := await reader.read(CHUNK):
            if way == "up":
                self.sent_up += len(data)
            rate = self.rate if way == "up" else self.down_rate
            if rate:
                now = time.monotonic()
                self._next[way] = max(self._next[way], now) + len(data) / rate
                await asyncio.sleep(max(0.0, self._next[way] - now))
            if way == "down" and self._mode == "truncate":
                data = data[: max(0, self.after - passed)]
            passed += len(data)
            writer.write(data)
            await writer.drain()
            if way == "down" and self._mode == "truncate" and passed >= self.after:
                writer.transport.abort()
                return
        with contextlib.suppress(OSError, RuntimeError):
            writer.write_eof()


def free_port() -> int:
    """A port that nobody listens on."""
    import socket

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def wait_for_port(port: int, process: Any, timeout: float = 30.0) -> None:
    """Wait until somebody listens."""
    import socket

    deadline = time.monotonic() + timeout
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            assert process.poll() is None and time.monotonic() < deadline, "the server does not come up"
            time.sleep(0.05)
