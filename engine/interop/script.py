"""A plain TRL script of a recipe, which runs without this program, and the accelerate configuration beside it."""

from __future__ import annotations

import json
from typing import Any

from engine.text import _

CONFIG = {"sft": "SFTConfig", "pretrain": "SFTConfig", "dpo": "DPOConfig"}
TRAINER = {"sft": "SFTTrainer", "pretrain": "SFTTrainer", "dpo": "DPOTrainer"}
# Decided by the product or said in another way in the script.
OURS = frozenset((
    "output_dir", "report_to", "dataset_path", "eval_dataset_path", "model_name_or_path", "model_revision", "dtype",
    "attn_implementation", "trust_remote_code", "load_in_4bit", "load_in_8bit", "use_peft", "logging_nan_inf_filter",
    "resume_from_checkpoint", "use_cpu", "deepspeed", "fsdp", "fsdp_config",
))  # fmt: skip
LORA = {
    "lora_r": "r", "lora_alpha": "lora_alpha", "lora_dropout": "lora_dropout", "use_rslora": "use_rslora",
    "lora_target_modules": "target_modules", "lora_target_parameters": "target_parameters", "use_dora": "use_dora",
    "lora_modules_to_save": "modules_to_save",
}  # fmt: skip

SCRIPT = '''"""{title}

Run it with:  accelerate launch --config_file accelerate.yaml train.py
"""

import torch
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer{bnb_import}
{peft_import}from trl import {config}, {trainer}

MODEL = {model}
REVISION = {revision}


def data():
    """The rows, and those that are held out."""
{data}


def model():
    """The base model."""
    return AutoModelForCausalLM.from_pretrained(
        MODEL,
        revision=REVISION,
        dtype=torch.{dtype},
        attn_implementation={attention},
        trust_remote_code={remote!r},{quantization}
    )


def main():
    """Train and save."""
    train, held_out = data()
    tokenizer = AutoTokenizer.from_pretrained(MODEL, revision=REVISION, trust_remote_code={remote!r})
    trainer = {trainer}(
        model=model(),
        args={config}(
{arguments}
        ),
        train_dataset=train,
        eval_dataset=held_out,
        processing_class=tokenizer,{peft}
    )
    trainer.train()
    trainer.save_model({output})


if __name__ == "__main__":
    main()
'''


def script(values: dict[str, Any], defaults: dict[str, Any], title: str) -> str:
    """The text of train.py.

    Args:
        values: the resolved recipe.
        defaults: the library's own default of each key of the trainer's configuration: only what differs is written.
        title: the first line of the script.
    """
    task = values["task"]
    arguments = {
        name: values[name]
        for name in defaults
        if name not in OURS and name in values and values[name] is not None and values[name] != defaults[name]
    }
    output = values.get("output_dir") or "out"
    if task == "sft" and values.get("assistant_only_loss") is None:
        arguments["assistant_only_loss"] = True  # what this program does where the template allows it
    arguments = {"output_dir": output, **arguments, "report_to": values.get("report_to") or "none"}
    if values.get("deepspeed"):
        arguments["deepspeed"] = values["deepspeed"]
    peft = values["method"] != "full"
    return SCRIPT.format(
        title=title.replace('"""', "'''"),
        bnb_import=", BitsAndBytesConfig" if _quantized(values) else "",
        peft_import="from peft import LoraConfig\n" if peft else "",
        config=CONFIG[task],
        trainer=TRAINER[task],
        model=_shown(values["model_name_or_path"]),
        revision=_shown(values.get("model_revision")),
        dtype=values.get("dtype") or "float32",
        attention=_shown(values.get("attn_implementation")),
        remote=bool(values.get("trust_remote_code")),
        quantization=_quantization(values),
        data=_data(values),
        arguments="\n".join(f"            {name}={_shown(value)}," for name, value in arguments.items()),
        peft=_peft(values) if peft else "",
        output=_shown(output),
    )


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, list):
        return "[" + ", ".join(_shown(item) for item in value) + "]"
    return repr(value)


def _quantized(values: dict[str, Any]) -> bool:
    return bool(values.get("load_in_4bit") or values.get("load_in_8bit"))


def _quantization(values: dict[str, Any]) -> str:
    if values.get("load_in_4bit"):
        options: dict[str, Any] = {
            "load_in_4bit": True,
            "bnb_4bit_quant_type": values["bnb_4bit_quant_type"],
            "bnb_4bit_use_double_quant": bool(values["use_bnb_nested_quant"]),
            "bnb_4bit_compute_dtype": values["bnb_4bit_compute_dtype"],
        }
    elif values.get("load_in_8bit"):
        options = {"load_in_8bit": True}
    else:
        return ""
    lines = "".join(f"            {name}={_shown(value)},\n" for name, value in options.items())
    return f"\n        quantization_config=BitsAndBytesConfig(\n{lines}        ),"


def _peft(values: dict[str, Any]) -> str:
    lines = [f"            {theirs}={_shown(values[ours])}," for ours, theirs in LORA.items() if values.get(ours)]
    body = "\n".join([*lines, '            task_type="CAUSAL_LM",'])
    return f"\n        peft_config=LoraConfig(\n{body}\n        ),"


def _data(values: dict[str, Any]) -> str:
    train = f"    rows = {_load(values['dataset_path'])}"
    if values.get("eval_dataset_path"):
        return f"{train}\n    return rows, {_load(values['eval_dataset_path'])}"
    if not values.get("test_size"):
        return f"{train}\n    return rows, None"
    split = f"rows.train_test_split(test_size={values['test_size']!r}, seed={values['seed']!r})"
    return f'{train}\n    split = {split}\n    return split["train"], split["test"]'


def _load(path: str) -> str:
    if path.startswith("hf://"):
        return f'load_dataset({_shown(path[5:])}, split="train")'
    kind = "csv" if path.endswith(".csv") else "parquet" if path.endswith(".parquet") else "json"
    return f'load_dataset("{kind}", data_files={_shown(path)}, split="train")'


def accelerate(values: dict[str, Any]) -> dict[str, Any]:
    """The accelerate configuration of a recipe's sharding on its GPUs."""
    gpus = int(values.get("num_gpus") or 0)
    sharding = values.get("sharding") or "none"
    cpu = bool(values.get("use_cpu"))
    kind = {"fsdp2": "FSDP", "zero2": "DEEPSPEED", "zero3": "DEEPSPEED"}.get(sharding)
    config: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": kind or ("MULTI_GPU" if gpus > 1 else "NO"),
        "mixed_precision": "bf16" if values.get("bf16") else "fp16" if values.get("fp16") else "no",
        "num_machines": int(values.get("num_machines") or 1),
        "num_processes": max(1, gpus) * int(values.get("num_machines") or 1),
        "use_cpu": cpu,
    }
    if kind == "FSDP":
        config["fsdp_config"] = {
            "fsdp_version": 2,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_offload_params": bool(values.get("cpu_offload")),
            "fsdp_reshard_after_forward": True,
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
            "fsdp_cpu_ram_efficient_loading": True,
        }
    elif kind == "DEEPSPEED":
        device = "cpu" if values.get("cpu_offload") else "none"
        config["deepspeed_config"] = {
            "zero_stage": int(sharding[-1]),
            "offload_optimizer_device": device,
            "offload_param_device": device if sharding == "zero3" else "none",
            "gradient_accumulation_steps": values["gradient_accumulation_steps"],
            "gradient_clipping": values.get("max_grad_norm") or 1.0,
            "zero3_init_flag": sharding == "zero3",
        }
    return config


def title(name: str) -> str:
    """The first line of the script."""
    return _("{name}: a plain TRL script of this recipe").format(name=name)
