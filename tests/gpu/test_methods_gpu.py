"""On real GPUs: the matrix of methods and shardings, with what only GPUs can do. Skipped without one.

`python -m tests.support.matrix --gpus N` does the same and prints the table of docs/methods.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.hardware.gpus import Probe, visible
from tests.support import matrix
from tests.support.train import Runs, losses

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(7200)]
APART = 1e-3  # sums on a GPU have another order in each kernel
SAME_SUMS = ("SFT", "DPO", "DPO, precomputed", "pretrain, new", "pretrain, continued", "SFT, offloaded")


@pytest.fixture(scope="module")
def gpus() -> int:
    with Probe() as probe:
        found = len(visible(probe.list()))
    if not found:
        pytest.skip("no GPU")
    return found


def test_every_method_with_every_sharding(gpus: int, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    train_runs: Runs = request.getfixturevalue("train_runs")  # not before it is known that there is a GPU
    reference: dict[tuple[str, str], Any] = {}
    failed = []
    for cell in [*matrix.everything(tmp_path), *matrix.gpu_only(tmp_path)]:
        if gpus == 1 and (cell.ranks > 1 or cell.sharding == "pipeline"):
            continue
        outcome = matrix.run(train_runs, cell, gpus=gpus)
        found = losses(outcome.started.run)
        if outcome.code or len(found) != matrix.STEPS:
            failed.append(f"{cell.name}: {outcome.error or outcome.code}")
            continue
        if cell.task in SAME_SUMS and not matrix.draws_anew(cell):
            first = reference.setdefault((cell.task.removesuffix(", offloaded"), cell.method), found)
            apart = max(abs(found[step][0] - first[step][0]) for step in found)
            if apart > APART:
                failed.append(f"{cell.name}: {apart:.1e} apart")
    assert failed == []
