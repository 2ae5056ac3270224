"""launch/: what a user reruns a run with by hand says what the run was started with."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from engine.files import write_json
from engine.recipe import defaults
from engine.train import byhand
from engine.workspace import RunFolder


def written(folder: Path, ranks: int = 8, **given: Any) -> tuple[str, dict[str, Any]]:
    run = RunFolder(folder / "a run")
    run.path.mkdir()
    write_json(run.resolved, {"format": 1, "recipe": defaults.fill(given, num_gpus=ranks)})
    environment = {"FTUI_ATTEMPT": "2", "FTUI_RUN": str(run.path), "CUDA_VISIBLE_DEVICES": "0,1", "SECRET": "x"}
    byhand.write(run, ["py thon", "-m", "torch.distributed.run", str(run.path)], environment, ranks)
    return (run.path / "launch/run.sh").read_text(), yaml.safe_load((run.path / "launch/accelerate.yaml").read_text())


def test_the_script_runs_the_command_and_keeps_no_secret(tmp_path: Path) -> None:
    script, _document = written(tmp_path)
    last = script.splitlines()[-1]
    assert shlex.split(last) == ["exec", "py thon", "-m", "torch.distributed.run", str(tmp_path / "a run")]
    assert "export CUDA_VISIBLE_DEVICES=0,1" in script and "attempt 2" in script
    assert "SECRET" not in script
    assert (tmp_path / "a run/launch/run.sh").stat().st_mode & 0o111


@pytest.mark.parametrize(
    ("given", "ranks", "kind"),
    [
        ({}, 1, "NO"), ({"sharding": "ddp"}, 8, "MULTI_GPU"), ({"sharding": "fsdp2"}, 8, "FSDP"),
        ({"sharding": "zero3", "cpu_offload": True}, 8, "DEEPSPEED"), ({"sharding": "pipeline"}, 1, "NO"),
    ],
)  # fmt: skip
def test_accelerates_configuration(tmp_path: Path, given: dict[str, Any], ranks: int, kind: str) -> None:
    _script, document = written(tmp_path, ranks, **given)
    assert (document["distributed_type"], document["num_processes"]) == (kind, ranks)
    if kind == "FSDP":
        assert document["fsdp_config"]["fsdp_version"] == 2
        assert document["fsdp_config"]["fsdp_reshard_after_forward"] is True
    if kind == "DEEPSPEED":
        assert document["deepspeed_config"]["zero_stage"] == 3
        assert document["deepspeed_config"]["offload_optimizer_device"] == "cpu"


@pytest.mark.heavy
@pytest.mark.parametrize("given", [{"sharding": "ddp"}, {"sharding": "fsdp2"}, {"sharding": "zero3"}])
def test_accelerate_reads_it(tmp_path: Path, given: dict[str, Any]) -> None:
    from accelerate.commands.config.config_args import load_config_from_file

    _script, document = written(tmp_path, **given)
    found = load_config_from_file(str(tmp_path / "a run/launch/accelerate.yaml"))
    assert found.distributed_type.value == document["distributed_type"] and found.num_processes == 8
    assert found.fsdp_config == document.get("fsdp_config", {})
