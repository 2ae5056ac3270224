"""Adapters out of sharded runs: a checkpoint of two ranks merges as any other; one without weights says so."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import matrix
from tests.support.train import Runs

pytestmark = [pytest.mark.heavy, pytest.mark.soak, pytest.mark.timeout(900)]


def merge(*words: object) -> tuple[int, dict[str, object], str]:
    argv = [sys.executable, "-P", "-m", "tui", "merge", "--json", *map(str, words)]
    finished = subprocess.run(argv, capture_output=True, text=True, timeout=300)
    return finished.returncode, json.loads(finished.stdout or "{}"), finished.stderr


@pytest.mark.parametrize("sharding", ["fsdp2", "zero2", "zero3"])
def test_a_checkpoint_of_two_ranks_merges(sharding: str, train_runs: Runs, tmp_path: Path) -> None:
    outcome = matrix.run(train_runs, matrix.cell("SFT", "LoRA", sharding, tmp_path))
    assert outcome.code == 0, outcome.error
    run = outcome.started.run
    for name, words in {"step": ["--step", matrix.STEPS], "final": []}.items():
        code, document, said = merge(run.path, "--out", tmp_path / name, *words)
        assert code == 0, said
        assert document["verified"] and document["max_abs_diff"] == 0 and document["tensors_merged"]
    ours = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("step", "final")]
    assert ours[0] == ours[1]


def test_shards_alone_are_no_model(train_runs: Runs, tmp_path: Path) -> None:
    outcome = matrix.run(train_runs, matrix.cell("SFT", "full", "fsdp2", tmp_path))
    assert outcome.code == 0, outcome.error
    run = outcome.started.run
    code, document, said = merge(run.path, "--step", matrix.STEPS, "--out", tmp_path / "out")
    assert code == 2 and "only the shards" in str(document) + said
    assert (run.final / "config.json").is_file() and any(run.final.glob("*.safetensors"))
