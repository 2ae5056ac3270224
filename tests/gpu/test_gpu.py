"""On a real GPU: what the probe says against what torch says, and a short demo run. Skipped without one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.hardware import catalogue
from engine.hardware.gpus import Gpu, Probe, visible

GIB = 1 << 30

# Prints what torch sees, allocates 2 GiB on the first GPU, and keeps them until its input ends.
TORCH = """
import json, sys, torch
p = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
rows = [{"name": q.name, "memory": q.total_memory, "uuid": str(q.uuid), "capability": f"{q.major}.{q.minor}"}
        for q in p]
block = torch.empty(2 << 30, dtype=torch.uint8, device="cuda").fill_(1)
torch.cuda.synchronize()
print(json.dumps(rows), flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def gpus() -> list[Gpu]:
    with Probe() as probe:
        found = visible(probe.list())
    if not found:
        pytest.skip("no GPU")
    return found


pytestmark = pytest.mark.heavy


def test_the_probe_agrees_with_torch(gpus: list[Gpu]) -> None:
    with Probe() as probe:
        before = {row["uuid"]: row for row in probe.sample()}
        with subprocess.Popen(
            [sys.executable, "-c", TORCH], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            rows: list[dict[str, Any]] = json.loads(process.stdout.readline())
            after = {row["uuid"]: row for row in probe.sample()}
            process.communicate("")
    by_uuid = {gpu.uuid.removeprefix("GPU-"): gpu for gpu in gpus}
    if all(gpu.parent is None for gpu in gpus):
        assert len(rows) == len(gpus)
        for row in rows:
            gpu = by_uuid[row["uuid"]]
            assert gpu.name == row["name"] and gpu.capability == row["capability"]
            # torch leaves out what the driver keeps for itself.
            assert gpu.memory_total is not None and 0.95 < row["memory"] / gpu.memory_total <= 1.0
    first = next(gpu.uuid for gpu in gpus if gpu.uuid.removeprefix("GPU-") == rows[0]["uuid"] or gpu.parent)
    grown = after[first]["memory_used"] - before[first]["memory_used"]
    assert 2 * GIB <= grown < 4 * GIB, "the allocation and the CUDA context"
    # In a container the driver may list no processes, or under the host's numbers; their memory is right all the same.
    if processes := after[first]["processes"]:
        assert any(2 * GIB <= (p["memory"] or 0) < 4 * GIB for p in processes)
    assert after[first]["temperature"] and after[first]["power"]


def test_the_catalogue_knows_the_card(gpus: list[Gpu]) -> None:
    for gpu in gpus:
        if gpu.parent is not None:
            continue
        card = catalogue.lookup(gpu.name)
        assert card is not None, f"add {gpu.name} to catalogue.json"
        assert card.capability == gpu.capability
        assert gpu.memory_total is not None and 0.93 < gpu.memory_total / card.memory_bytes < 1.08
        if card.reported_bytes is not None:
            assert gpu.memory_total == pytest.approx(card.reported_bytes, rel=0.02)


def test_the_doctor_is_content(gpus: list[Gpu], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tui", "--home", str(tmp_path / "ft"), "doctor", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    checks = {check["id"]: check for check in json.loads(done.stdout)["checks"]}
    assert checks["torch.gpu"]["state"] == "ok", checks["torch.gpu"]
    assert checks["driver"]["state"] == "ok"


def test_the_demo_trains_on_the_gpu(gpus: list[Gpu], tmp_path: Path) -> None:
    home = tmp_path / "ft"
    command = [sys.executable, "-m", "tui", "--home", str(home), "demo", "--steps", "20", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, env={**os.environ})
    assert done.returncode == 0, done.stderr[-2000:]
    document = json.loads(done.stdout)
    assert all(stage["state"] in ("done", "ok") for stage in document["stages"])
    run = home / "runs" / document["run"]
    journal = [json.loads(line) for line in (run / "journal.jsonl").read_text().splitlines()]
    start = next(row for row in journal if row["event"] == "start")
    assert start["device"].startswith("cuda")
    logs = [row for row in journal if row["event"] == "log"]
    assert logs[-1]["loss"] < logs[0]["loss"]
    assert all(memory > 0 for memory in logs[-1]["memory_allocated"])
