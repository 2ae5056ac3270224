"""The lease with real processes: a keeper that stops a run in time, sends it elsewhere and says what is safe."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine import keeper, settings
from engine.files import read_json
from engine.journal import read_all
from engine.lease import clock, handback, record, when
from engine.run.status import status
from engine.workspace import Workspace
from tests.support import backups
from tests.support.backups import make_run, states
from tests.support.runs import StandIn, at_step, wait_for
from tui.cli import main

BUCKET = "ftui-test"
REMOTE = f"s3:{BUCKET}/lease"


@pytest.fixture
def server(house: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setenv("RCLONE_CONFIG", str(house / "rclone.conf"))
    (house / "srv" / BUCKET).mkdir(parents=True)
    with backups.serve_s3(house / "srv") as port:
        backups.conf(house / "rclone.conf", s3=port)
        yield port


@pytest.fixture
def stand_in(house: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    made = StandIn(house / "ft", monkeypatch)
    yield made
    made.clear()


def notices(workspace: Workspace) -> list[str]:
    return [event["kind"] for event in read_all(workspace.keeper_dir / "notices.jsonl")]


def test_a_run_is_stopped_saved_sent_and_proved_before_the_end(
    stand_in: StandIn, server: int, capsys: pytest.CaptureFixture[str]
) -> None:
    workspace = stand_in.workspace
    settings.save(lease_margin_min=0)
    run = stand_in.start(
        "demo", steps=100_000, step_time=0.05, save_every=5, recipe={"backup": REMOTE, "save_steps": 5}
    )
    at_step(run, 6)
    main(["backup", "pause"])
    now = clock.now()
    # so little time that the autopilot must act within seconds, and enough to finish
    record.save(workspace, when.When(now.wall + 60, "in 60s", relative=True), now)
    first = keeper.ensure(workspace, idle=600.0)
    wait_for(lambda: status(run)["state"] == "stopped", 90, "the run is stopped")
    first.send(signal.SIGKILL)  # whoever ends the keeper in the middle of it
    wait_for(lambda: not first.alive())
    keeper.ensure(workspace, idle=600.0)
    wait_for(lambda: "lease_safe" in notices(workspace), 90, "everything is proved")
    step = status(run)["step"]
    assert states(run, REMOTE)[f"checkpoints/checkpoint-{step}"].startswith("VERIFIED")
    told = notices(workspace)
    assert told.index("lease_stop") < told.index("lease_safe") and "backup_unpaused" in told
    state = read_json(workspace.keeper_dir / "autopilot.json")
    assert isinstance(state, dict) and state["phase"] == "act" and state["safe"]
    capsys.readouterr()
    code = main(["lease", "check", "--json"])
    found = json.loads(capsys.readouterr().out)
    (ours,) = [thing for thing in found["things"] if thing["kind"] == "run"]
    assert ours["safe"] and ours["where"] == f"{REMOTE}/demo"
    assert code == (0 if found["safe"] else 1)
    assert keeper.stop(workspace)


def test_the_hand_back_check(house: Path, server: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Everything of value is listed, and counts as safe only by a proof, a disk, or the user's word."""
    workspace = Workspace(house / "ft").prepare()
    run = make_run(workspace.root, "far", size=1 << 20, backup=REMOTE)

    def things() -> dict[str, handback.Thing]:
        return {f"{thing.kind} {thing.name}": thing for thing in handback.check(workspace).things}

    before = things()
    assert not before["run far"].safe and "not sent" in before["run far"].reason
    assert not before["data train.jsonl"].safe
    assert main(["backup", "now", "far"]) == 0
    after = things()
    assert after["run far"].where == f"{REMOTE}/far" and after["data train.jsonl"].safe
    assert main(["lease", "check"]) == 0
    # the dataset is changed: what is at the remote is another one
    dataset = workspace.root / "train.jsonl"
    dataset.write_text(dataset.read_text() + '{"text": "more"}\n')
    changed = things()
    assert not changed["data train.jsonl"].safe and not changed["run far"].safe
    assert main(["lease", "check"]) == 1
    assert main(["backup", "now", "far"]) == 0 and things()["run far"].safe
    # a merged model, settings, choices by hand, a run without a remote
    merged = house / "merged-model"
    merged.mkdir()
    (merged / "model.safetensors").write_bytes(b"x" * 1000)
    (workspace.root / "merged.jsonl").write_text(json.dumps({"event": "merged", "path": str(merged)}) + "\n")
    (workspace.root / "dropped_rows.jsonl").write_text("{}\n")
    settings.save(price=2.0)
    other = make_run(house / "elsewhere", "near")
    other.path.rename(workspace.runs_dir / "near")
    bad = {name for name, thing in things().items() if not thing.safe}
    assert {"merged merged-model", "settings settings.yaml", "settings dropped_rows.jsonl", "run near"} <= bad
    assert main(["lease", "accept", str(merged)]) == 0 and things()["merged merged-model"].safe
    (merged / "model.safetensors").write_bytes(b"y" * 1001)
    assert not things()["merged merged-model"].safe, "it is not what was said to be elsewhere"
    capsys.readouterr()
    assert main(["lease", "check"]) == 1
    text = capsys.readouterr().out
    assert text.startswith("no: ") and "it has no remote" in text and "ftui lease disk" in text
    assert main(["lease", "disk", str(house), "persistent"]) == 0
    assert main(["lease", "check"]) == 0
    assert run.path.is_dir()


def test_a_folder_of_this_server_is_no_remote(house: Path) -> None:
    workspace = Workspace(house / "ft").prepare()
    make_run(workspace.root, "far", backup=str(house / "copies"))
    assert main(["backup", "now", "far"]) == 0
    (thing,) = [thing for thing in handback.check(workspace).things if thing.kind == "run"]
    assert not thing.safe and "folder of this server" in thing.reason
