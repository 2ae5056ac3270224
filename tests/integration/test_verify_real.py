"""Verification of files that torch, safetensors, the trainer's libraries and DCP really write."""

from __future__ import annotations

import json
import os
import random

import pytest

from engine.checkpoint import verify

pytestmark = pytest.mark.heavy


def test_what_the_libraries_write(tmp_path):
    import numpy
    import torch
    import torch.distributed.checkpoint as dcp
    from safetensors.torch import save_file
    from trl import SFTConfig

    def checkpoint(step):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        state = {"global_step": step, "log_history": [{"loss": float("nan")}]}
        (folder / "trainer_state.json").write_text(json.dumps(state))
        (folder / "config.json").write_text(json.dumps({"hidden_size": 64}))
        torch.save(optimizer.state_dict(), folder / "optimizer.pt")
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _step: 1.0).state_dict()
        torch.save({**schedule, "last_epoch": step}, folder / "scheduler.pt")
        rng = {"python": random.getstate(), "numpy": numpy.random.get_state(), "cpu": torch.random.get_rng_state()}
        torch.save(rng, folder / "rng_state.pth")
        return folder

    def with_one(value):
        changed = {name: tensor.clone() for name, tensor in weights.items()}
        changed["model.layers.0.w"][63, 63] = value
        return changed

    parameter = torch.nn.Parameter(torch.randn(64, 64))
    optimizer = torch.optim.AdamW([parameter])
    (parameter**2).sum().backward()
    optimizer.step()
    weights = {
        "model.embed_tokens.weight": torch.randn(10, 64).bfloat16(),
        "model.layers.0.w": torch.randn(64, 64),
        "model.layers.0.f8": torch.randn(8, 8).to(torch.float8_e4m3fn),
    }
    arguments = SFTConfig(output_dir=str(tmp_path / "out"), use_cpu=True, bf16=False, report_to="none")
    good: list[int] = []
    bad: dict[int, str] = {}

    folder = checkpoint(1)
    save_file(weights, folder / "model.safetensors")
    torch.save(arguments, folder / "training_args.bin")
    good.append(1)

    torch.save(weights, checkpoint(2) / "pytorch_model.bin")
    good.append(2)

    torch.save(weights, checkpoint(3) / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    good.append(3)

    with_checksums = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    torch.save(weights, checkpoint(4) / "pytorch_model.bin")
    torch.serialization.set_crc32_options(with_checksums)
    good.append(4)

    def sharded(step, content):
        folder = checkpoint(step)
        (folder / "optimizer.pt").unlink()
        dcp.save({"model": content}, checkpoint_id=str(folder / "pytorch_model_fsdp_0"), no_dist=True)
        dcp.save({"optimizer": optimizer.state_dict()}, checkpoint_id=str(folder / "optimizer_0"), no_dist=True)
        return folder

    sharded(5, weights)
    good.append(5)

    save_file(with_one(float("inf")), checkpoint(11) / "model.safetensors")
    bad[11] = "non_finite_weights"
    torch.save(with_one(float("nan")), checkpoint(12) / "pytorch_model.bin")
    bad[12] = "non_finite_weights"
    sharded(13, with_one(float("nan")))
    bad[13] = "non_finite_weights"

    path = checkpoint(14) / "pytorch_model.bin"
    torch.save(weights, path, _use_new_zipfile_serialization=False)
    os.truncate(path, path.stat().st_size - 100)
    bad[14] = "truncated_zip"

    path = checkpoint(15) / "pytorch_model.bin"
    torch.save(weights, path)
    content = bytearray(path.read_bytes())
    content[content.find(weights["model.layers.0.w"].numpy().tobytes()[:16]) + 5] ^= 1
    path.write_bytes(content)
    bad[15] = "hash_mismatch"

    shard = next((sharded(16, weights) / "optimizer_0").glob("*.distcp"))
    os.truncate(shard, shard.stat().st_size - 7)
    bad[16] = "truncated_shard"

    folder = checkpoint(17)
    save_file(weights, folder / "model.safetensors")
    torch.save(
        {"state": {0: {"exp_avg": torch.full((3,), float("nan"))}}, "param_groups": [{"params": [0]}]},
        folder / "optimizer.pt",
    )
    bad[17] = "non_finite_weights"

    found = {entry.step: entry for entry in verify.verify(tmp_path).checkpoints}
    for step in good:
        assert found[step].findings == []
        assert found[step].state == "complete"
    for step, kind in bad.items():
        assert [finding.kind for finding in found[step].findings if finding.level == "error"] == [kind], step
