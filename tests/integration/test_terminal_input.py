"""The app on a real terminal: bytes that are no UTF-8, and a size that the environment claims."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest


class Terminal:
    """A pseudo-terminal of 24 rows and 80 columns with the app in it."""

    def __init__(self, **env: str) -> None:
        self.ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.child = subprocess.Popen(
            [sys.executable, "-P", "-m", "tui", "--no-tmux"],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm-256color", **env},
            start_new_session=True,
        )
        os.close(theirs)
        self.shown = b""

    def read_until(self, wanted: bytes, limit: float = 30.0) -> None:
        end = time.monotonic() + limit
        while wanted not in self.shown:
            assert time.monotonic() < end, self.shown[-2000:]
            if select.select([self.ours], [], [], 0.1)[0]:
                try:
                    self.shown += os.read(self.ours, 65536)
                except OSError:
                    break
        assert wanted in self.shown, self.shown[-2000:]

    def write(self, data: bytes) -> None:
        os.write(self.ours, data)

    def end(self) -> int:
        while select.select([self.ours], [], [], 0.1)[0] or self.child.poll() is None:
            try:
                if not (piece := os.read(self.ours, 65536)):
                    break
                self.shown += piece
            except OSError:
                break
        return self.child.wait(20)


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    made: list[Terminal] = []
    yield made
    for terminal in made:
        if terminal.child.poll() is None:
            terminal.child.kill()
        terminal.child.wait()
        os.close(terminal.ours)


def test_bytes_that_are_no_utf8_do_not_end_the_app(house: Path, terminals: list[Terminal]) -> None:
    terminal = Terminal()
    terminals.append(terminal)
    terminal.read_until(b"No runs yet")
    for garbage in (
        b"\xff\xfe",
        b"\x1b[M\xe0\xf0\xf8",
        bytes(range(128, 256)),
        b"\x1b[200~\xd2\xe5\xea\xf1\xf2\x1b[201~",
    ):
        terminal.write(garbage)
        time.sleep(0.2)
    terminal.write(b"?")
    terminal.read_until(b"quit")
    terminal.write(b"\x1b")
    time.sleep(0.5)
    terminal.write(b"q")
    assert terminal.end() == 0
    assert b"Traceback" not in terminal.shown


def test_an_exported_size_does_not_freeze_the_screen(house: Path, terminals: list[Terminal]) -> None:
    terminal = Terminal(COLUMNS="1", LINES="1")
    terminals.append(terminal)
    terminal.read_until(b"No runs yet")
    terminal.write(b"q")
    assert terminal.end() == 0
