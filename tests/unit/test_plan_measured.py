"""What earlier runs measured corrects the plans of their kind, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.plan import measured
from tests.support.plans import planned, record


def test_a_plan_is_corrected_by_the_run_of_its_kind(house: Path) -> None:
    plain = planned()
    size = record(house, factor=1.10)
    result = planned(measured.read(house))
    assert result.memory.peak.total == pytest.approx(size, rel=1e-6)
    assert result.device.needs == pytest.approx(plain.device.needs + 0.10 * plain.memory.peak.total, rel=1e-3)
    assert result.band == pytest.approx(measured.SAME_BAND)
    told = result.to_json()["corrected_by"]
    assert told["run"] == "before-1"
    assert told["measured_gb"] == pytest.approx(1.10 * told["predicted_gb"], rel=1e-3)
    assert plain.to_json()["corrected_by"] is None


def test_another_length_or_rank_is_of_the_kind_but_less_sure(house: Path) -> None:
    record(house, factor=1.10)
    plain = planned(max_length=8192, lora_r=64)
    result = planned(measured.read(house), max_length=8192, lora_r=64)
    assert result.memory.peak.total == pytest.approx(1.10 * plain.memory.peak.total)
    assert result.band == plain.band
    far = planned(measured.read(house), max_length=512, per_device_train_batch_size=1)
    assert far.correction is None, "sixteen times fewer tokens say nothing"


@pytest.mark.parametrize(
    "other",
    [
        {"method": "qlora"},
        {"model": "Qwen/Qwen2.5-7B"},
        {"gradient_checkpointing": False},
        {"num_gpus": 2, "sharding": "ddp"},
        {"optim": "adamw_8bit"},
        {"gpu": "cpu", "gpu_memory_gb": 500.0},
    ],
)
def test_another_kind_is_left_alone(house: Path, other: dict[str, object]) -> None:
    record(house, factor=1.3)
    assert planned(measured.read(house), **other).correction is None


def test_the_nearest_and_then_the_newest_run_counts(house: Path) -> None:
    record(house, "far", factor=1.20, max_length=2048)
    record(house, "old", factor=1.10)
    record(house, "new", factor=1.05)
    correction = planned(measured.read(house)).correction
    assert correction is not None and correction.run == "new"
    record(house, "new", factor=1.15)  # the run went on and took more
    correction = planned(measured.read(house)).correction
    assert correction is not None and correction.factor == pytest.approx(1.15, rel=1e-6)


def test_less_than_predicted_counts_only_for_the_same_rows(house: Path) -> None:
    """Rows shorter than max_length hold less: other data, or those not seen yet, may hold what was predicted."""
    loose = {"packing": False, "length_histogram": [[512, 1000], [4096, 10]]}
    record(house, factor=0.8, **loose)
    other = planned(measured.read(house, "/data/other.jsonl"), **loose)
    assert other.correction is None
    same = planned(measured.read(house, "/data/train.jsonl"), **loose)
    assert same.correction is not None and same.correction.factor == pytest.approx(0.8, rel=1e-6)
    record(house, factor=0.8, epochs=0.5, **loose)
    assert planned(measured.read(house, "/data/train.jsonl"), **loose).correction is None
    record(house, factor=0.8)  # packed rows are all full
    assert planned(measured.read(house, "/data/other.jsonl")).correction is not None


def test_a_measured_speed_replaces_the_estimate(house: Path) -> None:
    plain = planned()
    assert plain.speed is not None and plain.hours is not None
    record(house, factor=1.0, rate=plain.speed.total * 0.5)
    result = planned(measured.read(house))
    assert result.hours == pytest.approx(2 * plain.hours, rel=1e-3)
    assert result.time()["basis"] == "measured"
    assert result.money[0]["amount"] == pytest.approx(2 * plain.money[0]["amount"], abs=0.02)
    elsewhere = planned(measured.read(house), gpu="A100-SXM-80")
    assert elsewhere.time()["basis"] == "estimate", "the speed is that of its card"


def test_a_processor_learns_its_speed_from_the_first_run(house: Path) -> None:
    cpu = {"model": "builtin:tiny", "gpu": "cpu", "gpu_memory_gb": 24.0, "max_length": 256}
    assert planned(**cpu).speed is None
    size = record(house, factor=1.2, rate=2000.0, **cpu)
    result = planned(measured.read(house), **cpu)
    assert result.speed is not None and result.speed.total == pytest.approx(2000.0)
    assert result.device.device == pytest.approx(size)


def test_advice_is_corrected_too(house: Path) -> None:
    record(house, factor=1.10, gradient_checkpointing=False, max_length=1024)
    change = {"gradient_checkpointing": False}
    before = next(row for row in planned(max_length=1024).advice if row["change"] == change)
    after = next(row for row in planned(measured.read(house), max_length=1024).advice if row["change"] == change)
    assert after["allocated_gb"] == pytest.approx(1.10 * before["allocated_gb"], rel=1e-3)


def test_a_measurement_that_cannot_be_is_not_believed(house: Path) -> None:
    record(house, factor=9.0)
    assert planned(measured.read(house)).correction is None


def test_damaged_lines_are_left_out(house: Path) -> None:
    record(house, factor=1.10)
    path = house / measured.NAME
    path.write_bytes(
        b'{"event": "measured", "run": "x"}\n{"event": "measured", "run": "y", "request": {"model": "gone/model"}}\n'
        b'{"event": "measured", "run": "z", "request": [null], "measured": {}}\n'
        b'{"event": "measured", "run": "w", "request": {}, "measured": "x"}\n'
        b"\xff\xfe no json\n[]\n" + path.read_bytes() + b'{"event": "measured", "run": "torn", "requ'
    )
    correction = planned(measured.read(house)).correction
    assert correction is not None and correction.run == "before-1"
    record(house, "after", factor=1.05)
    assert {line["run"] for line in measured.read(house).lines} >= {"before-1", "after"}


def test_no_file_and_no_rights_are_no_history(house: Path) -> None:
    assert measured.read(house / "nowhere").lines == []
    (house / measured.NAME).mkdir()
    assert measured.read(house).lines == []


def test_shorter_rows_correct_by_what_their_average_would_have_taken(house: Path) -> None:
    plain, half = planned(packing=False), planned(packing=False, max_length=2048)
    short = {"epochs": 0.1, "packing": False, "more": {"batch_tokens": plain.request.tokens / 2}}
    record(house, memory=0.9 * half.memory.peak.total, **short)
    result = planned(measured.read(house), packing=False)
    assert result.memory.peak.total == pytest.approx(0.9 * plain.memory.peak.total, rel=1e-3)
    assert result.band == plain.band, "not the same step: the error stays"
    # the largest batch was larger than the average one: more than that one takes is no sign of an error
    record(house, memory=1.02 * half.memory.peak.total, **short)
    result = planned(measured.read(house), packing=False)
    assert result.memory.peak.total == plain.memory.peak.total


def test_a_whole_run_says_more_than_a_probe(house: Path) -> None:
    record(house, "before-1", factor=1.10)
    record(house, "probe-1", factor=1.05, probe=True)
    correction = planned(measured.read(house)).correction
    assert correction is not None and correction.run == "before-1"
    record(house, "probe-2", factor=1.05, probe=True, max_length=2048)
    correction = planned(measured.read(house), max_length=2048).correction
    assert correction is not None and correction.probe and correction.to_json()["probe"] is True


def test_the_basis_of_a_probe_is_a_probe_and_its_band_what_its_steps_scattered(house: Path) -> None:
    record(house, "probe-1", rate=1000.0, probe=True, more={"spread": 0.15})
    time = planned(measured.read(house)).to_json()["time"]
    assert time["basis"] == "probe" and time["tokens_per_s_total"] == pytest.approx(1000.0)
    assert time["low"] == pytest.approx(time["hours"] / 1.15, abs=0.002)
