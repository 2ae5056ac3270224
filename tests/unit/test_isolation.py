"""The suite's own isolation: a test must never see, or write to, the machine's real home."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import MARK, marked_processes


def test_everything_a_user_owns_is_temporary(tmp_path: Path) -> None:
    assert Path.home() == tmp_path / "home"
    for name in ("XDG_CONFIG_HOME", "XDG_CACHE_HOME", "FTUI_HOME"):
        assert Path(os.environ[name]).is_relative_to(tmp_path)
    assert len(os.environ["XDG_RUNTIME_DIR"]) < 40
    assert os.environ["HF_HUB_OFFLINE"] == "1"
    assert "NO_COLOR" not in os.environ


@pytest.mark.timeout(30)
def test_a_detached_process_is_still_found_by_its_mark() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True)
    try:
        # until exec has happened, /proc shows this process's own environment, which has no mark
        while child.pid not in (found := marked_processes(os.environ[MARK])):
            pass
        assert "input()" in found[child.pid]
    finally:
        child.communicate(b"\n")
    assert child.pid not in marked_processes(os.environ[MARK])
