"""The probe through the real pynvml against a fake driver library: N/A fields, MIG, losses, broken drivers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_nvml import Scenario, fake_nvml, fake_nvml_library

__all__ = ["fake_nvml", "fake_nvml_library"]

# A process with one probe that answers a line for a line, as a supervisor samples for hours.
PROGRAM = """
import dataclasses, json, sys
from engine.hardware.gpus import Probe, free, visible
with Probe(retry_s=0.0) as probe:
    for line in sys.stdin:
        what = line.strip()
        if what == "sample":
            answer = probe.sample()
        elif what == "list":
            answer = [gpu.to_json() | {"label": gpu.label} for gpu in probe.list()]
        elif what == "driver":
            answer = dataclasses.asdict(probe.driver)
        elif what == "problem":
            answer = probe.problem and probe.problem.to_json()
        elif what == "denied":
            answer = probe.denied
        elif what == "visible":
            answer = [gpu.label for gpu in visible(probe.list())]
        elif what == "free":
            answer = [gpu.label for gpu in free(visible(probe.list()), probe.sample())]
        elif what == "close":
            answer = probe.close()
        print(json.dumps(answer), flush=True)
"""
Ask = Callable[[str], Any]


@pytest.fixture
def ask() -> Iterator[Callable[..., Ask]]:
    """Starts a process with a probe that sees a scenario's GPUs; gives what to ask it with."""
    processes: list[subprocess.Popen[str]] = []

    def start(env: dict[str, str]) -> Ask:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, **env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        processes.append(process)

        def question(line: str) -> Any:
            assert process.stdin is not None and process.stdout is not None
            print(line, file=process.stdin, flush=True)
            return json.loads(process.stdout.readline())

        return question

    yield start
    for process in processes:
        process.communicate(timeout=10)
        assert process.returncode == 0, "nothing raises"


def test_eight_gpus(fake_nvml: Scenario, ask: Callable[..., Ask]) -> None:
    fake_nvml.set(0, memory_used=40 << 30, utilization=97, power=640500, throttle=0x25, processes={4711: 39 << 30})
    question = ask(fake_nvml.env)
    gpus = question("list")
    assert [gpu["index"] for gpu in gpus] == list(range(8))
    assert gpus[0]["name"] == "NVIDIA H100 80GB HBM3" and gpus[0]["capability"] == "9.0"
    assert (gpus[0]["ecc"], gpus[0]["mig"], gpus[0]["persistence"], gpus[0]["power_limit"]) == (True, False, True, 700)
    assert question("driver") == {"version": "580.95.05", "cuda": "13.0"}
    assert question("problem") is None
    first, second, *_rest = question("sample")
    assert first == {
        "index": 0,
        "uuid": gpus[0]["uuid"],
        "name": "NVIDIA H100 80GB HBM3",
        "state": "ok",
        "memory_used": 40 << 30,
        "memory_total": 85520809984,
        "utilization": 97,
        "temperature": 30,
        "power": 640.5,
        "power_limit": 700,
        "ecc_errors": 0,
        "xid": None,
        "throttle": ["power_cap", "thermal"],
        "processes": [{"pid": 4711, "memory": 39 << 30}],
        "parent": None,
        "mig_index": None,
    }
    assert second["processes"] == [] and second["throttle"] == []
    assert question("free") == ["1", "2", "3", "4", "5", "6", "7"]


@pytest.mark.parametrize("value", [None, "!4", "!999", "!13"], ids=["N/A", "no permission", "unknown", "no function"])
def test_what_a_device_does_not_tell_is_null(fake_nvml: Scenario, ask: Callable[..., Ask], value: str | None) -> None:
    fields = ("memory_used", "utilization", "temperature", "power", "power_limit", "ecc", "ecc_errors", "mig",
              "persistence", "throttle", "capability", "processes", "bus", "name")  # fmt: skip
    fake_nvml.set(3, **dict.fromkeys(fields, value))
    question = ask(fake_nvml.env)
    gpu = question("list")[3]
    assert gpu["state"] == "ok" and gpu["name"]
    assert all(gpu[f] is None for f in ("capability", "bus", "ecc", "mig", "persistence", "power_limit"))
    sample = question("sample")[3]
    assert sample["state"] == "ok"
    told = {key for key, value in sample.items() if value is not None}
    assert told == {"index", "uuid", "name", "state"}
    assert question("sample")[4]["temperature"] == 34, "the others tell all the same"


def test_processes_whose_memory_is_not_told(fake_nvml: Scenario, ask: Callable[..., Ask]) -> None:
    fake_nvml.set(0, processes=dict.fromkeys(range(100, 140)))
    question = ask(fake_nvml.env)
    assert question("sample")[0]["processes"] == [{"pid": pid, "memory": None} for pid in range(100, 140)]


def test_mig_instances(fake_nvml: Scenario, ask: Callable[..., Ask]) -> None:
    fake_nvml.split(1, ["3g.40gb", "4g.40gb"])
    fake_nvml.set(1, **{"mig.0.processes": {77: 9 << 30}, "mig.0.memory_used": 9 << 30})
    question = ask(fake_nvml.env)
    gpus = question("list")
    assert [gpu["label"] for gpu in gpus] == ["0", "1", "1.0", "1.1", "2", "3", "4", "5", "6", "7"]
    card, part = gpus[1], gpus[2]
    assert card["mig"] is True and part["parent"] == card["uuid"]
    assert part["name"].endswith("MIG 3g.40gb") and part["memory_total"] == 40 << 30
    sample = question("sample")[2]
    assert (sample["memory_used"], sample["utilization"], sample["power"]) == (9 << 30, None, None)
    assert sample["processes"] == [{"pid": 77, "memory": 9 << 30}]
    assert question("visible") == ["0", "1.0", "1.1", "2", "3", "4", "5", "6", "7"]
    assert question("free") == ["0", "1.1", "2", "3", "4", "5", "6", "7"]


def test_a_gpu_falls_off_and_comes_back(fake_nvml: Scenario, ask: Callable[..., Ask]) -> None:
    question = ask(fake_nvml.env)
    uuids = [row["uuid"] for row in question("sample")]
    fake_nvml.xid(3, 79)
    fake_nvml.xid(3, 154)
    fake_nvml.lose(3)
    for _again in range(3):  # also after the session was opened anew, where the driver counts seven
        rows = question("sample")
        assert [row["uuid"] for row in rows] == uuids
        assert [row["index"] for row in rows] == list(range(8)), "the numbers of the others do not move"
        assert [row["state"] for row in rows] == ["ok"] * 3 + ["lost"] + ["ok"] * 4
        assert rows[3]["xid"] == (79 if _again == 0 else None), "the first is the root cause, and it is told once"
        assert rows[3]["memory_used"] is None and rows[4]["temperature"] == 34
    assert question("list")[3]["state"] == "lost"
    assert question("visible") == ["0", "1", "2", "4", "5", "6", "7"]
    fake_nvml.restore(3)
    question("sample")
    rows = question("sample")
    assert [row["state"] for row in rows] == ["ok"] * 8
    assert rows[3]["temperature"] == 33
    fake_nvml.xid(5, 31)
    assert [row["xid"] for row in question("sample")] == [None] * 5 + [31] + [None] * 2


def test_xids_reach_only_their_gpu_and_a_driver_without_events_is_fine(
    fake_nvml: Scenario, ask: Callable[..., Ask]
) -> None:
    fake_nvml.driver(events=0)
    question = ask(fake_nvml.env)
    fake_nvml.xid(1, 13)
    assert {row["xid"] for row in question("sample")} == {None}


def test_the_driver_goes_away_and_returns(fake_nvml: Scenario, ask: Callable[..., Ask]) -> None:
    question = ask(fake_nvml.env)
    assert len(question("sample")) == 8
    fake_nvml.driver(down=9)
    assert {row["state"] for row in question("sample")} == {"lost"}
    assert {row["state"] for row in question("sample")} == {"lost"}, "and it can be asked again"
    fake_nvml.driver(down=0)
    assert {row["state"] for row in question("sample")} == {"ok"}
    assert question("problem") is None


def test_a_gpu_that_was_lost_from_the_beginning(fake_nvml: Scenario, ask: Callable[..., Ask]) -> None:
    fake_nvml.set(2, lost=1)
    question = ask(fake_nvml.env)
    rows = question("sample")
    assert [row["state"] for row in rows] == ["ok"] * 2 + ["lost"] + ["ok"] * 5
    assert rows[2]["index"] == 2
    fake_nvml.set(2, lost=0)
    rows = question("sample")
    assert len(rows) == 8 and {row["state"] for row in rows} == {"ok"}


def test_gpus_that_we_may_not_open(fake_nvml: Scenario, ask: Callable[..., Ask]) -> None:
    for index in (0, 1):
        fake_nvml.set(index, denied=1)
    question = ask(fake_nvml.env)
    assert [gpu["index"] for gpu in question("list")] == [2, 3, 4, 5, 6, 7]
    assert question("denied") == 2


@pytest.mark.parametrize(
    ("code", "kind"), [(9, "no_driver"), (18, "mismatch"), (4, "no_permission"), (999, "driver_error")]
)
def test_a_driver_that_does_not_open(fake_nvml: Scenario, ask: Callable[..., Ask], code: int, kind: str) -> None:
    fake_nvml.driver(init=code)
    question = ask(fake_nvml.env)
    assert question("list") == [] and question("sample") == []
    problem = question("problem")
    assert problem["kind"] == kind and problem["message"] and problem["fix"]
    fake_nvml.driver(init=0)
    assert len(question("sample")) == 8, "a driver that was loaded meanwhile is found"
    assert question("problem") is None


def test_a_machine_without_gpus(fake_nvml: Scenario, ask: Callable[..., Ask]) -> None:
    fake_nvml.driver(count=0)
    question = ask(fake_nvml.env)
    assert question("sample") == [] and question("problem") is None


def test_no_library(tmp_path: Path, ask: Callable[..., Ask]) -> None:
    broken = tmp_path / "libnvidia-ml.so.1"
    broken.write_text("no library")
    question = ask({"LD_LIBRARY_PATH": str(tmp_path)})
    assert question("sample") == []
    assert question("problem")["kind"] == "no_library"


def test_close_and_go_on(fake_nvml: Scenario, ask: Callable[..., Ask]) -> None:
    question = ask(fake_nvml.env)
    assert len(question("sample")) == 8
    question("close")
    assert len(question("sample")) == 8


def test_cuda_visible_devices_of_the_environment(fake_nvml: Scenario, ask: Callable[..., Ask]) -> None:
    assert ask({**fake_nvml.env, "CUDA_VISIBLE_DEVICES": "6,2"})("visible") == ["6", "2"]
