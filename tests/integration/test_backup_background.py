"""Backups in the background: after a sealed checkpoint, unasked, through kills and refused credentials."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine import keeper
from engine.backup import control, progress
from engine.files import read_json
from engine.journal import read_all
from engine.keeper.backups import Backups
from engine.process import ProcessId, marked
from engine.run import resuming
from engine.run.status import status
from engine.workspace import RunFolder, Workspace
from tests.support import backups
from tests.support.backups import MIB, add_checkpoint, make_run, states
from tests.support.fault_proxy import FaultProxy
from tests.support.runs import StandIn, at_step, ended, wait_for

BUCKET = "ftui-test"
REMOTE = f"s3:{BUCKET}/bg"


@pytest.fixture
def server(house: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setenv("RCLONE_CONFIG", str(house / "rclone.conf"))
    (house / "srv" / BUCKET).mkdir(parents=True)
    with backups.serve_s3(house / "srv") as port:
        backups.conf(house / "rclone.conf", s3=port)
        yield port


def safe(run: RunFolder, *names: str) -> bool:
    known = states(run, REMOTE)
    return all(known.get(name) in ("VERIFIED_ETAG", "VERIFIED_FULL") for name in names)


def worker_of(workspace: Workspace, run: RunFolder) -> ProcessId | None:
    running = progress.read(run.path / "backup")
    return ProcessId.from_json(running["process"]) if running else None


def test_after_each_sealed_checkpoint_and_at_low_priority(house: Path, server: int) -> None:
    workspace = Workspace(house / "ft")
    run = make_run(workspace.root, size=MIB, backup={"to": REMOTE, "verify": "etag"})
    quiet = make_run(house / "quiet", "quiet")
    quiet.path.rename(workspace.runs_dir / "quiet")  # a run without a remote is left alone
    before = keeper.ensure(workspace, idle=3.0)
    wait_for(lambda: safe(run, "run", "checkpoints/checkpoint-20", "checkpoints/checkpoint-40"), 60)
    add_checkpoint(run, 60, best=20)
    wait_for(lambda: safe(run, "checkpoints/checkpoint-60"), 60)
    assert read_json(run.path / "backup" / "protected.json") == {"format": 1, "checkpoints": []}
    assert not (workspace.runs_dir / "quiet" / "backup" / "pass.json").exists()
    wait_for(lambda: not before.alive(), 30, "the keeper ends when nothing is left")


def test_killed_worker_and_keeper_lose_nothing(house: Path, server: int) -> None:
    workspace = Workspace(house / "ft")
    with FaultProxy(server) as proxy:
        proxy.rate = 8e6
        backups.conf(house / "rclone.conf", s3=proxy.port)
        run = make_run(workspace.root, steps=(40,), size=24 * MIB, backup=REMOTE)
        process = keeper.ensure(workspace)
        worker = wait_for(lambda: worker_of(workspace, run), 60)
        assert worker is not None and os.getpriority(os.PRIO_PROCESS, worker.pid) == control.NICE
        wait_for(lambda: (progress.read(run.path / "backup") or {}).get("bytes_done", 0) > MIB, 60)
        assert worker.send(signal.SIGKILL)
        again = wait_for(lambda: (found := worker_of(workspace, run)) != worker and found, 60)
        assert process.send(signal.SIGKILL)
        wait_for(lambda: not again.alive(), 30, "the worker does not outlive its keeper")
        proxy.rate = None
        assert keeper.ensure(workspace) != process
        wait_for(lambda: safe(run, "run", "checkpoints/checkpoint-40"), 60)
        keeper.stop(workspace)
    there = house / "srv" / BUCKET / "bg" / "demo" / "checkpoints" / "checkpoint-40" / "optimizer.pt"
    assert there.read_bytes() == (run.checkpoints / "checkpoint-40" / "optimizer.pt").read_bytes()


def test_refused_credentials_are_told_once_and_tried_again_when_renewed(house: Path, server: int) -> None:
    workspace = Workspace(house / "ft")
    good = (house / "rclone.conf").read_text()
    (house / "rclone.conf").write_text(good.replace(backups.SECRET, "expired"))
    run = make_run(workspace.root, steps=(40,), backup=REMOTE)
    keeper.ensure(workspace)
    notices = workspace.keeper_dir / "notices.jsonl"
    wait_for(lambda: read_all(notices), 60)
    assert read_all(notices)[0]["kind"] == "backup_auth"
    assert states(run, REMOTE)["checkpoints/checkpoint-40"] == "AUTH_NEEDED"
    assert read_json(run.path / "backup" / "protected.json")["checkpoints"] == ["checkpoint-40"]
    (house / "rclone.conf").write_text(good)
    wait_for(lambda: safe(run, "run", "checkpoints/checkpoint-40"), 60, "it does not wait for the next retry")
    wait_for(lambda: [notice["kind"] for notice in read_all(notices)] == ["backup_auth", "backup_ok"], 30)
    keeper.stop(workspace)
    for path in workspace.root.rglob("*"):
        assert not path.is_file() or backups.SECRET.encode() not in path.read_bytes(), path


def test_paused_and_limited_while_it_runs(house: Path, server: int) -> None:
    workspace = Workspace(house / "ft")
    control.change(workspace, limit=3e6)
    run = make_run(workspace.root, steps=(40,), size=24 * MIB, backup=REMOTE)
    backs = Backups(workspace, _Silent())  # type: ignore[arg-type]
    try:
        backs.look()
        wait_for(lambda: (backs.look(), (progress.read(run.path / "backup") or {}).get("limit") == 3e6)[1], 60)
        control.change(workspace, paused=True)
        wait_for(lambda: (progress.read(run.path / "backup") or {}).get("state") == "PAUSED", 30)
        control.change(workspace, paused=False, limit=None)
        wait_for(lambda: (backs.look(), safe(run, "run", "checkpoints/checkpoint-40"))[1], 60)
    finally:
        backs.stop()


class _Silent:
    def append(self, *_event: object, **_fields: object) -> None: ...


def test_a_restored_run_goes_on_elsewhere(house: Path, server: int, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = StandIn(house / "ft", monkeypatch)
    run = stand_in.start("demo", recipe={"backup": REMOTE}, steps=5000, save_every=5)
    try:
        at_step(run, 12)
        keeper.ensure(stand_in.workspace)
        wait_for(lambda: any(safe(run, name) for name in states(run, REMOTE) if name.startswith("checkpoints/")), 60)
        risk = wait_for(lambda: (found := status(run)["at_risk"])["safe_step"] and found, 30)
        assert risk["safe_step"] % 5 == 0 and risk["steps"] + risk["safe_step"] >= 12
    finally:
        keeper.stop(stand_in.workspace)
        stand_in.clear()
    moved = house / "elsewhere"
    from engine.backup.rclone import Daemon
    from engine.backup.restore import restore

    with Daemon(house / "rclone.conf") as daemon:
        document = restore(Workspace(moved).prepare(), daemon, f"{REMOTE}/demo")
    back = Workspace(moved).find("demo")
    newest = max(document["checkpoints"])
    stand_in.plan(steps=newest + 10)
    monkeypatch.setenv("FTUI_HOME", str(moved))
    resuming.resume(back)
    assert ended(back)["state"] == "done"
    assert read_all(back.events)[-1]["event"] == "done"
    keeper.stop(Workspace(moved))
    assert not marked("FTUI_RUN", str(back.path))
