"""Kills at random moments of upload, proof and restore: afterwards every object is right, and nothing false was said.

FTUI_SOAK says how many kills (200).
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.backup import backup, check, restore
from engine.backup.rclone import Daemon
from engine.backup.remote import Remote
from engine.checkpoint import manifest, retention
from engine.process import descendants
from engine.recipe.backup import parse
from engine.workspace import RunFolder, Workspace
from tests.support import backups
from tests.support.backups import MIB, add_checkpoint, make_run
from tests.support.fault_proxy import FaultProxy

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]
BUCKET = "ftui-soak"
REMOTE = f"s3:{BUCKET}/all"
KILLS = int(os.environ.get("FTUI_SOAK", "200"))


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def assert_true(run: RunFolder, served: Path) -> int:
    """What the ledger calls verified lies there with the right content; how many files that are."""
    count = 0
    for name, item in backups.ledger(run, REMOTE).items.items():
        folder = served / BUCKET / "all" / run.name / ("" if name == "run" else name)
        for path, record in item.files.items():
            if record.verified:
                assert sha256(folder / path) == record.sha256, f"{name}/{path} is called verified and is not"
                count += 1
        if item.committed and name.startswith("checkpoints/"):
            content = manifest.read(folder)
            assert content is not None and not manifest.damage(folder, content, check_hash=True)
    return count


def fork(work: Callable[[], object]) -> int:
    """Run something in a process of its own; its pid."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setpgid(0, 0)
        work()
        code = 0
    except BaseException as error:
        print(f"  {type(error).__name__}: {error}", flush=True)
    finally:
        os._exit(code)


def ended(pid: int, timeout: float) -> int | None:
    """The exit code of a process that ends in time (a negative signal where one ended it), else None."""
    deadline = time.monotonic() + timeout
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            return None
        time.sleep(0.01)


def kill_somewhere(rng: random.Random, work: Callable[[], object], longest: float) -> bool:
    """Start something and kill it, or its rclone, somewhere; False when it ended before."""
    pid = fork(work)
    if ended(pid, rng.uniform(0.02, longest)) is not None:
        return False
    target = rng.choice([pid, *descendants(pid)])
    try:
        os.kill(target, signal.SIGKILL)
    except ProcessLookupError:
        return ended(pid, 600) is None
    if target != pid and ended(pid, rng.uniform(0.05, longest)) is not None:
        return True
    if target != pid and rng.random() < 0.7:
        os.kill(pid, signal.SIGKILL)
    assert ended(pid, 600) is not None
    return True


def test_kills_of_everything(house: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(7)
    served, conf = house / "srv", house / "rclone.conf"
    (served / BUCKET).mkdir(parents=True)
    monkeypatch.setenv("RCLONE_CONFIG", str(conf))
    kills = {"now": 0, "verify": 0, "restore": 0}
    policy = parse(REMOTE)
    assert policy is not None

    def now() -> None:
        with backup.run_lock(run).held(), Daemon(conf) as daemon:
            assert backups.back_up(run, daemon, REMOTE).ok

    def prove(full: bool) -> None:
        with backup.run_lock(run).held(), Daemon(conf) as daemon:
            opened = backups.ledger(run, REMOTE, write=True)
            assert check.check(run, policy, Remote(daemon, policy.to("demo")), opened, full=full) == ({}, [])

    def bring_back() -> None:
        with Daemon(conf) as daemon:
            restore.restore(Workspace(house / "ft"), daemon, f"{REMOTE}/demo", target)

    with backups.serve_s3(served) as port, FaultProxy(port) as proxy:
        backups.conf(conf, s3=proxy.port)
        run = make_run(house / "ft", steps=(10,), size=2 * MIB)
        took = dict.fromkeys(kills, 2.0)
        turn = 0
        while sum(kills.values()) < KILLS:
            turn += 1
            newest = add_checkpoint(run, 10 + 10 * turn, size=rng.choice((MIB, 18 * MIB)), best=10).name
            proxy.rate = 40e6
            for _try in range(8):
                kills["now"] += kill_somewhere(rng, now, took["now"])
                assert_true(run, served)
                kept = retention.protected(run.path / "backup")
                known = backups.ledger(run, REMOTE).items
                if f"checkpoints/{newest}" in known:  # a pass came so far as to look at it
                    assert kept is not None and (newest in kept or known[f"checkpoints/{newest}"].safe)
            took["now"] = timed(now)
            assert assert_true(run, served) and retention.protected(run.path / "backup") == set()
            proxy.rate = None
            for _try in range(4):
                kills["verify"] += kill_somewhere(rng, lambda: prove(rng.random() < 0.5), took["verify"])
                assert_true(run, served)
            took["verify"] = timed(lambda: prove(True))
            target = house / f"back-{turn}"
            proxy.down_rate = 60e6
            for _try in range(5):
                if not target.exists():
                    kills["restore"] += kill_somewhere(rng, bring_back, took["restore"])
            if not target.exists():
                took["restore"] = max(2.0, timed(bring_back))
            proxy.down_rate = None
            for name in ("checkpoint-10", newest):
                assert not subprocess.run(
                    ["diff", "-r", run.checkpoints / name, target / "checkpoints" / name]
                ).returncode
            shutil.rmtree(target)
            for old in run.checkpoints.glob("checkpoint-*"):
                if old.name not in ("checkpoint-10", newest):
                    shutil.rmtree(old)
            print(f"kills {kills}, seconds undisturbed {took}", flush=True)


def timed(work: Callable[[], object]) -> float:
    """Run something to its end; its seconds."""
    began = time.monotonic()
    assert ended(fork(work), 900) == 0
    return time.monotonic() - began
