"""The light side's knowledge of TRL, transformers and PEFT against the libraries themselves."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from engine import recipe
from engine.findings import has_errors
from engine.recipe.model import Loaded

pytestmark = pytest.mark.heavy

BASE = "model_name_or_path: builtin:tiny\ndataset_path: builtin:support\n"

# What the trainer's arguments refuse, and so must be said before a GPU is held.
REFUSED_BY_TRAINER: list[dict[str, Any]] = [
    {"fp16": True, "bf16": True, "use_cpu": True},
    {"fp16_full_eval": True, "bf16_full_eval": True},
    {"load_best_model_at_end": True, "eval_strategy": "steps", "save_strategy": "epoch"},
    {"load_best_model_at_end": True, "eval_steps": 50, "save_steps": 75},
    {"load_best_model_at_end": True, "eval_steps": 0.1, "save_steps": 50},
    {"load_best_model_at_end": True, "eval_steps": 0.1, "save_steps": 0.25},
    {"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "no"},
    {"lr_scheduler_type": "greedy", "eval_strategy": "no"},
    {"warmup_steps": -1},
    {"logging_steps": 0},
    {"logging_steps": 2.5},
    {"eval_steps": 2.5},
    {"save_steps": 2.5},
    {"torch_empty_cache_steps": 0},
    {"dataloader_prefetch_factor": 2},
    {"lr_scheduler_type": "cosin"},
    {"optim": "adamw"},
    {"eval_strategy": "sometimes"},
    {"pad_to_multiple_of": "eight"},
]
REFUSED_BY_ADAPTER: list[dict[str, Any]] = [
    {"layers_to_transform": [0]},
    {"layers_pattern": "layers", "lora_target_modules": ["q_proj"]},
    {"use_dora": True, "megatron_config": {"a": 1}, "lora_target_modules": ["q_proj"]},
    {"lora_bias": True, "use_dora": True},
    {"lora_bias": True, "init_lora_weights": "gaussian"},
    {"init_lora_weights": "loftq"},
]
TRL_NAMES = {"r": "lora_r", "target_modules": "lora_target_modules", "target_parameters": "lora_target_parameters"}


def loaded(tmp_path: Path, keys: dict[str, Any]) -> Loaded:
    path = tmp_path / "recipe.yaml"
    path.write_text(BASE + "".join(f"{key}: {json.dumps(value)}\n" for key, value in keys.items()))
    return recipe.load(path)


def trainer_arguments(values: dict[str, Any], tmp_path: Path) -> object:
    from trl import SFTConfig

    names = {field.name for field in dataclasses.fields(SFTConfig) if field.init}
    options = {name: value for name, value in values.items() if name in names and value is not None}
    options |= {"output_dir": str(tmp_path), "use_cpu": True}
    return SFTConfig(**options)


def adapter(values: dict[str, Any]) -> object:
    from peft import LoraConfig

    names = {field.name for field in dataclasses.fields(LoraConfig) if field.init}
    options = {name: values[TRL_NAMES.get(name, name)] for name in names if TRL_NAMES.get(name, name) in values}
    options = {name: value for name, value in options.items() if value is not None}
    return LoraConfig(**options)


def test_the_committed_table_is_what_the_libraries_say_now() -> None:
    import orjson

    from engine.recipe.generate import TABLE, table

    assert orjson.loads(orjson.dumps(table())) == orjson.loads(TABLE.read_bytes()), (
        "run `python -m engine.recipe.generate` and look at what changed"
    )


@pytest.mark.parametrize("keys", REFUSED_BY_TRAINER, ids=str)
def test_what_the_trainer_refuses_is_found_first(tmp_path: Path, keys: dict[str, Any]) -> None:
    assert has_errors(loaded(tmp_path, keys).findings)
    # straight to the library: a rule must not outlive its reason
    values = {**loaded(tmp_path, {"eval_strategy": "steps"}).recipe.values, "bf16": False, **keys}
    with pytest.raises((ValueError, TypeError)):
        trainer_arguments(values, tmp_path)


@pytest.mark.parametrize("keys", REFUSED_BY_ADAPTER, ids=str)
def test_what_peft_refuses_is_found_first(tmp_path: Path, keys: dict[str, Any]) -> None:
    assert has_errors(loaded(tmp_path, keys).findings)
    with pytest.raises((ValueError, TypeError, ImportError)):
        adapter({**loaded(tmp_path, {}).recipe.values, **keys})


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"method": "qlora"},
        {"method": "full"},
        {"method": "full", "bf16_master": "bf16"},
        {"load_best_model_at_end": True, "eval_steps": 50},
        {"load_best_model_at_end": True, "save_strategy": "epoch"},
        {"load_best_model_at_end": True, "eval_steps": 0.1, "save_steps": 0.3},
        {"packing": True, "packing_strategy": "bfd"},
        {"test_size": 0},
        {"lora_target_modules": "q_proj, v_proj", "layers_to_transform": [0, 1]},
        {"lr_scheduler_type": "constant"},
        {"activation_checkpointing": False},
    ],
    ids=str,
)
def test_what_is_found_right_is_taken(tmp_path: Path, keys: dict[str, Any]) -> None:
    good = loaded(tmp_path, keys)
    assert not has_errors(good.findings)
    values = recipe.resolve(good, num_gpus=0)
    trainer_arguments(values, tmp_path)
    if good.recipe.method != "full":
        adapter(values)
