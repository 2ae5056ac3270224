"""The end of a log: no escape sequence reaches the screen, rotation and partial lines are followed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.workspace import RunFolder
from tui.sources.log_tail import FIRST_TAIL, LogTail, log_files, plain


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("plain text", "plain text"),
        ("\x1b[1;31mred\x1b[0m and \x1b[38;2;1;2;3mmore", "red and more"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b]52;c;ZXZpbA==\x07text", "text"),
        ("\x1bPdevice\x1b\\text", "text"),
        ("\x1b[2J\x1b[Htext\x1b(B", "text"),
        (" 10%|#    |\r 50%|###  |\r100%|#####|", "100%|#####|"),
        ("windows line\r", "windows line"),
        ("a\tb", "a   b"),
        ("bell\x07 null\x00 \x9b31mC1", "bell null 31mC1"),
        ("cut off\x1b[3", "cut off3"),
        ("cut off\x1b", "cut off"),
        ("обучение", "обучение"),
    ],
)
def test_plain(line: str, shown: str) -> None:
    assert plain(line) == shown


@given(st.text())
def test_no_control_character_is_left(line: str) -> None:
    assert all(ord(c) >= 32 and not 127 <= ord(c) < 160 for c in plain(line) if c != "\n")


@pytest.fixture
def log(house: Path) -> Path:
    path = house / "rank-0.log"
    path.write_text("one\ntwo\n")
    return path


def append(path: Path, text: str | bytes) -> None:
    with open(path, "ab") as file:
        file.write(text.encode() if isinstance(text, str) else text)


def test_it_follows_the_file(log: Path) -> None:
    tail = LogTail(log)
    assert tail.poll() == ["one", "two"]
    assert tail.poll() == []
    append(log, "thr")
    assert tail.poll() == []
    append(log, "ee\nfour\n")
    assert tail.poll() == ["three", "four"]


def test_it_begins_with_the_end_of_a_long_file(log: Path) -> None:
    append(log, "".join(f"line {i}\n" for i in range(20_000)))
    lines = LogTail(log).poll()
    assert lines[-1] == "line 19999"
    assert all(line.startswith("line ") for line in lines)
    assert sum(map(len, lines)) <= FIRST_TAIL


def test_a_flood_is_skipped(log: Path) -> None:
    tail = LogTail(log)
    tail.poll()
    append(log, "".join(f"line {i:9}\n" for i in range(60_000)))
    lines = tail.poll()
    assert lines[-1] == f"line {59_999:9}"
    assert all(len(line) == 14 for line in lines)
    append(log, "next\n")
    assert tail.poll() == ["next"]


def test_a_rotated_and_a_truncated_file(log: Path) -> None:
    tail = LogTail(log)
    tail.poll()
    os.replace(log, log.with_suffix(".log.1"))
    log.write_text("new\n")
    assert tail.poll() == ["new"]
    log.write_text("n\n")
    assert tail.poll() == ["n"]


def test_bytes_that_are_no_text(log: Path) -> None:
    tail = LogTail(log)
    tail.poll()
    append(log, b"caf\xe9 \xff\n")
    assert tail.poll() == ["caf� �"]


def test_a_file_that_is_gone(log: Path) -> None:
    tail = LogTail(log)
    log.unlink()
    assert tail.poll() == []
    log.write_text("back\n")
    assert tail.poll() == ["back"]


def test_only_logs_that_exist_are_offered(house: Path) -> None:
    run = RunFolder(house / "run")
    assert log_files(run) == []
    run.logs.mkdir(parents=True)
    for name in ("supervisor.log", "rank-0.log", "rank-1.log"):
        (run.logs / name).touch()
    assert [path.name for path in log_files(run)] == ["rank-0.log", "supervisor.log"]
