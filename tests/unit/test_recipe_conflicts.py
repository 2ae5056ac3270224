"""Keys that contradict each other."""

from __future__ import annotations

import re

import pytest

from tests.support.recipes import FIRST, load, seen

# body -> the keys of the contradiction that stand in it; every line of the body is one of them
ERRORS = [
    "fp16: true\nbf16: true",
    "fp16_full_eval: true\nbf16_full_eval: true",
    "method: full\nload_in_4bit: true",
    "method: full\nload_in_8bit: true",
    "method: full\nuse_peft: true",
    "method: lora\nuse_peft: false",
    "method: qlora\nload_in_4bit: false",
    "method: qlora\nload_in_8bit: true",
    "method: lora\nload_in_4bit: true",
    "load_in_4bit: true\nload_in_8bit: true",
    "load_best_model_at_end: true\neval_strategy: steps\nsave_strategy: epoch",
    "load_best_model_at_end: true\neval_steps: 50\nsave_steps: 75",
    "load_best_model_at_end: true\neval_steps: 0.1\nsave_steps: 50",
    "load_best_model_at_end: true\neval_strategy: no",
    "save_strategy: best\neval_strategy: no\nmetric_for_best_model: eval_loss",
    "save_strategy: best",
    "load_best_model_at_end: true\ngreater_is_better: true",
    "eval_strategy: steps\ntest_size: 0",
    "eval_on_start: true\ntest_size: 0",
    "do_eval: true\neval_strategy: no",
    "lr_scheduler_type: reduce_lr_on_plateau\neval_strategy: no",
    "lr_scheduler_type: constant\nwarmup_steps: 10",
    "lr_scheduler_type: cosine_with_min_lr",
    "warmup_steps: 10\nwarmup_ratio: 0.1",
    "max_steps: 10\nwarmup_steps: 10",
    "dataloader_prefetch_factor: 2\ndataloader_num_workers: 0",
    "packing: true\nmax_length: null",
    "padding_free: true",
    "packing: true\npacking_strategy: wrapped\nassistant_only_loss: true",
    "task: pretrain\nassistant_only_loss: true",
    "task: pretrain\ncompletion_only_loss: true",
    "device: cpu\nfp16: true",
    "device: cpu\ntf32: true",
    "device: cpu\nfp8: true",
    "device: cpu\nuse_liger_kernel: true",
    "device: cpu\nsharding: fsdp2",
    "device: cpu\nsharding: pipeline",
    "optim: muon\nsharding: fsdp2",
    "device: cpu\nuse_cpu: false",
    "device: cpu\nbackend: unsloth",
    "fp16: true\ndtype: bfloat16",
    "method: full\nbf16_master: bf16\ndtype: float32",
    "method: qlora\nfp8: true",
    "sharding: none\nnum_gpus: 2",
    "sharding: pipeline\nnum_gpus: 1",
    "sharding: ddp\ncpu_offload: true",
    "sharding: ddp\ndeepspeed: {a: 1}",
    "sharding: zero3\nfsdp: full_shard",
    "deepspeed: {a: 1}\nfsdp: full_shard",
    "backend: unsloth\nnum_gpus: 2",
    "gradient_checkpointing: true\nactivation_checkpointing: false",
    "gradient_checkpointing_kwargs: {selective: true}\ngradient_checkpointing: false",
    "fsdp_config: {activation_checkpointing: true}",
    "liger_kernel_config: {fused_linear_cross_entropy: true}",
    "global_batch_size: 7\nper_device_train_batch_size: 2",
    "global_batch_size: 16\nper_device_train_batch_size: 2\ngradient_accumulation_steps: 4",
    "global_batch_size: 16\nnum_gpus: 3",
    "lora_target_modules: [q_proj, lm_head]",
    "lora_target_modules: [q_proj]\nlora_modules_to_save: [q_proj]",
    "lora_target_modules: .*(q_proj",
    "layers_to_transform: [0]",
    "layers_pattern: layers",
    "lora_target_parameters: [a.b]\nlora_dropout: 0.1",
    "lora_bias: true\nuse_dora: true",
    "init_lora_weights: loftq",
    "method: qlora\ninit_lora_weights: pissa",
    "use_qalora: true",
    "task: dpo\nloss_type: [sigmoid, sft]\nloss_weights: [1.0]",
    "task: dpo\nsync_ref_model: true\nprecompute_ref_log_probs: true\nmethod: full",
    "push_to_hub: true",
    "save_only_model: true",
    "hub_token: hf_x",
    "resume_from_checkpoint: last",
    "auto_find_batch_size: true",
]
NOT_PART = ("task", "method", "metric_for_best_model")  # lines that only set the scene of some bodies


@pytest.mark.parametrize("body", ERRORS)
def test_contradictions_are_errors_with_all_their_lines(tmp_path, body):
    found = [f for f in load(tmp_path, body + "\n").findings if f.kind == "conflict" and f.level == "error"]
    assert found
    rows = body.split("\n")
    needed = {FIRST + n for n, row in enumerate(rows) if row.split(":")[0] not in NOT_PART}
    assert needed <= {line for finding in found for line in finding.lines}
    for finding in found:
        assert finding.detail
        assert finding.fix
        assert finding.extra["keys"]


@pytest.mark.parametrize(
    "body",
    [
        "packing: true\npacking_strategy: wrapped",
        "packing: true\nattn_implementation: my_own",
        "eval_dataset_path: ./other.jsonl\ntest_size: 0.1",
        "eval_dataset_path: ./train.jsonl",
        "max_steps: 10\nsave_steps: 50",
        "sharding: fsdp2\nnum_gpus: 1",
    ],
)
def test_doubtful_pairs_are_warnings(tmp_path, body):
    found = [f for f in load(tmp_path, body + "\n").findings if f.kind == "conflict"]
    assert [f.level for f in found] == ["warning"]


@pytest.mark.parametrize(
    "body",
    [
        "max_steps: 100\nnum_train_epochs: 3",
        "method: full\nload_in_4bit: false",
        "method: lora\nload_in_8bit: true",
        "method: qlora\nload_in_4bit: true\nuse_peft: true",
        "load_in_4bit: true",
        "use_peft: false",
        "fp16: true",
        "fp16: true\nbf16: false",
        "load_best_model_at_end: true",
        "load_best_model_at_end: true\neval_strategy: epoch",
        "load_best_model_at_end: true\nsave_strategy: epoch",
        "load_best_model_at_end: true\neval_steps: 25\nsave_steps: 100",
        "load_best_model_at_end: true\neval_steps: 0.1\nsave_steps: 0.3",
        "save_strategy: best\nmetric_for_best_model: eval_loss",
        "test_size: 0",
        "eval_strategy: no",
        "eval_dataset_path: ./eval.jsonl",
        "packing: true",
        "packing: true\nattn_implementation: flash_attention_2",
        "lr_scheduler_type: constant",
        "lr_scheduler_type: cosine_with_min_lr\nlr_scheduler_kwargs: {min_lr: 1.0e-6}",
        "warmup_ratio: 0.1",
        "device: cpu",
        "device: cpu\nuse_cpu: true",
        "global_batch_size: 16\nper_device_train_batch_size: 2\ngradient_accumulation_steps: 8",
        "gradient_accumulation_steps: 1",
        "per_device_train_batch_size: 1",
        "lora_target_modules: all-linear",
        "activation_checkpointing: true",
        "push_to_hub: false\nsave_only_model: false",
        "dtype: float32",
        "method: full\nbf16_master: bf16",
    ],
)
def test_what_goes_together_is_left_alone(tmp_path, body):
    assert seen(load(tmp_path, body + "\n").findings) == []


@pytest.mark.parametrize(
    ("body", "lines"),
    [
        ("method: full\nlora_r: 16\nuse_dora: true", [FIRST, FIRST + 1, FIRST + 2]),
        ("bnb_4bit_quant_type: nf4\nkbit_prepare: true", [FIRST, FIRST + 1]),
        ("eval_strategy: epoch\neval_steps: 10", [FIRST, FIRST + 1]),
        ("save_strategy: epoch\nsave_steps: 10", [FIRST, FIRST + 1]),
        ("hub_model_id: me/mine", [FIRST]),
        ("do_train: false", [FIRST]),
        ("metric_for_best_model: eval_loss", [FIRST]),
    ],
)
def test_keys_without_an_effect_are_notes(tmp_path, body, lines):
    (found,) = load(tmp_path, body + "\n").findings
    assert (found.level, found.kind, found.subtype, found.lines) == ("note", "conflict", "unused", lines)


def test_a_secret_goes_no_further(tmp_path):
    loaded = load(tmp_path, "hub_token: hf_secret\n")
    assert [f.subtype for f in loaded.findings] == ["refused"]
    assert "hf_secret" not in str([f.to_json() for f in loaded.findings]) + str(loaded.recipe)


@pytest.mark.parametrize("body", ["report_to: wandb", "backend: unsloth", "num_machines: 2"])
def test_what_this_version_cannot_do_is_said(tmp_path, body):
    assert seen(load(tmp_path, body + "\n").findings) == [("warning", "not_supported_yet", [FIRST])]


@pytest.mark.parametrize(
    "body",
    [
        "method: full\nload_in_8bit: true\n",
        "method: qlora\nload_in_4bit: false\n",
        "method: qlora\nload_in_8bit: true\n",
        "method: lora\nload_in_4bit: true\n",
        "global_batch_size: 7\nper_device_train_batch_size: 2\n",
        "method: full\nsave_only_model: true\n",
    ],
)
def test_a_fix_deletes_only_what_is_there(tmp_path, body):
    loaded = load(tmp_path, body)
    assert loaded.findings
    for finding in loaded.findings:
        named = {word for word in re.findall(r"[a-z]+(?:_[a-z0-9]+)+", finding.fix) if word in loaded.recipe.values}
        assert named <= set(loaded.recipe.given), finding.fix
        assert "line" not in finding.fix, "a value of the command line has none"
