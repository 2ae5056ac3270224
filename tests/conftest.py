"""Every test lives in a house of its own: home, settings, workspace and runtime folder are temporary.

The session also checks at its end that no process it started is left, however it was detached: children inherit a
mark in their environment, so a double fork or a new session does not hide them.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

MARK = "FTUI_TEST_SESSION"
LEAK_GRACE = 5.0
FIXED = {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "LANG": "C.UTF-8",
    "LANGUAGE": "en",
}
UNSET = (
    "NO_COLOR",
    "LC_ALL",
    "LC_MESSAGES",
    "FTUI_PYTHON",
    "FTUI_ENGINE_PLUGIN",
    "HF_HOME",
    "TMUX",
    "CUDA_VISIBLE_DEVICES",
)


def _house(root: Path, runtime: Path) -> dict[str, str]:
    return {
        "HOME": str(root / "home"),
        "XDG_CONFIG_HOME": str(root / "home" / ".config"),
        "XDG_CACHE_HOME": str(root / "home" / ".cache"),
        "XDG_DATA_HOME": str(root / "home" / ".local" / "share"),
        "XDG_STATE_HOME": str(root / "home" / ".local" / "state"),
        "XDG_RUNTIME_DIR": str(runtime),
        "FTUI_HOME": str(root / "ft"),
    }


def _move_in(patch: pytest.MonkeyPatch, root: Path, runtime: Path) -> None:
    for name, value in {**FIXED, **_house(root, runtime)}.items():
        patch.setenv(name, value)
    for name in UNSET:
        patch.delenv(name, raising=False)
    (root / "home").mkdir(parents=True, exist_ok=True)


def marked_processes(mark: str) -> dict[int, str]:
    """Pids (with their command lines) of live processes other than this one that carry the session's mark."""
    found = {}
    wanted = f"{MARK}={mark}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # gone, a zombie, or not ours
            continue
    return found


@pytest.fixture(scope="session", autouse=True)
def session_house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The house of fixtures wider than one test; at the end no process of the suite may be left."""
    root = tmp_path_factory.mktemp("session")
    runtime = Path(tempfile.mkdtemp(prefix="ft-"))  # short: a Unix socket's path has 107 bytes
    mark = uuid.uuid4().hex
    with pytest.MonkeyPatch.context() as patch:
        _move_in(patch, root, runtime)
        patch.setenv(MARK, mark)
        yield root
        _stop_keepers(root)
        deadline = time.monotonic() + LEAK_GRACE
        while (left := marked_processes(mark)) and time.monotonic() < deadline:
            time.sleep(0.1)
    shutil.rmtree(runtime, ignore_errors=True)
    for pid in left:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    if left:
        pytest.fail("processes left by the tests (now killed):\n" + "\n".join(f"{p}: {c}" for p, c in left.items()))


@pytest.fixture(autouse=True)
def house(session_house: Path, tmp_path: Path) -> Iterator[Path]:
    """This test's own home, settings, workspace (`FTUI_HOME` = `house / "ft"`) and runtime folder."""
    runtime = Path(tempfile.mkdtemp(prefix="ft-"))
    with pytest.MonkeyPatch.context() as patch:
        _move_in(patch, tmp_path, runtime)
        yield tmp_path
        _stop_keepers(tmp_path)
    shutil.rmtree(runtime, ignore_errors=True)


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace's cache for all tests and all workers: the built-in model is made once (its builder locks).

    FTUI_TEST_CACHE=DIR keeps it from one session to the next.
    """
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent  # a worker's own folder lies in the session's
    cache = Path(os.environ.get("FTUI_TEST_CACHE") or base / "shared-cache")
    cache.mkdir(parents=True, exist_ok=True)
    return cache


@pytest.fixture
def builtin_cache(shared_cache: Path, house: Path) -> Path:
    """The test's workspace with the session's cache."""
    (house / "ft").mkdir(exist_ok=True)
    (house / "ft" / "cache").symlink_to(shared_cache)
    return shared_cache


def _stop_keepers(root: Path) -> None:
    """End the keepers that commands of the test started: they would idle for minutes."""
    for depth in ("", "*/", "*/*/", "*/*/*/"):
        for state in root.glob(f"{depth}keeper/state.json"):
            from engine import keeper
            from engine.workspace import Workspace

            keeper.stop(Workspace(state.parent.parent))
