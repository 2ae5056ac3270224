"""Choosing what to resume from: by content, from the newest, each checkpoint read once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engine.checkpoint import choice, ledger, manifest, reading, verify
from tests.support.checkpoints import adapter, floats, safetensors, write_checkpoint


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with three sealed checkpoints."""
    (tmp_path / "resolved.json").write_text("{}")
    for step in (10, 20, 30):
        seal(tmp_path, step)
    return tmp_path


def seal(run: Path, step: int, *, weights: bytes | None = None, without: str | None = None, **meta: int) -> Path:
    staging = write_checkpoint(run / "checkpoints" / f".staging-{step}", step)
    if weights is not None:
        (staging / "adapter_model.safetensors").write_bytes(weights)
    if without:
        (staging / without).unlink()
    final = run / "checkpoints" / f"checkpoint-{step}"
    manifest.seal(staging, final, {"step": step, **meta})
    return final


def flip(path: Path) -> None:
    """Change one byte in the middle; size and name stay."""
    with open(path, "r+b") as file:
        file.seek(path.stat().st_size // 2)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 1]))


@pytest.fixture
def reads(monkeypatch) -> list[Path]:
    """The files whose content is read."""
    seen: list[Path] = []
    original = reading.read_all

    def spy(jobs, progress=None):
        jobs = list(jobs)
        seen.extend(job.path for job in jobs)
        original(jobs, progress)

    monkeypatch.setattr(reading, "read_all", spy)
    return seen


def test_a_flipped_bit_is_passed_over_and_named(run):
    flip(run / "checkpoints" / "checkpoint-30" / "optimizer.pt")
    found = choice.choose(run / "checkpoints")
    assert found.entry is not None
    assert (found.entry.step, found.exact) == (20, True)
    assert [line.partition(":")[0] for line in found.skipped] == ["checkpoint-30"]
    assert "optimizer.pt" in found.skipped[0]


def test_numbers_that_are_none_are_passed_over(run):
    weights = safetensors({**adapter(), "x": ("F32", [1], floats(float("nan")))})
    seal(run, 40, weights=weights)
    assert choice.choose(run / "checkpoints").entry.step == 30
    assert choice.choose(run / "checkpoints", step=40).entry is None


def test_each_is_read_once_until_it_is_touched(run, reads):
    newest = run / "checkpoints" / "checkpoint-30"
    assert choice.choose(run / "checkpoints").entry.path == newest
    assert {path.parent for path in reads} == {newest}
    reads.clear()
    assert choice.choose(run / "checkpoints").entry.path == newest
    assert reads == []
    flip(newest / "optimizer.pt")
    assert choice.choose(run / "checkpoints").entry.step == 20
    reads.clear()
    again = choice.choose(run / "checkpoints")
    assert (again.entry.step, reads) == (20, [])
    assert "optimizer.pt" in again.skipped[0]


def test_a_change_that_keeps_size_and_time_is_seen(run):
    path = run / "checkpoints" / "checkpoint-30" / "optimizer.pt"
    choice.choose(run / "checkpoints")
    info = path.stat()
    flip(path)
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))
    assert choice.choose(run / "checkpoints").entry.step == 20


def test_a_memory_that_says_nonsense_is_not_believed(run):
    flip(run / "checkpoints" / "checkpoint-30" / "optimizer.pt")
    for text in ("", "[]", '{"format": 1, "checkpoints": {"checkpoint-30": {"stamp": 1}}}', '{"format": 9}'):
        (run / choice.NAME).write_text(text)
        assert choice.choose(run / "checkpoints").entry.step == 20


def test_no_more_is_read_than_allowed(run, reads):
    size = ledger.inspect(run / "checkpoints" / "checkpoint-30").bytes
    assert choice.choose(run / "checkpoints", most_bytes=size - 1).entry.step == 30
    assert reads == []
    assert choice.choose(run / "checkpoints", most_bytes=size).entry.step == 30
    assert reads


def test_one_that_is_not_exact_only_where_there_is_no_other(run):
    seal(run, 40, world_size=2)  # its random state is that of one rank
    found = choice.choose(run / "checkpoints")
    assert (found.entry.step, found.exact) == (30, True)
    for step in (10, 20, 30):
        flip(run / "checkpoints" / f"checkpoint-{step}" / "optimizer.pt")
    found = choice.choose(run / "checkpoints")
    assert (found.entry.step, found.exact, len(found.skipped)) == (40, False, 3)


def test_staging_and_foreign_folders_are_never_taken(run):
    (run / "checkpoints" / ".staging-50").mkdir()
    write_checkpoint(run / "checkpoints" / "checkpoint-60", 60)
    assert choice.choose(run / "checkpoints").entry.step == 30
    assert choice.choose(run / "nowhere") == choice.Choice(None)


def test_choice_ledger_and_verify_agree(run):
    folder = run / "checkpoints"
    (folder / "checkpoint-30" / "optimizer.pt").unlink()
    report = verify.verify(run)
    newest = ledger.newest(folder)
    assert newest is not None and report.resume_from is not None
    assert newest.path == choice.choose(folder).entry.path == report.resume_from.path == folder / "checkpoint-20"
