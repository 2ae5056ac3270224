"""Published figures on fine-tuning 7B to 70B models, each with its inputs and its class.

`arithmetic`: must come out within its rounding. `range`: our prediction for that configuration must overlap it.
`rule`: a provider's rule of thumb, shown beside ours. `refuted`: the figure is wrong, and the plan shows why.
"""

from __future__ import annotations

import pytest

from engine.plan import memory as memories
from engine.plan import request, servers, storage
from engine.plan import state as states
from engine.plan.layers import layer
from engine.plan.plan import plan

L8, L70 = "meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-70B"
L7, L13, Q32 = "meta-llama/Llama-2-7b-hf", "meta-llama/Llama-2-13b-hf", "Qwen/Qwen2.5-32B"
LLAMA65 = {
    "model_type": "llama", "hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64,
    "num_key_value_heads": 64, "intermediate_size": 22016, "vocab_size": 32000, "tie_word_embeddings": False,
}  # fmt: skip
TB = 1e12
GB = 1e9


def ask(model=L70, **values):
    name = {"config": model} if isinstance(model, dict) else {"model": model}
    defaults = {"optim": "adamw_torch_fused", "transformers": "5", "max_length": 8192}
    return request.parse(name | defaults | values)


def planned(model=L70, **values):
    return plan(ask(model, **values), advise=False)


def held(r):
    """Weights, gradients and optimizer state of one GPU: what does not depend on the batch."""
    state = states.state(r)
    return state.weights + state.gradients + state.optimizer


# --- arithmetic


def test_16_bytes_a_parameter_of_70e9_are_1_12_tb():
    per_parameter = 8 * held(ask(method="full", num_gpus=8, sharding="fsdp2")) / ask().shape.parameters
    assert per_parameter == pytest.approx(16, abs=0.01)
    assert per_parameter * 70e9 == pytest.approx(1.12 * TB, rel=0.005)


def test_exact_llama_70b_is_1_129_tb_and_141_gb_on_each_of_8():
    r = ask(method="full", num_gpus=8, sharding="fsdp2")
    assert r.shape.parameters == 70_553_706_496
    assert 8 * held(r) == pytest.approx(1.129 * TB, rel=0.001)
    assert held(r) == pytest.approx(141.1 * GB, rel=0.001)


def test_20_bytes_a_parameter_where_a_fp32_copy_joins_them():
    m = memories.memory(ask(method="full", num_gpus=8, sharding="fsdp2", optim="adamw_torch"))
    assert m.phase("step").total == pytest.approx(20 * 70.553706496e9 / 8, rel=0.001)


def test_checkpointing_keeps_16_kb_a_token_and_layer_and_11_gb_a_sequence():
    m = memories.memory(ask(method="lora"))
    assert m.phase("loss").parts["activations"] == 80 * 8192 * 8192 * 2
    assert m.phase("loss").parts["activations"] / GB == pytest.approx(11, abs=0.5)


@pytest.mark.parametrize(("method", "mb"), [("full", 31.8), ("lora", 34.4)])
def test_without_checkpointing_a_token_takes_more_than_25_mb(method, mb):
    r = ask(method=method, gradient_checkpointing=False, lora_dropout=0.0, bf16_master="bf16")
    saved = layer(r.shape, r.shape.blocks[0], memories.numerics(r)).saved
    assert 80 * saved / r.tokens / 1e6 == pytest.approx(mb, abs=0.05)


def test_rank_16_on_all_projections_is_207_million_3_3_gb_and_0_4_gb_on_disk():
    r = ask(method="lora", lora_r=16)
    trained = states.adapter_parameters(r)
    assert trained == pytest.approx(207e6, rel=0.002)
    assert trained * 16 == pytest.approx(3.3 * GB, rel=0.01)
    assert trained * 2 == pytest.approx(0.4 * GB, rel=0.05)


def test_logits_are_4_2_gb_in_fp32_and_12_6_gb_at_the_peak():
    one = 128256 * 8192 * 4
    logits, _kept, _grad = memories.head_bytes(ask(method="lora", loss="full"))
    assert one == pytest.approx(4.2 * GB, rel=0.005)
    assert logits - 8 * 8192 * 8192 == 3 * one
    assert 3 * one == pytest.approx(12.6 * GB, rel=0.005)


def test_weights_16_bit_and_4_bit():
    assert states.base_bytes(ask(method="lora")) == pytest.approx(140 * GB, rel=0.01)
    assert states.base_bytes(ask(method="lora")) / 8 == pytest.approx(17.5 * GB, rel=0.01)
    assert ask().shape.linear_weights / 2 == pytest.approx(35 * GB, rel=0.03)
    assert states.base_bytes(ask(method="qlora")) == pytest.approx(40 * GB, rel=0.02)


def test_money_of_20_hours_and_the_break_even_of_a_month():
    offered = servers.offers()
    _count, _card, a40 = servers.find(offered, "b-A40")
    assert servers.cost(a40, 20, offered.hours_per_month)["amount"] == 14.80
    _count, _card, h100 = servers.find(offered, "a-1xH100")
    assert round(servers.break_even_hours(h100.amount, 4.99)) == 439


def test_merging_needs_the_bf16_base_140_gb_within_225():
    assert 2 * ask().shape.parameters == pytest.approx(140 * GB, rel=0.01)
    assert 2 * ask().shape.parameters < 225 * GB


# --- range


@pytest.mark.parametrize(
    ("model", "method", "low", "high"),
    [
        (L8, "qlora", 8, 16),
        (L8, "lora", 18, 30),
        (L8, "full", 120, 150),
        (L13, "qlora", 12, 24),
        (L13, "lora", 32, 48),
        (L13, "full", 208, 240),
        (Q32, "qlora", 24, 40),
        (Q32, "lora", 70, 100),
        (Q32, "full", 520, 600),
    ],
)
def test_the_sizing_table(model, method, low, high):
    """Rows of 2,048 tokens, from one with a chunked loss to four with full logits: the table's range is met."""
    small = planned(model, method=method, max_length=2048, lora_dtype="bf16")
    large = planned(model, method=method, max_length=2048, per_device_train_batch_size=4, loss="full")
    assert small.device.needs <= high * GB
    assert large.device.needs * (1 + large.band) >= low * GB


def test_70b_of_the_sizing_table():
    qlora, lora = planned(method="qlora", lora_dtype="bf16"), planned(method="lora")
    assert 45 * GB <= qlora.device.needs <= 70 * GB
    assert 150 * GB <= lora.device.needs <= 180 * GB
    assert 8 * held(ask(method="full", num_gpus=8, sharding="fsdp2")) >= 1.1 * TB


def test_70b_qlora_on_one_80_gb_card_and_65b_on_48():
    assert planned(method="qlora", lora_dtype="bf16", gpu="H100").verdict == "fits"
    guanaco = planned(LLAMA65, method="qlora", lora_r=64, max_length=512, optim="paged_adamw_32bit", gpu="A40")
    assert guanaco.verdict in ("fits", "tight")


def test_14_gb_of_qlora_activations_and_more_with_kbit_preparation():
    def activations(**more):
        return planned(method="qlora", lora_dtype="bf16", **more).memory.phase("backward").parts["activations"] / GB

    assert 13 <= activations() <= 17.5
    assert 24 <= activations(kbit_prepare=True) <= 31


def test_70b_lora_on_one_b200_two_h100_and_four_rtx_pro_6000():
    assert planned(method="lora", gpu="B200").verdict == "fits"
    assert planned(method="lora", gpu="B300").verdict == "fits"
    assert planned(method="lora", gpu="H100", num_gpus=2, sharding="fsdp2", max_length=512).verdict in ("tight", "fits")
    assert planned(method="lora", gpu="H100", num_gpus=2, sharding="fsdp2").verdict == "no"
    assert planned(method="lora", gpu="RTX PRO 6000", num_gpus=4, sharding="fsdp2", max_length=4096).verdict == "fits"


def test_70b_full_on_8_b200_leaves_40_gb_for_activations_and_fits():
    b200 = planned(method="full", gpu="B200", num_gpus=8, sharding="fsdp2")
    assert 180 * GB - held(b200.request) == pytest.approx(40 * GB, rel=0.05)
    assert b200.verdict == "fits"
    b300 = planned(method="full", gpu="B300", num_gpus=8, sharding="fsdp2")
    assert 288 * GB - b300.device.needs > 100 * GB


def test_70b_full_on_8_h200_only_with_offload_or_8_bit_states():
    common = {"method": "full", "gpu": "H200", "num_gpus": 8, "sharding": "fsdp2"}
    assert planned(**common).verdict == "no"
    offloaded = planned(**common, cpu_offload=True)
    assert offloaded.verdict == "fits"
    # 840 GB are the fp32 master and the moments; FSDP2 offloads the gradients too. Both are within the server's 2 TB
    assert 840 * GB <= offloaded.storage.host_run <= 2 * TB
    assert planned(**common, optim="adamw_8bit").verdict == "fits"


def test_13b_qlora_on_24_gb_and_32b_lora_on_one_h200():
    assert planned(L13, method="qlora", gpu="RTX4090", max_length=2048).verdict == "fits"
    assert planned(Q32, method="lora", gpu="H200", max_length=2048).verdict == "fits"


def test_70b_qlora_in_turn_over_two_rtx_5090():
    turn = planned(method="qlora", gpu="RTX 5090", num_gpus=2, sharding="pipeline", max_length=1024)
    assert turn.verdict in ("fits", "tight")


def test_checkpointing_makes_a_step_20_to_40_percent_slower():
    with_, without = (planned(L8, method="full", gpu="H200", gradient_checkpointing=on) for on in (True, False))
    assert 0.6 < with_.speed.per_gpu / without.speed.per_gpu < 0.85


def test_70b_full_checkpoints_do_not_fit_one_drive_with_3_kept_and_are_spread():
    full = planned(method="full", server="a-8xH200", sharding="fsdp2", checkpoints_kept=3)
    spread = full.disk()["spread"]
    assert full.storage.total > 3.84 * TB
    assert spread["fits"] and spread["drives"] > 1
    assert storage.spread(full.storage, (3.84,))["fits"] is False


# --- rule


@pytest.mark.parametrize(
    ("model", "method", "server", "rule", "usable"),
    [(L70, "qlora", "b-H100", 53, 80), (Q32, "lora", "b-H200", 98, 141), (L70, "lora", "c-4xRTXPRO6000", 212, 384)],
)
def test_the_rule_of_thumb_stands_beside_ours(model, method, server, rule, usable):
    check = planned(model, method=method, server=server, max_length=2048).cross_check()
    assert check["rule_gb"] == pytest.approx(rule, rel=0.01)
    assert check["rule_gb"] < check["usable_gb"]
    assert check["usable_gb"] == pytest.approx(0.92 * usable, rel=0.08)  # GB of the datasheet are nearer to GiB


# --- refuted


@pytest.mark.parametrize(
    ("model", "gpu", "number"),
    [(L7, "H100", 1), (L13, "H200", 1), (L13, "H100", 2), (L70, "H100", 8), (L70, "H200", 4), (L70, "H200", 8)],
)
def test_full_tuning_at_16_bytes_a_parameter_does_not_fit_where_it_was_said_to(model, gpu, number):
    # the last one is pretraining, with rows of its length: at 512 tokens it is within the error, and lacks 2 GB
    length = 8192 if (gpu, number) == ("H200", 8) else 512
    sharding = "auto" if number == 1 else "fsdp2"
    result = planned(model, method="full", gpu=gpu, num_gpus=number, max_length=length, sharding=sharding)
    assert result.verdict == "no"
    assert held(result.request) > 0.93 * result.context.capacity  # the states alone: no batch size would help


@pytest.mark.parametrize(("model", "ten_times"), [(L7, 70), (L13, 130), (L70, 700)])
def test_ten_times_the_size_is_pure_bf16_training_not_mixed_precision(model, ten_times):
    mixed = held(ask(model, method="full", max_length=512))
    pure = memories.memory(ask(model, method="full", bf16_master="bf16", optim="adamw_torch", max_length=512))
    assert mixed > 1.5 * ten_times * GB
    assert pure.phase("step").total == pytest.approx(ten_times * GB, rel=0.05)


def test_checkpointing_saves_95_percent_of_the_activations_not_50_to_70():
    with_, without = (memories.memory(ask(method="full", gradient_checkpointing=on)) for on in (True, False))
    saved = 1 - with_.phase("loss").parts["activations"] / without.phase("loss").parts["activations"]
    assert saved > 0.93


def test_fp8_does_not_halve_the_memory_beside_16_or_32_bit_weights():
    plain, fp8 = (planned(method="full", gpu="B200", num_gpus=8, sharding="fsdp2", fp8=on) for on in (False, True))
    assert fp8.memory.peak.total == plain.memory.peak.total
    assert fp8.speed.per_gpu > plain.speed.per_gpu
