"""The resolved recipe: defaults, what they depend on, and that it stands for itself."""

from __future__ import annotations

import json

import pytest

from engine import recipe
from engine.errors import UsageError
from engine.findings import has_errors
from engine.recipe import keys
from tests.support.recipes import furnish, load


def resolved(tmp_path, body="", num_gpus=1, **kwargs):
    loaded = load(tmp_path, body)
    assert not has_errors(loaded.findings)
    return recipe.resolve(loaded, num_gpus=num_gpus, **kwargs)


def test_the_recipe_of_an_8b_model_on_one_gpu(tmp_path):
    values = resolved(tmp_path)
    expected = {
        "method": "lora", "lora_r": 16, "lora_alpha": 32, "lora_dropout": 0.05, "lora_target_modules": "all-linear",
        "learning_rate": 2e-4, "lr_scheduler_type": "cosine", "warmup_steps": 0.03, "num_train_epochs": 2,
        "per_device_train_batch_size": 2, "gradient_accumulation_steps": 8, "global_batch_size": 16,
        "max_length": 2048, "logging_steps": 10, "eval_strategy": "steps", "eval_steps": 0.1,
        "save_strategy": "steps", "save_steps": 0.1, "save_total_limit": 3, "gradient_checkpointing": True,
        "bf16": True, "dtype": "bfloat16", "test_size": 0.05, "seed": 42, "report_to": "none",
        "assistant_only_loss": None, "sharding": "none", "num_gpus": 1, "use_cpu": False, "use_peft": True,
    }  # fmt: skip
    assert {key: values[key] for key in expected} == expected
    assert set(values) == set(keys.table("sft"))


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("method: qlora", {"load_in_4bit": True, "use_bnb_nested_quant": True, "bnb_4bit_compute_dtype": "bfloat16"}),
        ("load_in_4bit: true", {"method": "qlora"}),
        ("use_peft: false", {"method": "full"}),
        ("method: full", {"learning_rate": 2e-5, "dtype": "float32", "bf16": True, "use_peft": False}),
        ("method: full\nbf16_master: bf16", {"dtype": "bfloat16"}),
        ("task: dpo", {"learning_rate": 1e-5, "loss_type": ["sigmoid"]}),
        ("task: dpo\nmethod: full", {"learning_rate": 1e-6}),
        ("task: pretrain", {"assistant_only_loss": False}),
        ("fp16: true", {"bf16": False, "dtype": "float16"}),
        ("device: cpu\nnum_gpus: 2", {"num_gpus": 2, "sharding": "ddp", "gradient_accumulation_steps": 4}),
        ("device: cpu", {"use_cpu": True, "bf16": False, "dtype": "float32", "num_gpus": 0}),
        ("device: cpu\nbf16: true", {"bf16": True, "dtype": "bfloat16"}),
        ("test_size: 0", {"eval_strategy": "no"}),
        ("eval_dataset_path: ./e.jsonl", {"eval_strategy": "steps", "test_size": 0}),
        ("load_best_model_at_end: true\neval_steps: 50", {"save_steps": 50}),
        ("load_best_model_at_end: true\nsave_steps: 50", {"eval_steps": 50}),
        ("load_best_model_at_end: true\nsave_strategy: epoch", {"eval_strategy": "epoch"}),
        ("load_best_model_at_end: true\neval_strategy: epoch", {"save_strategy": "epoch"}),
        ("warmup_ratio: 0.1", {"warmup_steps": 0.1}),
        ("lr_scheduler_type: constant", {"warmup_steps": 0}),
        ("lora_target_parameters: [a.b]", {"lora_dropout": 0}),
        ("activation_checkpointing: false", {"gradient_checkpointing": False}),
        ("per_device_train_batch_size: 4", {"per_device_eval_batch_size": 4, "gradient_accumulation_steps": 4}),
        ("per_device_train_batch_size: 64", {"gradient_accumulation_steps": 1, "global_batch_size": 64}),
        ("gradient_accumulation_steps: 3", {"global_batch_size": 6}),
    ],
)
def test_defaults_that_depend_on_something(tmp_path, body, expected):
    values = resolved(tmp_path, body)
    assert {key: values[key] for key in expected} == expected


@pytest.mark.parametrize(("gpus", "accumulation"), [(0, 8), (1, 8), (2, 4), (4, 2), (8, 1)])
def test_the_global_batch_is_kept_over_gpus(tmp_path, gpus, accumulation):
    values = resolved(tmp_path, "global_batch_size: 16\n", gpus)
    assert (values["gradient_accumulation_steps"], values["global_batch_size"]) == (accumulation, 16)
    assert values["sharding"] == ("none" if gpus < 2 else "ddp")
    assert values["use_cpu"] is (gpus == 0)


def test_a_global_batch_that_cannot_be_made_says_so(tmp_path):
    with pytest.raises(UsageError) as raised:
        resolved(tmp_path, "global_batch_size: 16\n", 3)
    assert (raised.value.where, raised.value.kind) == ("global_batch_size", "conflict")
    assert resolved(tmp_path, "", 3)["global_batch_size"] == 18  # the default is only met nearly


def test_gpus_without_bf16_compute_in_fp32(tmp_path):
    values = resolved(tmp_path, "", 1, bf16_available=False)
    assert (values["bf16"], values["dtype"]) == (False, "float32")


@pytest.mark.parametrize("gpus", [0, 1, 4])
@pytest.mark.parametrize(
    "body",
    ["", "method: qlora", "method: full", "task: dpo", "test_size: 0", "warmup_ratio: 0.1", "use_peft: false",
     "load_best_model_at_end: true\nsave_strategy: epoch", "target_modules: q_proj", "max_length: null",
     "per_device_train_batch_size: 5", "activation_checkpointing: false", "report_to: [none]"],
)  # fmt: skip
def test_a_resolved_recipe_resolves_to_itself(tmp_path, body, gpus):
    first = resolved(tmp_path, body, gpus)
    path = tmp_path / "again.yaml"
    path.write_text("".join(f"{key}: {json.dumps(value)}\n" for key, value in first.items()))
    again = recipe.load(path)
    assert not has_errors(again.findings)
    assert recipe.resolve(again, num_gpus=gpus) == first


def test_every_key_has_an_origin(tmp_path):
    loaded = load(tmp_path, "method: full\n", ["seed=1"])
    assert set(loaded.origin) == set(recipe.resolve(loaded, num_gpus=1))
    origin = loaded.origin
    assert (origin["method"], origin["seed"], origin["learning_rate"], origin["optim"]) == (
        "recipe", "override", "derived", "default",
    )  # fmt: skip


def test_the_recipe_itself_answers_for_its_values(tmp_path):
    furnish(tmp_path)
    loaded = load(tmp_path, "lora_r: 4\n").recipe
    assert (loaded.lora_r, loaded["lora_alpha"], loaded.get("nothing"), loaded.method) == (4, 32, None, "lora")
    with pytest.raises(AttributeError):
        loaded.nothing  # noqa: B018
