"""The LoRA adapter that a recipe asks for."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import torch
from peft import LoraConfig

from engine.errors import UsageError
from engine.recipe.model_rules import EXPERT_NAMES
from engine.text import _
from engine.train.job import Job
from engine.train.source import first_line

ALL_LINEAR = "all-linear"
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


def config(job: Job) -> LoraConfig | None:
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


def check(base: Any, adapter: LoraConfig) -> None:
    """See that every target is a module of the model: PEFT is content when one of them is.

    Raises:
        UsageError: one matches nothing.
    """
    names = [name for name, _module in base.named_modules()]
    targets = adapter.target_modules
    if isinstance(targets, str):
        missing = [] if targets == ALL_LINEAR or any(re.fullmatch(targets, name) for name in names) else [targets]
    else:
        missing = sorted(t for t in targets or () if not any(n == t or n.endswith(f".{t}") for n in names))
        if any(".experts." in name for name, _parameter in base.named_parameters()):  # fused: PEFT finds them itself
            missing = [name for name in missing if name not in EXPERT_NAMES]
    if missing:
        leaves = sorted({n.rpartition(".")[2] for n, m in base.named_modules() if isinstance(m, torch.nn.Linear)})
        raise UsageError(
            _("no module of the model is called {names}").format(names=", ".join(missing[:5])),
            where="lora_target_modules",
            fix=_("its linear layers: {names}; or use all-linear").format(names=", ".join(leaves[:20])),
            kind="no_such_module",
        )


def keep_precision(job: Job, model: Any) -> None:
    """Give adapters on a quantized base back the precision that the recipe asks for.

    TRL turns them into bfloat16, which is right for a recipe in bfloat16; one that says float32 means it.
    """
    if job.get("dtype") != "float32":
        return
    for parameter in model.parameters():
        if parameter.requires_grad and parameter.dtype == torch.bfloat16:
            parameter.data = parameter.data.float()


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    return field.default_factory() if field.default_factory is not dataclasses.MISSING else None
