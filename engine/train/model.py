"""Model and adapter, as the recipe asks for them; `source` knows where they come from."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from peft import LoraConfig
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from engine.errors import UsageError
from engine.text import _
from engine.train.job import Job
from engine.train.source import first_line, hub_options, load_tokenizer, locate, to_come  # noqa: F401

# LoraConfig's fields that the recipe names in TRL's way.
LORA_NAMES = {
    "r": "lora_r",
    "lora_alpha": "lora_alpha",
    "lora_dropout": "lora_dropout",
    "target_modules": "lora_target_modules",
    "target_parameters": "lora_target_parameters",
    "modules_to_save": "lora_modules_to_save",
    "task_type": "lora_task_type",
}


def device(job: Job) -> torch.device:
    """Where this rank computes."""
    on_cpu = job.get("device", "auto") == "cpu" or job.get("use_cpu", False)
    if not on_cpu and torch.cuda.is_available():
        return torch.device("cuda", job.rank.local_index)
    return torch.device("cpu")


def _dtype(job: Job) -> torch.dtype | str:
    name = str(job.get("dtype", "float32"))
    if name == "auto":
        return "auto"
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise UsageError(
            _("there is no dtype '{name}'").format(name=name),
            where="dtype",
            fix=_("use bfloat16, float16, float32 or auto"),
            kind="bad_value",
        )
    return dtype


def wants_4bit(job: Job) -> bool:
    """Whether the base is to be held in 4 bits."""
    return bool(job.get("load_in_4bit", False)) or (job.method == "qlora" and not job.get("load_in_8bit", False))


def quantization(job: Job, dtype: torch.dtype | str) -> BitsAndBytesConfig | None:
    """How the base's weights are quantized; None for method lora and full."""
    if wants_4bit(job):
        compute = job.get("bnb_4bit_compute_dtype") or (dtype if dtype != "auto" else torch.bfloat16)
        options: dict[str, Any] = {"bnb_4bit_compute_dtype": compute}
        if storage := job.get("bnb_4bit_quant_storage"):
            options["bnb_4bit_quant_storage"] = storage
        return BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type=job.get("bnb_4bit_quant_type", "nf4"),
            bnb_4bit_use_double_quant=bool(job.get("use_bnb_nested_quant", True)),
            **options,
        )
    if job.get("load_in_8bit", False):
        return BitsAndBytesConfig(load_in_8bit=True)
    return None


def load_model(job: Job, path: str) -> Any:
    """The base model, quantized when the recipe says so, on this rank's device.

    Raises:
        UsageError: the weights are missing or damaged, or the attention implementation is not installed.
    """
    dtype = _dtype(job)
    options: dict[str, Any] = {**hub_options(job), **(job.get("model_init_kwargs") or {}), "dtype": dtype}
    if attention := job.get("attn_implementation"):
        options["attn_implementation"] = attention
    config = quantization(job, dtype)
    if config is not None:
        options["quantization_config"] = config
        options["device_map"] = {"": device(job)}  # bitsandbytes quantizes where the weights end up
    try:
        model = AutoModelForCausalLM.from_pretrained(path, **options)
    except ImportError as error:
        raise UsageError(
            _("the model cannot be loaded: {reason}").format(reason=first_line(error)),
            where=path,
            fix=_("install what is missing into the training environment, or choose another attn_implementation"),
            kind="missing_package",
        ) from error
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(
            _("the model cannot be loaded: {reason}").format(reason=first_line(error)),
            where=path,
            fix=_("check that the folder holds a complete causal language model"),
            kind="bad_model",
        ) from error
    model.config.use_cache = False
    if config is not None and job.get("kbit_prepare", False):
        from peft import prepare_model_for_kbit_training

        model = prepare_model_for_kbit_training(
            model, use_gradient_checkpointing=bool(job.get("gradient_checkpointing", True))
        )
    return model


def adapter(job: Job) -> LoraConfig | None:
    """The adapter to train; None for method full."""
    if job.method == "full":
        return None
    options: dict[str, Any] = {}
    for field in dataclasses.fields(LoraConfig):
        key = LORA_NAMES.get(field.name, field.name)
        value = job.recipe.get(key)
        if value is not None and (key in LORA_NAMES.values() or value != _default(field)):
            options[field.name] = value
    targets = options.get("target_modules", "all-linear")
    if isinstance(targets, list) and targets == ["all-linear"]:
        targets = "all-linear"
    options["target_modules"] = targets
    if isinstance(options.get("task_type"), str):
        options["task_type"] = options["task_type"].upper()
    options.setdefault("task_type", "CAUSAL_LM")
    for key in ("base_model_name_or_path", "revision", "inference_mode", "peft_type", "peft_version", "auto_mapping"):
        options.pop(key, None)  # PEFT fills these in itself
    try:
        return LoraConfig(**options)
    except (TypeError, ValueError) as error:
        raise UsageError(
            _("PEFT refuses the adapter: {reason}").format(reason=first_line(error)), where="lora_r", kind="bad_value"
        ) from error


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    return field.default_factory() if field.default_factory is not dataclasses.MISSING else None
