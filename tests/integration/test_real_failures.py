"""Failures that a CPU can cause for real: what a rank reports, and what the post-mortem makes of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.files import write_json
from engine.run import diagnose
from engine.run.statefile import fresh
from engine.workspace import RunFolder

PROGRAM = Path(__file__).parents[1] / "support" / "real_failures.py"
ROOT = Path(__file__).parents[2]


def caused(what: str, folder: Path) -> dict[str, Any]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-P", PROGRAM, what, folder], capture_output=True, text=True, env=env, timeout=120
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert lines, done.stderr[-2000:]
    return json.loads(lines[-1])


def post_mortem(house: Path, error: dict[str, Any]) -> diagnose.Diagnosis:
    """What is made of a rank's report, with its traceback in the log."""
    run = RunFolder(house / "ft" / "runs" / "a")
    run.logs.mkdir(parents=True, exist_ok=True)
    recipe = {"per_device_train_batch_size": 2, "max_length": 512, "method": "lora", "dataset_path": "d.jsonl"}
    write_json(run.resolved, {"recipe": recipe, "origin": {}})
    write_json(run.state, fresh("a", state="failed", error={k: v for k, v in error.items() if k != "text"}))
    (run.logs / "rank-0.log").write_text("loading\n" + error["text"] + "\n")
    found = diagnose.diagnose(run)
    assert found is not None
    return found


@pytest.fixture
def full_disk(house: Path) -> Iterator[Path]:
    disk = house / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("cannot mount a small disk here")
    yield disk
    subprocess.run(["umount", disk], check=True)


@pytest.mark.heavy
def test_memory_at_its_limit(house: Path) -> None:
    told = caused("memory", house)
    assert (told["kind"], told["phase"]) == ("out_of_memory", "forward")
    assert told["memory"]["limit"] == 8 << 30 and told["memory"]["resident"] > 0
    found = post_mortem(house, told)
    assert found.kind == "out_of_memory" and found.evidence[0].line == 2
    assert found.fixes[0].changes == ["per_device_train_batch_size=1"]
    assert "limit 8.6 GB" in diagnose.memory_words(found.memory or {})


def test_the_interpreters_own_memory(house: Path) -> None:
    assert caused("python_memory", house)["kind"] == "out_of_memory"


@pytest.mark.heavy
@pytest.mark.parametrize("what", ["full_torch", "full_safetensors", "full_write"])
def test_a_full_disk(house: Path, full_disk: Path, what: str) -> None:
    told = caused(what, full_disk)
    assert told["kind"] == "disk_full", told
    found = post_mortem(house, told)
    assert found.kind == "disk_full"
    assert "ftui ckpt prune a --yes" in [fix.command for fix in found.fixes]


@pytest.mark.heavy
@pytest.mark.parametrize(("what", "kind"), [("timeout", "collective_timeout"), ("killed_peer", "peer_lost")])
def test_a_rank_without_the_other(house: Path, what: str, kind: str) -> None:
    told = caused(what, house)
    assert told["kind"] == kind, told
    assert post_mortem(house, told).kind == kind


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("what", "kind"), [("hub", "hub"), ("template", "template"), ("refused", "template"), ("versions", "versions")]
)
def test_what_cannot_be_loaded(house: Path, what: str, kind: str) -> None:
    told = caused(what, house)
    assert told["kind"] == kind, told
    found = post_mortem(house, told)
    assert found.kind == kind and found.evidence
