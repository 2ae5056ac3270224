"""`ftui eval`, `ftui compare` and `ftui merge` as commands: usage errors, and what compare prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.workspace import Workspace
from tests.support.evaluation_folder import evaluated, lines, run_folder
from tui.cli import main


@pytest.fixture
def workspace(house: Path) -> Workspace:
    return Workspace(house / "ft").prepare()


def test_compare_shows_settings_results_and_curves(workspace: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    for name, rank, right, scale in (("a-1", 8, 2, 2.0), ("a-2", 16, 11, 1.0)):
        run = run_folder(workspace, name, lora_r=rank)
        evaluated(run, right=right, passed=right > 5)
        run.journal.write_bytes(lines([{"event": "log", "step": s, "loss": scale / s} for s in range(1, 50)]))
    assert main(["compare", "a-1", "a-2"]) == 0
    text = capsys.readouterr().out
    assert "lora_r" in text and "a-2 less a-1" in text and "+75.0 %" in text and "failed" in text
    plot = [line for line in text.splitlines() if "│" in line]
    assert len(plot) == 14 and any("*" in line for line in plot) and any("+" in line for line in plot)
    assert main(["compare", "a-1", "a-2", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [run["name"] for run in document["runs"]] == ["a-1", "a-2"] and len(document["curves"][0]["steps"]) == 49


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["compare", "a-1", "a-1"], "nothing to compare with"),
        (["compare", "a-1", "zz"], "no run 'zz'"),
        (["eval", "zz"], "no run 'zz'"),
        (["eval", "a-1"], "neither a result nor a whole checkpoint"),
        (["eval", "a-1", "--step", "7"], "no whole checkpoint of step 7"),
        (["eval", "a-1", "--gate", "eval_loss"], "neither a result"),
    ],
)
def test_wrong_usage_is_one_clear_error(
    workspace: Workspace, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    run_folder(workspace, "a-1")
    assert main([*words, "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert said in error["message"] and error["fix"]


def test_what_is_no_model_is_told(workspace: Workspace, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    assert main(["eval", str(tmp_path / "empty")]) == 2
    assert "neither an adapter nor a model" in capsys.readouterr().err
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text('{"base_model_name_or_path": "someone/something"}')
    assert main(["eval", str(tmp_path / "adapter")]) == 2
    assert "someone/something is not on this machine" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--gate", "eval_los < 1"], "no metric 'eval_los'"),
        (["--metric", "exact_mach"], "no metric 'exact_mach'"),
        (["--metric", "nowhere.py:f"], "nowhere.py"),
        (["--data", "nowhere.jsonl"], "no data at this path"),
    ],
)
def test_what_is_asked_for_is_checked_before_a_model_loads(
    workspace: Workspace, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    base = tmp_path / "base"
    base.mkdir()
    (base / "config.json").write_text("{}")
    run = run_folder(workspace, "a-1")
    run.final.mkdir()
    (run.final / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(base)}))
    assert main(["eval", "a-1", *options]) == 2
    assert said in capsys.readouterr().err


def test_merge_refuses_what_the_gate_refused(
    workspace: Workspace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_folder(workspace, "a-1", gates=["exact_match >= 0.5"])
    run.final.mkdir()
    (run.final / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(tmp_path / "none")}))
    evaluated(run, passed=False)
    command = ["merge", "a-1", "--out", str(tmp_path / "out")]
    assert main(command) == 4
    assert "the gate said no" in capsys.readouterr().err
    assert main([*command, "--ignore-gate"]) == 1  # it looks for the base now, which is not there
    assert "the gate said no" not in capsys.readouterr().err
