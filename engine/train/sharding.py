"""How a recipe's `sharding` is told to the libraries. Light: no torch.

The same values go to the trainer and into the run folder's `launch/`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ZERO = ("zero2", "zero3")
SHARDED = ("fsdp2", *ZERO)


def kind(recipe: Mapping[str, Any]) -> str:
    """The sharding of a resolved recipe."""
    return str(recipe.get("sharding") or "auto")


def quantized(recipe: Mapping[str, Any]) -> bool:
    """Whether the base is held in 4 or 8 bits."""
    return bool(recipe.get("load_in_4bit") or recipe.get("load_in_8bit") or recipe.get("method") == "qlora")


def loads_once(recipe: Mapping[str, Any]) -> bool:
    """Whether under FSDP2 one rank a machine reads the weights for all, so that host memory holds them once.

    Not a quantized base, whose parts cannot be sent around, not a preference run, whose reference is hashed on every
    rank, and not random weights, which each rank draws by itself.
    """
    return not quantized(recipe) and recipe.get("task", "sft") != "dpo" and not recipe.get("random_init")


def trainer_options(recipe: Mapping[str, Any], world_size: int) -> dict[str, Any]:
    """The fields of TrainingArguments that make a recipe's sharding."""
    wanted = kind(recipe)
    if world_size == 1 and wanted != "zero2":  # with one rank there is nothing to shard; ZeRO may offload
        return {}
    if wanted == "fsdp2":
        # Without `sync_each_batch` FSDP2 keeps whole gradients through an accumulation: what it is to avoid.
        return {
            "fsdp": True,
            "fsdp_config": fsdp_config(recipe),
            "accelerator_config": {"gradient_accumulation_kwargs": {"sync_each_batch": True}},
        }
    if wanted in ZERO:
        return {"deepspeed": deepspeed_config(recipe)}
    return {}


def environment(recipe: Mapping[str, Any]) -> dict[str, str]:
    """What accelerate looks for before it makes the process group: state in host memory needs gloo beside NCCL."""
    if kind(recipe) == "fsdp2" and recipe.get("cpu_offload"):
        return {"ACCELERATE_USE_FSDP": "true", "FSDP_OFFLOAD_PARAMS": "true"}
    return {}


def fsdp_config(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """FSDP2 as transformers takes it; what the recipe's own fsdp_config says goes before."""
    given = recipe.get("fsdp_config")
    own = {key.removeprefix("fsdp_"): value for key, value in given.items()} if isinstance(given, dict) else {}
    return {
        "reshard_after_forward": True,
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "cpu_ram_efficient_loading": loads_once(recipe),
        "state_dict_type": "SHARDED_STATE_DICT",
        "cpu_offload": bool(recipe.get("cpu_offload")),
        **own,
        "version": 2,
    }


def deepspeed_config(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """ZeRO as DeepSpeed takes it; the trainer fills in what is `auto`."""
    given = recipe.get("deepspeed")
    if isinstance(given, dict):
        return dict(given)
    stage = 3 if kind(recipe) == "zero3" else 2
    zero: dict[str, Any] = {"stage": stage, "overlap_comm": True, "contiguous_gradients": True}
    if stage == 3:
        zero["stage3_gather_16bit_weights_on_model_save"] = True
        zero["stage3_prefetch_bucket_size"] = "auto"
        zero["stage3_param_persistence_threshold"] = "auto"
    zero["reduce_bucket_size"] = "auto" if stage == 3 else 200_000_000
    config: dict[str, Any] = {
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,  # the trainer's own optimizers, 8-bit ones among them
        "bf16": {"enabled": "auto"},
        "fp16": {"enabled": "auto"},
        "gradient_clipping": "auto",
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "steps_per_print": 1_000_000_000,  # the journal has the steps
    }
    if recipe.get("cpu_offload"):
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
        if stage == 3:
            zero["offload_param"] = {"device": "cpu", "pin_memory": True}
        config["optimizer"] = {  # DeepSpeed's own Adam for the CPU: torch's would take many times as long there
            "type": "AdamW",
            "params": dict.fromkeys(("lr", "betas", "eps", "weight_decay"), "auto"),
        }
    return config


def mixed_precision(recipe: Mapping[str, Any]) -> str:
    """What accelerate calls the precision of a step."""
    return "bf16" if recipe.get("bf16") else "fp16" if recipe.get("fp16") else "no"


def pure_bf16(recipe: Mapping[str, Any]) -> bool:
    """Whether every weight is trained in bfloat16 alone.

    Under FSDP2 the step is then no mixed one: accelerate would turn the weights into float32 for it.
    """
    return recipe.get("method") == "full" and recipe.get("dtype") == "bfloat16" and kind(recipe) == "fsdp2"
