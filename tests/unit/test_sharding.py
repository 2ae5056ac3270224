"""What a recipe's sharding becomes for the libraries."""

from __future__ import annotations

from typing import Any

import pytest

from engine.recipe import defaults
from engine.train import sharding


def options(ranks: int = 8, **given: Any) -> dict[str, Any]:
    return sharding.trainer_options(defaults.fill(given, num_gpus=ranks), ranks)


@pytest.mark.parametrize(("kind", "ranks"), [("none", 1), ("ddp", 8), ("pipeline", 1), ("fsdp2", 1), ("zero3", 1)])
def test_what_needs_nothing_said(kind: str, ranks: int) -> None:
    assert options(ranks, sharding=kind) == {}


def test_fsdp2() -> None:
    found = options(sharding="fsdp2", method="full", cpu_offload=True)
    assert found["fsdp"] is True
    assert found["accelerator_config"] == {"gradient_accumulation_kwargs": {"sync_each_batch": True}}
    config = found["fsdp_config"]
    assert config["version"] == 2 and config["reshard_after_forward"] and config["cpu_offload"]
    assert config["cpu_ram_efficient_loading"] and config["state_dict_type"] == "SHARDED_STATE_DICT"
    given = options(sharding="fsdp2", fsdp_config={"fsdp_reshard_after_forward": False, "version": 1})["fsdp_config"]
    assert given["reshard_after_forward"] is False and given["version"] == 2


@pytest.mark.parametrize(
    "given", [{"method": "qlora"}, {"task": "dpo"}, {"task": "pretrain", "random_init": True, "method": "full"}]
)
def test_where_each_rank_reads_the_weights_itself(given: dict[str, Any]) -> None:
    assert not options(sharding="fsdp2", **given)["fsdp_config"]["cpu_ram_efficient_loading"]


def test_4_bit_weights_are_sharded_in_the_models_precision() -> None:
    for kind, storage in (("fsdp2", "bfloat16"), ("ddp", None)):
        values = defaults.fill({"method": "qlora", "sharding": kind}, num_gpus=2)
        assert values["bnb_4bit_quant_storage"] == storage
    assert values["dtype"] == "bfloat16"


@pytest.mark.parametrize(("kind", "stage"), [("zero2", 2), ("zero3", 3)])
def test_zero(kind: str, stage: int) -> None:
    plain = options(sharding=kind)["deepspeed"]
    assert plain["zero_optimization"]["stage"] == stage and "optimizer" not in plain
    assert plain["train_batch_size"] == plain["gradient_clipping"] == "auto"
    offloaded = options(sharding=kind, cpu_offload=True)["deepspeed"]
    assert offloaded["zero_optimization"]["offload_optimizer"]["device"] == "cpu"
    assert ("offload_param" in offloaded["zero_optimization"]) is (stage == 3)
    assert offloaded["optimizer"]["type"] == "AdamW"
    assert options(1, sharding="zero2", cpu_offload=True)["deepspeed"]["zero_optimization"]["stage"] == 2


def test_offloaded_state_gets_gloo_beside_nccl() -> None:
    values = defaults.fill({"sharding": "fsdp2", "cpu_offload": True}, num_gpus=2)
    assert sharding.environment(values)["FSDP_OFFLOAD_PARAMS"] == "true"
    assert sharding.environment({**values, "cpu_offload": False}) == {}


def test_pure_bf16_is_no_mixed_precision_under_fsdp2() -> None:
    values = defaults.fill({"method": "full", "bf16_master": "bf16", "sharding": "fsdp2"}, num_gpus=2)
    assert sharding.pure_bf16(values) and sharding.mixed_precision(values) == "bf16"
    assert not sharding.pure_bf16({**values, "sharding": "ddp"})
