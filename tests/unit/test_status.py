"""What readers make of a run folder: who lives, what would be lost, and folders that are no runs."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from engine.files import write_json
from engine.journal import JournalWriter
from engine.process import ProcessId
from engine.run import status
from engine.run.statefile import StateFile, fresh
from engine.workspace import RunFolder, Workspace


def make(home: Path, name: str, **fields: Any) -> RunFolder:
    run = RunFolder(Workspace(home).prepare().runs_dir / name)
    run.path.mkdir()
    write_json(run.state, fresh(name, **{"supervisor": ProcessId.current().to_json(), **fields}))
    return run


@pytest.mark.parametrize("state", ["starting", "running", "saving"])
def test_a_live_state_needs_its_supervisor(tmp_path: Path, state: str) -> None:
    me = ProcessId.current()
    run = make(tmp_path, "a", state=state, eta_s=5.0)
    assert status.summary(run)["state"] == state
    assert status.summary(run)["eta_s"] == 5.0
    for wrong in (
        None,
        {},
        ProcessId(me.pid, me.start + 1, me.boot).to_json(),
        ProcessId(me.pid, me.start, "x").to_json(),
    ):
        write_json(run.state, fresh("a", state=state, supervisor=wrong, eta_s=5.0))
        assert status.summary(run)["state"] == "lost"
        assert status.summary(run)["eta_s"] is None
        assert not status.is_alive(run)


def test_a_zombie_supervisor_is_lost(tmp_path: Path) -> None:
    child = subprocess.Popen(["true"])
    time.sleep(0.1)
    run = make(tmp_path, "a", state="running", supervisor=ProcessId.of(child.pid).to_json())
    assert status.summary(run)["state"] == "lost"
    child.wait()


@pytest.mark.parametrize("state", ["queued", "stopped", "done", "failed"])
def test_other_states_stand_without_a_process(tmp_path: Path, state: str) -> None:
    assert status.summary(make(tmp_path, "a", state=state, supervisor=None))["state"] == state


def test_a_clock_that_goes_back_kills_nothing(tmp_path: Path) -> None:
    for moment in (0.0, time.time() - 10**8, time.time() + 10**8):
        run = make(tmp_path / str(moment), "a", state="running", updated=moment, created=moment)
        assert status.summary(run)["state"] == "running"


def test_listing_is_newest_first_and_leaves_out_what_is_no_run(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path).prepare()
    assert status.listing(workspace) == []
    for age, name in enumerate(("new", "middle", "old")):
        make(tmp_path, name, created=1000.0 - age, state="done")
    (workspace.runs_dir / "somebodys-folder").mkdir()
    (workspace.runs_dir / ".new-1-2").mkdir()
    (workspace.runs_dir / "a-file").write_text("x")
    broken = workspace.runs_dir / "broken"
    broken.mkdir()
    (broken / "state.json").write_text('{"state": "runni')
    (broken / "resolved.json").write_text("{}")
    rows = status.listing(workspace)
    assert [row["name"] for row in rows if row["name"] != "broken"] == ["new", "middle", "old"]
    assert next(row for row in rows if row["name"] == "broken")["state"] == "lost"
    wanted = {"name", "state", "step", "max_steps", "loss", "eval_loss", "eta_s", "path", "error"}
    assert all(wanted <= row.keys() for row in rows)


def test_at_risk_counts_from_the_last_sealed_checkpoint(tmp_path: Path) -> None:
    run = make(tmp_path, "a", state="running", step=140, last_checkpoint={"step": 100, "path": "x", "time": 0.0})
    assert status.at_risk(run) == {"steps": 40, "seconds": None, "money": None}
    write_json(run.state, {**run.read_state(), "unsaved_s": 61.5})
    assert status.at_risk(run) == {"steps": 40, "seconds": 61.5, "money": None}
    write_json(run.state, {**run.read_state(), "last_checkpoint": None})
    assert status.at_risk(run)["steps"] == 140
    write_json(run.state, {**run.read_state(), "state": "done"})
    assert status.at_risk(run) == {"steps": 0, "seconds": 0.0, "money": None}


def test_a_price_turns_time_into_money(tmp_path: Path) -> None:
    from engine import settings

    settings.save(price=36.0, price_currency="EUR", price_period="hour")
    run = make(tmp_path, "a", state="running", step=100, unsaved_s=100.0)
    assert status.at_risk(run)["money"] == {"amount": pytest.approx(1.0), "currency": "EUR"}
    settings.save(price=730.0, price_period="month")
    assert status.at_risk(run)["money"]["amount"] == pytest.approx(100 / 3600)


def test_status_shows_the_runs_own_gpus_and_its_last_events(tmp_path: Path) -> None:
    run = make(tmp_path, "a", state="running", gpus=["GPU-1"])
    gpus = [{"index": n, "uuid": f"GPU-{n}", "memory_used": n} for n in range(3)]
    JournalWriter(run.hardware).append("sample", gpus=gpus, host={"cpu": 1.0}, disk=None)
    events = JournalWriter(run.events)
    for number in range(50):
        events.append("control", do="save", number=number)
    document = status.status(run)
    assert [gpu["index"] for gpu in document["gpus"]] == [1]
    assert [event["number"] for event in document["events"]] == list(range(30, 50))
    assert document["plan"] is None and document["host"] == {"cpu": 1.0}


def test_listing_loads_nothing_slow(tmp_path: Path) -> None:
    make(tmp_path, "a")
    code = (
        "import sys\nfrom pathlib import Path\nfrom engine.run import status\nfrom engine.workspace import Workspace\n"
        "assert len(status.listing(Workspace(Path(sys.argv[1])))) == 1\n"
        "slow = {'psutil', 'pydantic', 'babel', 'yaml', 'httpx', 'textual', 'subprocess', 'numpy', 'shutil'}\n"
        "print(sorted(slow & sys.modules.keys()))"
    )
    said = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"


def test_the_state_file_is_written_on_change_only_and_at_most_twice_a_second(tmp_path: Path) -> None:
    run = make(tmp_path, "a")
    state = StateFile(run)
    state.flush()
    first = run.state.stat().st_mtime_ns
    state.tick()
    assert run.state.stat().st_mtime_ns == first
    state.set(step=1)
    state.tick()
    assert run.read_state()["step"] == 0
    time.sleep(0.55)
    state.tick()
    assert run.read_state()["step"] == 1
    second = run.state.stat().st_mtime_ns
    state.set(step=1)
    time.sleep(0.55)
    state.tick()
    assert run.state.stat().st_mtime_ns == second


WRONG = ["x", [1], {"a": 1}, True, -5, 1e25, "running"]


@pytest.mark.parametrize("wrong", WRONG)
def test_a_damaged_state_file_stops_no_reader(tmp_path: Path, wrong: Any, capsys: pytest.CaptureFixture[str]) -> None:
    from tui.cli import main
    from tui.sources.run_listing import RunListing
    from tui.sources.run_source import RunSource

    whole = fresh("x", state="stopped", supervisor=None, error={"message": "m"}, last_checkpoint={"step": 3})
    for key in whole:
        write_json(make(tmp_path, f"bad-{key}").state, {**whole, key: wrong})
    write_json(make(tmp_path, "all").state, dict.fromkeys(whole, wrong))
    inner = {"error": {"message": wrong}, "last_checkpoint": {"step": wrong}}
    write_json(make(tmp_path, "inner").state, {**whole, **inner})
    make(tmp_path, "garbage").state.write_bytes(b"\xff\x00{" * 1000)
    runs = Workspace(tmp_path).folders()
    assert len(RunListing(Workspace(tmp_path)).poll()) == len(runs)
    assert main(["--home", str(tmp_path), "runs"]) == 0
    for run in runs:
        assert status.status(run)["state"] and RunSource(run).poll().state
    for name in ("all", "inner", "garbage", "bad-step", "bad-last_checkpoint"):
        assert main(["--home", str(tmp_path), "status", name]) == 0, name
    assert "should not" not in "".join(capsys.readouterr())


def test_an_error_that_quotes_escape_sequences_reaches_no_terminal(tmp_path: Path) -> None:
    from tui.sources.run_listing import RunListing
    from tui.widgets.run_events import describe

    nasty = {"kind": "crash", "message": "\x1b[2J\x1b]0;x\x07boom\x9b", "fix": "\x1b[31mread", "exit_code": 1}
    run = make(tmp_path, "a", state="failed", error=nasty)
    assert status.summary(run)["error"]["message"] == "boom"
    (row,) = RunListing(Workspace(tmp_path)).poll()
    assert (row.error, row.fix) == ("boom", "read")
    told = describe({"event": "failed", "error": nasty})
    assert told is not None and told[0] == "failed: boom"


@pytest.mark.parametrize(
    "plan",
    [
        {},
        {"result": None, "request": {}},
        {"result": {"per_gpu": ["a"], "time": {}}, "request": {}},
        {"result": {"per_gpu": {"needs_gb": "x"}, "time": {}}, "request": {}},
        {"result": {"per_gpu": {"needs_gb": 1.0}, "time": {"hours": ["a"]}}, "request": {}},
        {"result": {"per_gpu": {"needs_gb": 1.0}, "time": {}, "corrected_by": 1.5}, "request": {}},
        {"result": {"per_gpu": {"needs_gb": 1.0}, "time": {}}, "request": "x"},
    ],
)
def test_a_damaged_plan_or_drill_is_left_out(
    tmp_path: Path, plan: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    from tui.cli import main

    run = make(tmp_path, "a", state="stopped", supervisor=None)
    write_json(run.plan, plan)
    for drill in ('{"format": 99}', '{"event": "drill", "passed": true, "step": "x"}'):
        (run.path / "drills.jsonl").write_text(drill + "\n")
        assert main(["--home", str(tmp_path), "status", "a"]) == 0, capsys.readouterr()
    found = status.status(run)
    assert found["plan"] is None and found["drill"] is None


def test_a_resolved_recipe_that_is_no_mapping_is_none(tmp_path: Path) -> None:
    run = make(tmp_path, "a")
    write_json(run.resolved, {"recipe": ["x"], "origin": 3, "source": "r.yaml"})
    assert run.read_resolved() == {"source": "r.yaml"}
