"""`ftui ckpt`: list, pin, prune and export, as a user and a script see them."""

from __future__ import annotations

import json
import os

import pytest

from engine.checkpoint import manifest, pins, retention
from engine.files import write_json
from engine.workspace import Workspace
from tests.support.checkpoints import write_checkpoint
from tui import cli


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    monkeypatch.setenv("FTUI_HOME", str(tmp_path / "home"))
    return Workspace(tmp_path / "home").prepare()


@pytest.fixture
def run(workspace):
    folder = workspace.runs_dir / "mine"
    folder.mkdir()
    write_json(folder / "resolved.json", {"format": 1, "recipe": {"save_total_limit": 2}})
    write_json(folder / "state.json", {"format": 1, "state": "stopped"})
    for step in (10, 20, 30, 40):
        add(folder, step)
    return folder


def add(run, step):
    staging = write_checkpoint(run / "checkpoints" / f".staging-{step}", step)
    metrics = {"loss": 100 / step, "eval_loss": 101 / step}
    manifest.seal(staging, run / "checkpoints" / f"checkpoint-{step}", {"step": step, "metrics": metrics})


def ftui(capsys, *argv):
    code = cli.main(["ckpt", *argv, "--json"])
    return code, json.loads(capsys.readouterr().out)


def steps_of(run):
    return sorted(int(path.name.partition("-")[2]) for path in (run / "checkpoints").glob("checkpoint-*"))


def test_list(run, capsys):
    (run / "checkpoints" / "checkpoint-40" / "optimizer.pt").unlink()
    code, document = ftui(capsys, "list", "mine")
    assert code == 0
    rows = document["checkpoints"]
    assert [row["step"] for row in rows] == [10, 20, 30, 40]
    assert [row["state"] for row in rows] == ["complete", "complete", "complete", "broken"]
    assert rows[0]["loss"] == 10
    assert document["resume_from"].endswith("checkpoint-30")


def test_list_for_people(run, capsys):
    cli.main(["ckpt", "pin", "mine", "20"])
    capsys.readouterr()
    assert cli.main(["ckpt", "list", "mine"]) == 0
    text = capsys.readouterr().out
    assert "pinned" in text
    assert [line.split()[1] for line in text.splitlines() if line.startswith(">")] == ["40"]


def test_verify_a_run_by_name_and_step(run, capsys):
    code, document = ftui(capsys, "verify", "mine", "--step", "20")
    assert code == 0
    assert [entry["step"] for entry in document["checkpoints"]] == [20]
    assert document["resume_from"].endswith("checkpoint-20")


def test_verify_for_people(run, capsys):
    os.truncate(run / "checkpoints" / "checkpoint-40" / "adapter_model.safetensors", 100)
    assert cli.main(["ckpt", "verify", "mine"]) == 1
    text = capsys.readouterr().out
    assert "truncated_safetensors" in text
    assert "fix  resume from" in text
    assert text.splitlines()[-1] == "resume from checkpoint-30"


def test_quick_does_not_read(run, capsys):
    path = run / "checkpoints" / "checkpoint-40" / "trainer_state.json"
    path.write_text(path.read_text().replace("100", "200"))
    assert ftui(capsys, "verify", "mine", "--quick")[0] == 0
    assert ftui(capsys, "verify", "mine")[0] == 1


@pytest.mark.parametrize("argv", [["verify", "nothing"], ["verify", "/no/such/folder"], ["list", "nothing"], ["pin", "mine", "11"], ["unpin", "mine", "10"]])  # fmt: skip  # noqa: E501
def test_wrong_names(run, capsys, argv):
    code, document = ftui(capsys, *argv)
    assert code == 2
    assert document["error"]["message"]
    assert document["error"]["fix"]


def test_nothing_to_resume_from(run, capsys):
    for step in (10, 20, 30, 40):
        (run / "checkpoints" / f"checkpoint-{step}" / "scheduler.pt").unlink()
    code, document = ftui(capsys, "verify", "mine")
    assert code == 4
    assert document["resume_from"] is None


def test_retention_leaves_pinned_ones(run, capsys):
    assert ftui(capsys, "pin", "mine", "10")[1]["pinned"] == ["checkpoint-10"]
    retention.retire(run / "checkpoints", retention.Policy(keep_last=1))
    assert steps_of(run) == [10, 40]
    assert ftui(capsys, "unpin", "mine", "10")[1]["pinned"] == []
    retention.retire(run / "checkpoints", retention.Policy(keep_last=1))
    assert steps_of(run) == [40]


def test_pins_and_backups_protect_together(run, capsys):
    pins.change(run, add="checkpoint-10")
    (run / "backup").mkdir()
    write_json(run / "backup" / "protected.json", {"checkpoints": ["checkpoint-20"]})
    assert retention.protected(run / "backup") == {"checkpoint-10", "checkpoint-20"}


def test_unreadable_pins_stop_every_removal(run, capsys):
    (run / "pins.json").write_text("{")
    assert retention.protected(run / "backup") is None
    assert ftui(capsys, "prune", "mine", "--yes")[1]["error"]["kind"] == "protected_unreadable"
    assert ftui(capsys, "pin", "mine", "10")[1]["error"]["kind"] == "pins_unreadable"
    assert (run / "pins.json").read_text() == "{"
    assert steps_of(run) == [10, 20, 30, 40]


def test_pin_dry_run(run, capsys):
    assert ftui(capsys, "pin", "mine", "10", "--dry-run")[0] == 0
    assert not (run / "pins.json").exists()


def test_prune_shows_first(run, capsys):
    code, document = ftui(capsys, "prune", "mine")
    assert code == 0
    assert [row["step"] for row in document["checkpoints"] if row["goes"]] == [10, 20]
    assert steps_of(run) == [10, 20, 30, 40]
    assert document["bytes"] > 0


def test_prune(run, capsys):
    state = json.loads((run / "checkpoints" / "checkpoint-40" / "trainer_state.json").read_text())
    state["best_model_checkpoint"] = "/elsewhere/checkpoint-20"
    staging = write_checkpoint(run / "checkpoints" / ".staging-50", 50)
    write_json(staging / "trainer_state.json", {**state, "global_step": 50})
    manifest.seal(staging, run / "checkpoints" / "checkpoint-50", {"step": 50})
    write_checkpoint(run / "checkpoints" / "checkpoint-60", 60)  # not sealed: not ours
    pins.change(run, add="checkpoint-10")
    document = ftui(capsys, "prune", "mine", "--keep", "1", "--yes")[1]
    assert steps_of(run) == [10, 20, 50, 60]
    reasons = {row["step"]: row["reason"] for row in document["checkpoints"]}
    assert reasons[10] == "pinned"
    assert reasons[20] == "the best"
    assert reasons[50] == "among the newest 1"
    assert [row["step"] for row in document["checkpoints"] if row["removed"]] == [30, 40]


def test_prune_never_takes_the_last_whole_one(run, capsys):
    for step in (20, 30, 40):
        (run / "checkpoints" / f"checkpoint-{step}" / "optimizer.pt").unlink()
    assert ftui(capsys, "prune", "mine", "--keep", "1", "--yes")[0] == 0
    assert 10 in steps_of(run)
    assert ftui(capsys, "prune", "mine", "--keep", "0")[0] == 2


def test_export(run, capsys, tmp_path):
    code, document = ftui(capsys, "export", "mine", "30", str(tmp_path / "out" / "deep"))
    assert code == 0
    target = tmp_path / "out" / "deep" / "checkpoint-30"
    assert document["path"] == str(target)
    assert ftui(capsys, "verify", str(tmp_path / "out" / "deep"))[0] == 0
    assert manifest.damage(target, manifest.read(target), check_hash=True) == []
    assert [path.name for path in target.parent.iterdir()] == ["checkpoint-30"]
    assert ftui(capsys, "export", "mine", "30", str(tmp_path / "out" / "deep"))[1]["error"]["kind"] == "exists"


def test_export_refuses_what_is_not_whole(run, capsys, tmp_path):
    path = run / "checkpoints" / "checkpoint-30" / "adapter_model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert ftui(capsys, "export", "mine", "30", str(tmp_path / "out"))[0] == 4
    assert list((tmp_path / "out").iterdir()) == []


def test_export_dry_run(run, capsys, tmp_path):
    assert ftui(capsys, "export", "mine", "30", str(tmp_path / "out"), "--dry-run")[0] == 0
    assert not (tmp_path / "out").exists()
