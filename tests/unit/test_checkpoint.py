"""Sealing, listing, choosing and retiring checkpoints: without torch."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from engine.checkpoint import ledger, manifest, retention
from engine.files import read_json, write_json

PARTS = {
    "adapter_model.safetensors": b"weights" * 100,
    "optimizer.pt": b"optimizer",
    "scheduler.pt": b"scheduler",
    "trainer_state.json": b"{}",
    "rng_state.pth": b"random",
}


@pytest.fixture
def box(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    return folder


def staged(folder: Path, step: int, parts: dict[str, bytes] | None = None) -> Path:
    staging = folder / f".staging-{step}"
    staging.mkdir(parents=True)
    for name, content in (PARTS if parts is None else parts).items():
        (staging / name).parent.mkdir(parents=True, exist_ok=True)
        (staging / name).write_bytes(content)
    return staging


def sealed(folder: Path, step: int, *, attempt: int = 1, parts: dict[str, bytes] | None = None, **meta: object) -> Path:
    final = folder / f"checkpoint-{step}"
    manifest.seal(staged(folder, step, parts), final, {"step": step, "attempt": attempt, **meta})
    return final


def test_seal_records_every_file_and_leaves_no_staging(box: Path) -> None:
    parts = {**PARTS, "pytorch_model_fsdp_0/__0_0.distcp": b"shard"}
    final = box / "checkpoint-5"
    content = manifest.seal(staged(box, 5, parts), final, {"step": 5, "metrics": {"loss": 1.5}})
    assert set(content.files) == set(parts)
    assert content.bytes == sum(map(len, parts.values()))
    assert manifest.read(final) == content
    assert manifest.damage(final, content, check_hash=True) == []
    assert [path.name for path in box.iterdir()] == ["checkpoint-5"]


def test_manifest_is_written_after_everything_else_is_durable(box: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    real_fsync, real_write = os.fsync, manifest.write_json
    monkeypatch.setattr(os, "fsync", lambda fd: (seen.append(os.readlink(f"/proc/self/fd/{fd}")), real_fsync(fd))[1])

    def write(path: Path, value: object) -> None:
        seen.append("MANIFEST")
        real_write(path, value)

    monkeypatch.setattr(manifest, "write_json", write)
    sealed(box, 1)
    before = seen[: seen.index("MANIFEST")]
    assert {Path(name).name for name in before} >= set(PARTS)
    assert seen[-1] == str(box)  # the rename itself is made durable last


def test_a_failing_seal_leaves_the_older_checkpoint_alone(box: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = sealed(box, 3)
    staging = staged(box, 4)

    def full(path: Path, value: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(manifest, "write_json", full)
    with pytest.raises(OSError, match="No space"):
        manifest.seal(staging, box / "checkpoint-4", {"step": 4})
    newest = ledger.newest(box)
    assert newest is not None and newest.path == old
    assert [entry.state for entry in ledger.list(box)] == ["staging", "complete"]


def test_the_same_step_again_replaces_the_checkpoint(box: Path) -> None:
    sealed(box, 7)
    final = sealed(box, 7, attempt=2, parts={**PARTS, "new.bin": b"2"})
    content = manifest.read(final)
    assert content is not None and content.attempt == 2 and "new.bin" in content.files
    assert [path.name for path in box.iterdir()] == ["checkpoint-7"]


@pytest.mark.parametrize(
    ("break_it", "state", "says"),
    [
        (lambda c: (c / "optimizer.pt").unlink(), "broken", "optimizer.pt"),
        (lambda c: (c / "optimizer.pt").write_bytes(b"short"), "broken", "optimizer.pt"),
        (lambda c: (c / "MANIFEST.json").write_text("{"), "broken", "MANIFEST"),
        (lambda c: (c / "MANIFEST.json").unlink(), "foreign", "MANIFEST"),
        (lambda c: c.rename(c.with_name("checkpoint-9")), "broken", "step 20"),
    ],
)
def test_resume_walks_back_past_a_damaged_one_and_names_it(box: Path, break_it, state: str, says: str) -> None:
    good = sealed(box, 10)
    break_it(sealed(box, 20))
    newest = ledger.newest(box)
    assert newest is not None and newest.path == good
    (problem,) = ledger.problems(box)
    assert problem.state == state and problem.problem is not None and says in problem.problem


@pytest.mark.parametrize("missing", ["optimizer.pt", "scheduler.pt", "trainer_state.json"])
def test_a_checkpoint_that_would_resume_silently_wrong_is_not_resumable(box: Path, missing: str) -> None:
    sealed(box, 1, parts={name: content for name, content in PARTS.items() if name != missing})
    (entry,) = ledger.list(box)
    assert entry.state == "complete" and entry.sealed and not entry.resumable
    assert entry.problem is not None and missing in entry.problem
    assert ledger.newest(box) is None


def test_every_rank_needs_its_random_state(box: Path) -> None:
    parts = {name: content for name, content in PARTS.items() if name != "rng_state.pth"}
    sealed(box, 1, parts={**parts, "rng_state_0.pth": b"0"}, world_size=2)
    sealed(box, 2, parts={**parts, "rng_state_0.pth": b"0", "rng_state_1.pth": b"1"}, world_size=2)
    assert [(entry.resumable, entry.exact) for entry in ledger.list(box)] == [(True, False), (True, True)]


def test_one_without_its_random_state_is_taken_only_where_there_is_no_other(box: Path) -> None:
    sealed(box, 2, parts={name: content for name, content in PARTS.items() if name != "rng_state.pth"})
    only = ledger.newest(box)
    assert only is not None and not only.exact and only.problem is not None and "rng_state.pth" in only.problem
    exact = sealed(box, 1)
    newest = ledger.newest(box)
    assert newest is not None and newest.path == exact


def test_a_flipped_byte_is_found_when_hashes_are_asked_for(box: Path) -> None:
    good = sealed(box, 1)
    bad = sealed(box, 2)
    data = bytearray((bad / "optimizer.pt").read_bytes())
    data[0] ^= 1
    (bad / "optimizer.pt").write_bytes(data)
    by_size, by_hash = ledger.newest(box), ledger.newest(box, check_hash=True)
    assert by_size is not None and by_size.path == bad
    assert by_hash is not None and by_hash.path == good
    assert [entry.path for entry in ledger.problems(box, check_hash=True)] == [bad]


def test_after_a_return_to_an_earlier_step_the_new_line_is_the_newest(box: Path) -> None:
    for step in (50, 100):
        sealed(box, step, attempt=1)
    newer = sealed(box, 60, attempt=2)
    newest, asked = ledger.newest(box), ledger.newest(box, step=100)
    assert newest is not None and newest.path == newer
    assert asked is not None and asked.step == 100
    assert ledger.newest(box, step=55) is None


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "a/../../b", "a\0b"])
def test_a_hostile_manifest_cannot_point_outside(box: Path, name: str) -> None:
    folder = sealed(box, 1)
    document = json.loads((folder / "MANIFEST.json").read_text())
    document["files"][name] = {"size": 1, "sha256": "x"}
    (folder / "MANIFEST.json").write_text(json.dumps(document))
    assert manifest.read(folder) is None
    assert ledger.newest(box) is None


def test_cleaning_removes_leftovers_and_brings_a_half_replaced_one_back(box: Path) -> None:
    sealed(box, 1).rename(box / ".replaced-checkpoint-1")  # killed between the two renames
    staged(box, 1)
    shutil.copytree(box / ".staging-1", box / ".retired-checkpoint-0")
    retention.clean(box)
    assert [path.name for path in box.iterdir()] == ["checkpoint-1"]
    newest = ledger.newest(box)
    assert newest is not None and newest.step == 1


@pytest.mark.parametrize(
    "damage",
    [{"attempt": {}}, {"attempt": "2"}, {"world_size": ""}, {"world_size": 10**12}, {"world_size": 0}, {"tier": []}],
)
def test_a_manifest_with_values_of_wrong_kinds_is_a_broken_one(box: Path, damage: dict[str, object]) -> None:
    sealed(box, 5)
    folder = sealed(box, 10)
    write_json(folder / manifest.NAME, (read_json(folder / manifest.NAME) or {}) | damage)
    assert [entry.state for entry in ledger.list(box)] in (["broken", "complete"], ["complete", "broken"])
    assert (found := ledger.newest(box)) is not None and found.step == 5
