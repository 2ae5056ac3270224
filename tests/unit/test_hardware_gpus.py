"""Choosing GPUs (CUDA_VISIBLE_DEVICES, free ones) and reading amd-smi's documents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from engine.hardware import amd
from engine.hardware.device import Gpu
from engine.hardware.gpus import free, on_pci_bus, usable, visible

GIB = 1 << 30
CARDS = [Gpu(i, f"GPU-{i}{i}{i}{i}-aa", "NVIDIA H100 80GB HBM3", memory_total=80 * GIB) for i in range(4)]
LOST = Gpu(4, "GPU-4444-aa", "NVIDIA H100 80GB HBM3", state="lost")
CUT = Gpu(5, "GPU-5555-aa", "NVIDIA H100 80GB HBM3", mig=True)
PARTS = [Gpu(5, f"MIG-{i}", "MIG 3g.40gb", parent=CUT.uuid, mig_index=i) for i in range(2)]
OLD_PART = Gpu(6, "MIG-GPU-6666-aa/1/0", "MIG 1g.10gb", parent="GPU-6666-aa", mig_index=0)
ALL = [*CARDS, LOST, CUT, *PARTS, OLD_PART]


@pytest.mark.parametrize(
    ("wanted", "labels"),
    [
        ("0,2", ["0", "2"]),
        ("3, 1", ["3", "1"]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("0,9,1", ["0"]),  # what follows a number that is not there is not seen either
        ("0,4,1", ["0"]),  # a lost one is not there
        ("1,1", ["1"]),
        ("GPU-2222", ["2"]),
        ("GPU-", []),  # fits several
        ("GPU-5555-aa", []),  # cut into instances: cannot compute as a whole
        ("5", ["5.0"]),
        ("MIG-1,MIG-0", ["5.1", "5.0"]),
        ("MIG-GPU-6666-aa/1/0", ["6.0"]),
    ],
)
def test_visible_devices_as_cuda_reads_them(wanted: str, labels: list[str]) -> None:
    assert [gpu.label for gpu in visible(ALL, wanted)] == labels


def test_without_the_variable_all_usable_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert [gpu.label for gpu in visible(ALL)] == ["0", "1", "2", "3", "5.0", "5.1", "6.0"]
    assert visible(ALL) == usable(ALL)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert [gpu.label for gpu in visible(ALL)] == ["1"]


def sample(gpu: Gpu, **fields: Any) -> dict[str, Any]:
    base = {"uuid": gpu.uuid, "state": "ok", "processes": [], "memory_used": 0, "memory_total": 80 * GIB}
    return {**base, **fields}


def test_free_gpus() -> None:
    a, b, c, d = CARDS
    rows = [
        sample(a, processes=[{"pid": 5, "memory": 70 * GIB}], memory_used=70 * GIB),
        sample(b, processes=None, memory_used=10 * GIB),  # in a container others' processes are not listed
        sample(c, memory_used=GIB),
        sample(d, state="lost"),
    ]
    assert free(CARDS, rows) == [c]
    assert free(CARDS, rows, own=[5]) == [a, c], "our own process does not make a card busy"
    assert free([a], [sample(a, processes=None, memory_used=None)]) == [a], "a quiet device stays usable"
    assert free([a], []) == []


def test_the_pci_bus(tmp_path: Path) -> None:
    for name, vendor, kind in [
        ("0", "0x10de", "0x030200"),
        ("1", "0x10de", "0x040300"),  # the sound device of a graphics card
        ("2", "0x1002", "0x120000"),
        ("3", "0x8086", "0x030000"),
    ]:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "vendor").write_text(vendor + "\n")
        (folder / "class").write_text(kind + "\n")
    (tmp_path / "4").mkdir()
    assert on_pci_bus(tmp_path) == {"nvidia": 1, "amd": 1}
    assert on_pci_bus(tmp_path / "none") == {}


def amd_smi(wrapped: bool, present: list[int]) -> amd.Run:
    """Answers in the shapes of amd-smi: a bare list, or under `gpu_data` in newer releases."""

    def value(number: float, unit: str) -> dict[str, Any]:
        return {"value": number, "unit": unit}

    documents = {
        "list": [{"gpu": i, "bdf": f"0000:{i:02x}:00.0", "uuid": f"uuid-{i}"} for i in (0, 1)],
        "static": [
            {
                "gpu": i,
                "asic": {"market_name": "AMD Instinct MI300X", "target_graphics_version": "gfx942"},
                "vram": {"type": "HBM3", "size": value(196592, "MB")},
                "limit": {"socket_power": value(750, "W")},
            }
            for i in (0, 1)
        ],
        "metric": [
            {
                "gpu": i,
                "usage": {"gfx_activity": value(97, "%")} if i == 0 else "N/A",
                "power": {"socket_power": value(640, "W") if i == 0 else "N/A"},
                "temperature": {"edge": "N/A", "hotspot": value(61, "C"), "mem": "N/A"},
                "ecc": {"total_uncorrectable_count": 2},
                "mem_usage": {"total_vram": value(196592, "MB"), "used_vram": value(1000, "MB")},
            }
            for i in present
        ],
        "process": [
            {
                "gpu": 0,
                "process_list": [
                    {"process_info": {"name": "python", "pid": 7, "memory_usage": {"vram_mem": value(5 * GIB, "B")}}}
                ],
            },
            {"gpu": 1, "process_list": [{"process_info": "N/A"}]},
        ],
    }

    def run(arguments: list[str]) -> bytes:
        rows = documents[arguments[0]]
        return orjson.dumps({"gpu_data": rows} if wrapped else rows)

    return run


@pytest.mark.parametrize("wrapped", [False, True])
def test_amd_gpus(wrapped: bool) -> None:
    present = [0, 1]
    backend = amd.AmdSmi(amd_smi(wrapped, present))
    gpu = backend.scan().gpus[0]
    assert (gpu.name, gpu.uuid, gpu.vendor, gpu.capability) == ("AMD Instinct MI300X", "uuid-0", "amd", "gfx942")
    assert gpu.memory_total == 196592 << 20 and gpu.power_limit == 750
    first, second = backend.sample()
    assert (first.utilization, first.power, first.temperature, first.ecc_errors) == (97, 640, 61, 2)
    assert first.memory_used == 1000 << 20
    assert first.processes == [{"pid": 7, "memory": 5 * GIB}]
    assert (second.utilization, second.power, second.processes) == (None, None, [])


def test_an_amd_gpu_that_is_not_listed_any_more_is_lost_and_comes_back() -> None:
    present = [0, 1]
    documents = amd_smi(True, present)
    answers = {"metric": documents(["metric"])}
    backend = amd.AmdSmi(lambda arguments: answers.get(arguments[0]) or documents(arguments))
    assert [s.state for s in backend.sample()] == ["ok", "ok"]
    answers["metric"] = amd_smi(True, [0])(["metric"])
    assert [s.state for s in backend.sample()] == ["ok", "lost"]
    answers["metric"] = documents(["metric"])
    assert [s.state for s in backend.sample()] == ["ok", "ok"]


@pytest.mark.parametrize("answer", [b"", b"[]", b"garbage", b'{"gpu_data": 3}', b"[1, {}]"])
def test_amd_smi_without_an_answer_is_a_problem_not_an_error(answer: bytes) -> None:
    backend = amd.AmdSmi(lambda _arguments: answer)
    assert backend.sample() == []
    problem = backend.scan().problem
    assert problem is not None and problem.fix


def test_what_to_write_into_the_variable() -> None:
    assert ",".join(gpu.visible_id for gpu in CARDS[:2]) == "GPU-0000-aa,GPU-1111-aa"
    assert [gpu.label for gpu in visible(ALL, ",".join(gpu.visible_id for gpu in usable(ALL)))] == [
        "0", "1", "2", "3", "5.0", "5.1", "6.0",
    ]  # fmt: skip
    assert Gpu(3, "0000-1111", "AMD Instinct MI300X", vendor="amd").visible_id == "3"
