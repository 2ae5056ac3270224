"""Checkpoints of several ranks: ZeRO's folders and those of torch.distributed.checkpoint."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from engine.checkpoint import verify
from tests.support.checkpoints import pickled, torch_zip, write_checkpoint

CASES = Path(__file__).parents[1] / "cases" / "ckpt"


MODEL_1 = "global_step10/zero_pp_rank_1_mp_rank_00_model_states.pt"
OPTIM = "global_step10/bf16_zero_pp_rank_{}_mp_rank_00_optim_states.pt".format


def zero_checkpoint(folder: Path, step: int, *, stage: int, ranks: int = 2) -> Path:
    """As DeepSpeed and the trainer leave it: no optimizer.pt, no scheduler.pt."""
    write_checkpoint(folder, step, ranks=ranks)
    (folder / "optimizer.pt").unlink()
    (folder / "scheduler.pt").unlink()
    (folder / "latest").write_text(f"global_step{step}")
    (folder / f"global_step{step}").mkdir()
    part = torch_zip(pickled({"optimizer_state_dict": {}}))
    for rank in range(ranks):
        name = f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
        (folder / f"global_step{step}" / name).write_bytes(part)
        if stage == 3:
            name = f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt"
            (folder / f"global_step{step}" / name).write_bytes(part)
    if stage < 3:
        (folder / f"global_step{step}" / "mp_rank_00_model_states.pt").write_bytes(part)
    return folder


@pytest.mark.parametrize("stage", [2, 3])
def test_zero_whole(stage, tmp_path):
    zero_checkpoint(tmp_path / "checkpoint-10", 10, stage=stage)
    report = verify.verify(tmp_path)
    assert report.checkpoints[0].findings == []
    assert report.exit_code == 0


@pytest.mark.parametrize(
    ("damage", "kind"),
    [
        (lambda f: (f / OPTIM(1)).unlink(), "missing_shard"),
        (lambda f: (f / OPTIM(0)).unlink(), "missing_shard"),
        (lambda f: (f / MODEL_1).unlink(), "missing_shard"),
        (lambda f: (f / MODEL_1).write_bytes(b"PK\x03"), "truncated_shard"),
        (lambda f: (f / MODEL_1).write_bytes(b""), "zero_byte"),
        (lambda f: [path.unlink() for path in f.glob("global_step10/*optim*")], "missing_shard"),
        (lambda f: [path.unlink() for path in f.glob("global_step10/*model*")], "missing_shard"),
        (lambda f: (f / "latest").unlink(), "missing_file"),
        (lambda f: (f / "latest").write_text("global_step9"), "missing_shard"),
    ],
)  # fmt: skip
def test_zero_damaged(damage, kind, tmp_path):
    damage(zero_checkpoint(tmp_path / "checkpoint-10", 10, stage=3))
    report = verify.verify(tmp_path)
    assert (kind, "error") in {(f.kind, f.level) for f in report.checkpoints[0].findings}
    assert report.exit_code == 4


def test_zero_of_another_step(tmp_path):
    folder = zero_checkpoint(tmp_path / "checkpoint-10", 10, stage=3)
    (folder / "global_step10").rename(folder / "global_step9")
    (folder / "latest").write_text("global_step9")
    checked = verify.verify(tmp_path).checkpoints[0]
    assert [(f.kind, f.level) for f in checked.findings] == [("step_mismatch", "warning")]
    assert not checked.exact


@pytest.fixture
def fsdp(tmp_path):
    shutil.copytree(CASES / "06-fsdp" / "run" / "checkpoint-20", tmp_path / "checkpoint-20")
    return tmp_path / "checkpoint-20"


def kinds(folder: Path) -> set[tuple[str, str]]:
    return {(f.kind, f.level) for f in verify.verify(folder).checkpoints[0].findings}


@pytest.mark.parametrize(
    ("damage", "kind"),
    [
        (lambda f: (f / "optimizer_0/.metadata").unlink(), ("missing_file", "error")),
        (lambda f: (f / "optimizer_0/.metadata").write_bytes(b""), ("zero_byte", "error")),
        (lambda f: (f / "optimizer_0/__0_0.distcp").write_bytes(b""), ("zero_byte", "error")),
        (lambda f: [path.unlink() for path in f.glob("*/*.distcp")], ("missing_shard", "error")),
        (lambda f: shutil.rmtree(f / "pytorch_model_fsdp_0"), ("missing_file", "error")),
        (lambda f: shutil.rmtree(f / "optimizer_0"), ("missing_file", "error")),
        (lambda f: (f / "rng_state_1.pth").unlink(), ("rng_rank_mismatch", "warning")),
        (lambda f: shutil.copy(f / "rng_state_1.pth", f / "rng_state_2.pth"), ("rng_rank_mismatch", "warning")),
        (lambda f: [(f / f"rng_state_{n}.pth").unlink() for n in (0, 1)], ("missing_rng", "warning")),
        (
            lambda f: [(f / "rng_state_1.pth").unlink(), (f / "rng_state_0.pth").rename(f / "rng_state.pth")],
            ("rng_rank_mismatch", "warning"),
        ),
    ],
)  # fmt: skip
def test_fsdp_damaged(damage, kind, fsdp):
    assert kinds(fsdp) == set()
    damage(fsdp)
    assert kind in kinds(fsdp)
