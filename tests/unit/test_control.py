"""The control socket from both ends: bad input, slow and foreign clients, a socket that is somebody else's."""

from __future__ import annotations

import json
import os
import selectors
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.errors import FtuiError
from engine.files import write_json
from engine.process import ProcessId
from engine.run import control, server
from engine.run.server import ControlServer
from engine.run.statefile import fresh
from engine.workspace import RunFolder


class Loop:
    """A server in a loop of its own; `asked` is what reached the handler."""

    def __init__(self, run: RunFolder) -> None:
        self.selector = selectors.DefaultSelector()
        self.server = ControlServer(run, self.selector, self.handle)
        self.asked: list[str] = []
        self.delay = 0.0
        self.path = self.server.open()
        self.ending = False
        self.thread = threading.Thread(target=self.work)
        self.thread.start()

    def handle(self, do: str, pid: int) -> dict[str, Any]:
        self.asked.append(do)
        if do == "evaluate":
            raise FtuiError("no", fix="later")
        time.sleep(self.delay)
        return {"ok": True, "pid": pid, "filler": "x" * (200_000 if do == "save" else 0)}

    def work(self) -> None:
        while not self.ending:
            for key, mask in self.selector.select(0.02):
                key.data(mask)
            self.server.tick()

    def end(self) -> None:
        self.ending = True
        self.thread.join()
        self.server.close()


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "r")
    folder.logs.mkdir(parents=True)
    write_json(folder.state, fresh("r", supervisor=ProcessId.current().to_json(), control=str(folder.control)))
    return folder


@pytest.fixture
def loop(run: RunFolder) -> Iterator[Loop]:
    made = Loop(run)
    yield made
    made.end()


def connect(loop: Loop) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(5)
    client.connect(str(loop.path))
    return client


def ask(client: socket.socket, data: bytes) -> dict[str, Any]:
    client.sendall(data)
    return read_line(client)


def read_line(client: socket.socket) -> dict[str, Any]:
    answer = b""
    while not answer.endswith(b"\n"):
        piece = client.recv(65536)
        assert piece, "closed without an answer"
        answer += piece
    return json.loads(answer)


def test_answer_and_refusal(run: RunFolder, loop: Loop) -> None:
    assert control.send(run, "status")["pid"] == os.getpid()
    assert len(control.send(run, "save")["filler"]) == 200_000  # more than a socket holds: it comes in pieces
    with pytest.raises(FtuiError, match="no") as caught:
        control.send(run, "evaluate")
    assert caught.value.fix == "later"
    assert oct(loop.path.stat().st_mode)[-3:] == "600"


@pytest.mark.parametrize(
    "line", [b"{", b"\xff\xfe", b"[]", b'"save"', b"{}", b'{"do": "rm"}', b'{"do": ["save"]}', b""]
)
def test_bad_lines_get_an_error_and_the_connection_goes_on(loop: Loop, line: bytes) -> None:
    client = connect(loop)
    answer = ask(client, line + b"\n")
    assert answer["ok"] is False and answer["error"]["message"] and answer["error"]["fix"]
    assert ask(client, b'{"do": "status"}\n')["ok"] is True
    client.close()
    assert loop.asked == ["status"]


def test_an_endless_line_is_refused(loop: Loop) -> None:
    client = connect(loop)
    assert ask(client, b"x" * (server.LONGEST_LINE + 1))["error"]["message"] == "the request is too long"
    assert client.recv(10) == b""
    client.close()


def test_a_request_in_single_bytes_and_two_in_one_piece(loop: Loop) -> None:
    client = connect(loop)
    for byte in b'{"do": "status"}':
        client.send(bytes([byte]))
    assert ask(client, b"\n")["ok"]
    client.sendall(b'{"do": "status"}\n{"do": "nothing"}\n')
    file = client.makefile("rb")
    assert [json.loads(file.readline())["ok"] for _ in range(2)] == [True, False]
    file.close()
    client.close()


def test_a_client_that_reads_nothing_holds_up_nobody(loop: Loop, run: RunFolder) -> None:
    deaf = connect(loop)
    deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    with pytest.raises(OSError):  # it is dropped in the end
        for _ in range(100):
            deaf.sendall(b'{"do": "save"}\n')
            time.sleep(0.005)
    assert control.send(run, "status", timeout=2)["ok"]
    deaf.close()


def test_too_many_connections_are_refused_and_idle_ones_dropped(
    loop: Loop, run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = [connect(loop) for _ in range(server.MOST_CLIENTS)]
    for client in clients:
        ask(client, b'{"do": "status"}\n')
    with pytest.raises(FtuiError, match="too many connections"):
        control.send(run, "status")
    monkeypatch.setattr(server, "IDLE_S", 0.1)
    assert clients[0].recv(10) == b""
    for client in clients:
        client.close()
    assert control.send(run, "status")["ok"]


def test_another_users_process_is_refused(loop: Loop) -> None:
    if os.getuid() != 0:
        pytest.skip("needs root to become somebody else")
    for path in (loop.path, *loop.path.parents):
        if str(path).startswith("/tmp/"):
            path.chmod(0o777)  # only the uid check stands between them
    code = (
        "import os, socket, sys\nos.setgid(65534)\nos.setuid(65534)\ns = socket.socket(socket.AF_UNIX)\n"
        "s.connect(sys.argv[1])\n"
        'try: s.sendall(b\'{"do": "stop"}\\n\')\nexcept OSError: pass\n'
        "print(s.recv(9999).decode())"
    )
    said = subprocess.run(
        [sys.executable, "-S", "-c", code, str(loop.path)], capture_output=True, text=True, check=True
    )
    assert "only the owner" in said.stdout
    assert loop.asked == []


def test_a_dead_supervisors_socket_is_taken_over_and_a_file_in_the_way_is_not(run: RunFolder) -> None:
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(run.control))
    dead.close()
    loop = Loop(run)
    assert loop.path == run.control
    assert control.send(run, "status")["ok"]
    loop.end()
    assert not run.control.exists()
    run.control.write_text("a user's file")
    loop = Loop(run)
    assert loop.path.is_relative_to(os.environ["XDG_RUNTIME_DIR"])
    loop.end()
    assert run.control.read_text() == "a user's file"


def test_a_runtime_folder_open_to_others_is_refused(run: RunFolder) -> None:
    control.runtime_dir().chmod(0o755)
    with pytest.raises(FtuiError, match="open to others"):
        control.short_path(run)


def test_a_socket_of_somebody_else_is_not_talked_to(run: RunFolder) -> None:
    code = (
        "import socket, sys, time\ns = socket.socket(socket.AF_UNIX)\ns.bind(sys.argv[1])\ns.listen()\n"
        "print('up', flush=True)\ntime.sleep(60)"
    )
    other = subprocess.Popen([sys.executable, "-S", "-c", code, str(run.control)], stdout=subprocess.PIPE)
    assert other.stdout is not None and other.stdout.readline() == b"up\n"
    try:
        with pytest.raises(FtuiError, match=f"belongs to process {other.pid}"):
            control.send(run, "stop")
    finally:
        other.kill()
        other.communicate()


def test_no_answer_no_socket_and_no_listener_are_three_clear_errors(run: RunFolder, loop: Loop) -> None:
    loop.delay = 0.5
    with pytest.raises(FtuiError, match="did not answer") as caught:
        control.send(run, "status", timeout=0.1)
    assert caught.value.kind == "timeout"
    write_json(run.state, fresh("r", supervisor=ProcessId.current().to_json(), control=str(run.path / "none.sock")))
    with pytest.raises(FtuiError, match="cannot be reached"):
        control.send(run, "status")
    write_json(run.state, fresh("r", supervisor=ProcessId.current().to_json()))
    with pytest.raises(FtuiError, match="does not listen yet"):
        control.send(run, "status")
