"""`ftui logs`: whole lines, and nothing that acts on the terminal."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from engine.files import write_json
from engine.process import ProcessId
from engine.run.statefile import fresh
from engine.workspace import RunFolder, Workspace
from tui import cli


@pytest.fixture
def run(house: Path) -> RunFolder:
    folder = RunFolder(Workspace(house / "ft").prepare().runs_dir / "a")
    folder.logs.mkdir(parents=True)
    write_json(folder.state, fresh("a", state="running", supervisor=ProcessId.current().to_json()))
    return folder


def test_followed_lines_are_whole_and_the_last_one_comes_at_the_end(run: RunFolder, capsys) -> None:
    log = run.logs / "rank-0.log"
    log.write_bytes(b"one\ntwo\nthr")

    def write() -> None:
        time.sleep(0.5)
        for piece in ("ee\nпри".encode()[:-1], "при".encode()[-1:] + "вет\nend".encode()):
            with open(log, "ab") as file:
                file.write(piece)
            time.sleep(0.5)
        write_json(run.state, fresh("a", state="done"))

    writer = threading.Thread(target=write)
    writer.start()
    assert cli.main(["logs", "a", "-n", "1", "--follow", "--json"]) == 0
    writer.join()
    lines = [json.loads(line)["line"] for line in capsys.readouterr().out.splitlines()]
    assert lines == ["two", "three", "привет", "end"]


@pytest.mark.parametrize(("count", "shown"), [("0", ""), ("1", "c\n"), ("2", "\nc\n"), ("9", "a\n\nc\n")])
def test_the_last_lines(run: RunFolder, capfdbinary, count: str, shown: str) -> None:
    (run.logs / "rank-0.log").write_text("a\n\nc\n")
    assert cli.main(["logs", "a", "-n", count]) == 0
    assert capfdbinary.readouterr().out.decode() == shown


def test_escape_sequences_and_garbage_do_not_reach_a_terminal(run: RunFolder) -> None:
    garbage = b"\x1b]0;title\x07\x1b[2J\xff\xfe\x00before\rafter\n" + bytes(range(256)) + b"\n"
    (run.logs / "rank-0.log").write_bytes(garbage)
    ours, theirs = pty.openpty()
    child = subprocess.Popen([sys.executable, "-m", "tui", "logs", "a"], stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = b""
    while child.poll() is None or shown == b"":
        try:
            shown += os.read(ours, 65536)
        except OSError:
            break
    os.close(ours)
    assert child.wait() == 0
    assert b"after" in shown and b"before" not in shown
    assert not any(sign in shown.replace(b"\r\n", b"") for sign in (b"\x1b", b"\x00", b"\x07", b"\r"))
