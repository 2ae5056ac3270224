"""The command line with standard streams that are closed, full or gone, and with bytes that are no UTF-8."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FTUI = f"{sys.executable} -m tui"


def shell(command: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["sh", "-c", command], capture_output=True, timeout=60, check=False)


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_change_no_exit_code(house: Path, closed: str) -> None:
    done = shell(f"{FTUI} runs {closed}; a=$?; {FTUI} status nope --json {closed}; exit $((10 * a + $?))")
    assert done.returncode == 2
    assert b"should not" not in done.stderr and b"Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("runs >/dev/full", 1),
        ("runs --json >/dev/full", 1),
        ("runs 2>/dev/full", 0),
        ("status nope 2>/dev/full", 2),
        ("status nope --json >/dev/full", 2),
    ],
)
def test_streams_that_take_nothing(house: Path, command: str, code: int) -> None:
    done = shell(f"{FTUI} {command}")
    assert done.returncode == code
    assert b"Traceback" not in done.stderr and b"ignored" not in done.stderr


@pytest.mark.parametrize("words", ["status", "run", "run demo --name", "run demo x=", "runs --home"])
def test_bytes_that_are_no_utf8_are_a_usage_error(house: Path, words: str) -> None:
    done = shell(f"{FTUI} {words} \"$(printf '/\\377')\"")
    assert done.returncode == 2
    assert done.stderr.startswith(b"error: ") and b"UTF-8" in done.stderr
