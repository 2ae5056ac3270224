"""Requests: what is wrong is an error that names its key; what is unknown is a note."""

from __future__ import annotations

import json
import random

import pytest

from engine.errors import FtuiError, UsageError
from engine.plan import request
from engine.plan.plan import plan
from engine.plan.tokens import padded_tokens, train_tokens

BASE = {"model": "meta-llama/Llama-3.1-8B", "method": "lora"}


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"model": None}, "model"),
        ({"model": 7}, "model"),
        ({"method": "sft"}, "method"),
        ({"method": ["lora"]}, "method"),
        ({"lora_r": 0}, "lora_r"),
        ({"lora_r": -8}, "lora_r"),
        ({"lora_r": 2048}, "lora_r"),  # the keys' projection is 1,024 wide
        ({"lora_r": True}, "lora_r"),
        ({"lora_r": 1.5}, "lora_r"),
        ({"lora_target_modules": ["qq_proj"]}, "lora_target_modules"),
        ({"lora_target_modules": []}, "lora_target_modules"),
        ({"max_length": 0}, "max_length"),
        ({"max_length": -1}, "max_length"),
        ({"max_length": 200_000}, "max_length"),  # beyond 131,072 positions
        ({"max_length": "2048"}, "max_length"),
        ({"max_length": float("nan")}, "max_length"),
        ({"per_device_train_batch_size": 0}, "per_device_train_batch_size"),
        ({"num_gpus": 0}, "num_gpus"),
        ({"num_gpus": 10**9}, "num_gpus"),
        ({"num_gpus": 2, "sharding": "none"}, "sharding"),
        ({"sharding": "fsdp3"}, "sharding"),
        ({"global_batch_size": 10, "per_device_train_batch_size": 4}, "global_batch_size"),
        ({"global_batch_size": 8, "num_gpus": 16, "sharding": "ddp"}, "global_batch_size"),
        ({"global_batch_size": 16, "gradient_accumulation_steps": 3}, "gradient_accumulation_steps"),
        ({"gpu_memory_gb": 0}, "gpu_memory_gb"),
        ({"gpu_memory_gb": -24}, "gpu_memory_gb"),
        ({"gpu_memory_gb": float("inf")}, "gpu_memory_gb"),
        ({"lora_dropout": 1.0}, "lora_dropout"),
        ({"loss": "cut"}, "loss"),
        ({"quant": "q4_k_m"}, "quant"),
        ({"attn_implementation": "magic"}, "attn_implementation"),
        ({"bf16_master": "fp64"}, "bf16_master"),
        ({"gradient_checkpointing": "yes"}, "gradient_checkpointing"),
        ({"transformers": "new"}, "transformers"),
        ({"num_train_epochs": 0}, "num_train_epochs"),
        ({"length_histogram": [[0, 5]]}, "length_histogram"),
        ({"length_histogram": "long"}, "length_histogram"),
        ({"config": "llama"}, "config"),
        ({"optim": "adamq"}, "optim"),
        ({"gpu": "RTX 9999"}, "gpu"),
        ({"server": "8xRTX9999"}, "server"),
        ({"server": "eight"}, "server"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_an_error_that_names_its_key(values, key):
    with pytest.raises(UsageError) as error:
        plan(request.parse(BASE | values), advise=False)
    assert error.value.where == key
    assert error.value.what


def test_an_unknown_card_asks_for_its_memory_and_takes_it():
    with pytest.raises(UsageError) as error:
        plan(request.parse(BASE | {"gpu": "RTX 9999"}))
    assert "gpu_memory_gb" in (error.value.fix or "")
    result = plan(request.parse(BASE | {"gpu": "RTX 9999", "gpu_memory_gb": 64}))
    assert result.verdict == "fits"
    assert result.speed is None


@pytest.mark.parametrize("value", [None, [], 3, "text"])
def test_a_request_that_is_no_object_is_an_error(value):
    with pytest.raises(UsageError):
        request.parse(value)


def test_unknown_keys_are_a_note_and_measurements_are_not():
    r = request.parse(BASE | {"colour": "red", "measured_gb": 3.0, "source": "x"})
    assert any("colour" in note for note in r.notes)
    assert not any("measured_gb" in note for note in r.notes)


def test_none_means_not_given():
    r = request.parse(BASE | {"lora_r": None, "quant": None, "max_length": None})
    assert (r.lora_r, r.quant, r.max_length) == (16, "nf4-dq", 1024)


def test_accumulation_follows_from_the_global_batch():
    r = request.parse(
        BASE | {"global_batch_size": 64, "per_device_train_batch_size": 2, "num_gpus": 8, "sharding": "ddp"}
    )
    assert r.accumulation == 4


def test_lengths_give_packed_and_padded_tokens():
    rows = {"length_histogram": {"100": 3, "1000": 1}}
    packed = request.parse(BASE | rows | {"packing": True})
    assert train_tokens(packed) == 1300
    single = request.parse(BASE | rows)
    assert train_tokens(single) == 1300  # alone in its batch no row is padded
    pairs = request.parse(BASE | rows | {"per_device_train_batch_size": 2})
    # of four rows in pairs, a pair is all short with (3/4)^2
    assert padded_tokens(pairs) == pytest.approx(4 * (100 * 9 / 16 + 1000 * 7 / 16))
    assert train_tokens(request.parse(BASE | rows | {"max_length": 512, "packing": True})) == 812


def test_counted_lengths_bound_the_memory_and_estimated_ones_do_not():
    asked = BASE | {"max_length": 4096, "per_device_train_batch_size": 4, "length_histogram": {"100": 50, "700": 2}}
    plain = plan(request.parse(asked | {"length_histogram": None}), advise=False)
    counted = plan(request.parse(asked), advise=False)
    short = plan(request.parse(asked | {"length_histogram": None, "max_length": 700}), advise=False)
    assert counted.request.longest == 700
    assert counted.memory.peak.total == short.memory.peak.total < plain.memory.peak.total
    for more in ({"lengths_estimated": True}, {"packing": True}):
        assert plan(request.parse(asked | more), advise=False).memory.peak.total >= plain.memory.peak.total


def test_steps_and_epochs_give_tokens():
    base = BASE | {"max_length": 1000, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}
    assert train_tokens(request.parse(base | {"max_steps": 10})) == 80_000
    assert train_tokens(request.parse(base | {"rows": 50, "num_train_epochs": 2})) == 100_000
    assert train_tokens(request.parse(base | {"train_tokens": 5e6, "num_train_epochs": 3})) == 15e6
    assert train_tokens(request.parse(base)) is None


JUNK = [
    None, 0, -1, 1, 3, 1e9, 10**12, 1.5, float("nan"), float("inf"), True, False, "", "x", "fp32", "4.45", [],
    ["q_proj"], ["lm_head"], "all-linear", {}, {"a": 1}, [[1, 2]], "liger", "full", "eager", "H100", "8xH200",
]  # fmt: skip
SENSIBLE = {
    "model": ["Llama-3.2-1B", "Qwen/Qwen3-30B-A3B", "microsoft/phi-2", "openai/gpt-oss-20b", "deepseek-ai/DeepSeek-V3"],
    "method": ["full", "lora", "qlora"], "loss": ["full", "chunked", "liger"], "num_gpus": [1, 2, 8],
    "sharding": ["auto", "ddp", "fsdp1", "fsdp2", "zero1", "zero2", "zero3", "pipeline"],
    "framework": ["hf", "litgpt", "torchtune", "unsloth"], "gradient_checkpointing": [True, False],
    "attn_implementation": ["eager", "sdpa", "flash_attention_2"], "gpu": ["H100", "L4", "B200", None],
    "quant": ["nf4", "int8", "gptq", None], "bf16_master": ["fp32", "bf16"], "use_dora": [True, False],
    "cpu_offload": [True, False], "task": ["sft", "dpo"], "rows": [None, 1000], "year": [None, 2023],
    "lora_modules_to_save": [None, ["lm_head"]], "transformers": [None, "4.45", "4.47", "5.1"],
    "max_length": [128, 512],
    "per_device_eval_batch_size": [None, 4], "global_batch_size": [None, 64], "length_histogram": [None, [[100, 5]]],
}  # fmt: skip


def test_any_mixture_of_values_is_a_consistent_plan_or_one_clear_error():
    draw = random.Random(7)
    keys = [*SENSIBLE, "lora_r", "lora_target_modules", "id", "config", "server", "weird", "optim", "max_steps"]
    plans = 0
    for _round in range(400):
        asked = {key: draw.choice(values) for key, values in SENSIBLE.items() if key == "model" or draw.random() < 0.6}
        for _junk in range(draw.choice([0, 0, 1, 2])):
            asked[draw.choice(keys)] = draw.choice(JUNK)
        try:
            answer = plan(request.parse(asked)).to_json()
        except FtuiError as error:
            assert error.what
            continue
        plans += 1
        json.dumps(answer, allow_nan=False)
        card = answer["per_gpu"]
        assert 0 <= card["low_gb"] <= card["allocated_gb"] <= card["high_gb"]
        assert card["allocated_gb"] <= card["reserved_gb"] + 0.02 <= card["device_gb"] + 0.04
        assert min(card["breakdown"].values()) >= 0
    assert plans > 100
