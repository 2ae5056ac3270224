"""torchtune's YAML (configurations of 0.6): read only; the library is no longer developed."""

from __future__ import annotations

import re
from typing import Any

from engine.interop.draft import Draft
from engine.text import _

NAME = "torchtune"
OPTIMIZERS = {
    "torch.optim.AdamW": "adamw_torch",
    "torch.optim.SGD": "sgd",
    "bitsandbytes.optim.PagedAdamW8bit": "paged_adamw_8bit",
    "bitsandbytes.optim.PagedAdamW": "paged_adamw_32bit",
    "bitsandbytes.optim.AdamW8bit": "adamw_bnb_8bit",
    "torch.optim.Adafactor": "adafactor",
}
MODULES = {"output_proj": "o_proj"}
MLP = ("gate_proj", "up_proj", "down_proj")
DATASETS = {
    "alpaca_dataset": "hf://tatsu-lab/alpaca",
    "alpaca_cleaned_dataset": "hf://yahma/alpaca-cleaned",
    "slimorca_dataset": "hf://Open-Orca/SlimOrca-Dedup",
    "grammar_dataset": "hf://liweili/c4_200m",
    "samsum_dataset": "hf://Samsung/samsum",
    "stack_exchange_paired_dataset": "hf://lvwerra/stack-exchange-paired",
}
PLUMBING = (
    "metric_logger", "log_peak_memory_stats", "profiler", "device", "low_cpu_ram", "tensor_parallel_dim", "shuffle",
    "enable_activation_offloading", "save_adapter_weights_only", "log_level", "custom_sharded_layers",
    "enable_async_checkpointing", "optimizer_in_bwd",
)  # fmt: skip
DEFAULTS = {"test_size": 0, "warmup_steps": 0}
REFERENCE = re.compile(r"\$\{([\w.]+)\}")


def matches(given: dict[str, Any]) -> bool:
    """Whether a file looks like torchtune's."""
    return any(isinstance(value, dict) and "_component_" in value for value in given.values())


def read(draft: Draft) -> None:
    """Carry the keys of a torchtune file."""
    _interpolate(draft)
    loss = _component(draft, "loss")
    draft.put("task", "dpo" if "dpo" in loss[0].lower() else "sft")
    draft.put("beta", loss[1].get("beta"))
    _model(draft)
    _dataset(draft)
    _optimizer(draft)
    draft.carry(
        {
            "batch_size": "per_device_train_batch_size",
            "gradient_accumulation_steps": "gradient_accumulation_steps",
            "epochs": "num_train_epochs",
            "clip_grad_norm": "max_grad_norm",
            "seed": "seed",
            "log_every_n_steps": "logging_steps",
            "enable_activation_checkpointing": "gradient_checkpointing",
            "compile": ("torch_compile", bool),
            "output_dir": "output_dir",
            "fsdp_cpu_offload": "cpu_offload",
        }
    )
    dtype = draft.take("dtype")
    if dtype == "bf16":
        draft.put("bf16", True)
        if draft.values["method"] == "full":
            draft.put("bf16_master", "bf16")  # torchtune keeps no other copy of the weights
    elif dtype not in (None, "fp32"):
        draft.lost("dtype", _("dtype: {dtype} is not known here").format(dtype=dtype))
    if draft.take("resume_from_checkpoint"):
        draft.lost("resume_from_checkpoint", _("a run here resumes its own checkpoints only"))
    draft.ignore(PLUMBING, _("{key} changes nothing here"))
    draft.defaults({"num_train_epochs": 1, "gradient_accumulation_steps": 1, **DEFAULTS})


def _interpolate(draft: Draft) -> None:
    """Replace `${key}` and `${key.inner}` as OmegaConf would."""

    def value(match: re.Match[str]) -> str:
        found: Any = draft.given
        for part in match.group(1).split("."):
            found = found.get(part) if isinstance(found, dict) else None
        return match.group(0) if found is None or isinstance(found, dict | list) else str(found)

    def walk(node: Any) -> Any:
        if isinstance(node, str):
            for _round in range(4):  # a reference to a reference; a loop ends here
                node = REFERENCE.sub(value, node)
            return node
        if isinstance(node, list):
            return [walk(item) for item in node]
        return {key: walk(item) for key, item in node.items()} if isinstance(node, dict) else node

    for key in list(draft.given):
        draft.given[key] = walk(draft.given[key])


def _component(draft: Draft, key: str) -> tuple[str, dict[str, Any]]:
    """(last part of `_component_`, the other fields) of a part of the file."""
    value = draft.take(key)
    if not isinstance(value, dict):
        return "", {}
    return str(value.get("_component_", "")), {name: item for name, item in value.items() if name != "_component_"}


def _model(draft: Draft) -> None:
    builder, options = _component(draft, "model")
    name = builder.rpartition(".")[2]
    method = "qlora" if name.startswith("qlora") else "lora" if name.startswith("lora") else "full"
    if options.pop("quantize_base", False):
        method = "qlora"
    draft.put("method", method)
    checkpointer = draft.take("checkpointer")
    folder = checkpointer.get("checkpoint_dir") if isinstance(checkpointer, dict) else None
    if folder:
        draft.put("model_name_or_path", folder)
    else:
        detail = _("the file names no folder with the weights of {name}").format(name=name)
        draft.say("not_carried", "error", detail, _("set model_name_or_path"), "checkpointer")
    _component(draft, "tokenizer") if "tokenizer" not in draft.given else None
    _name, tokenizer = _component(draft, "tokenizer")
    draft.put("max_length", tokenizer.get("max_seq_len"))
    if method == "full":
        return
    draft.put("lora_r", options.pop("lora_rank", 8))
    draft.put("lora_alpha", options.pop("lora_alpha", 16))
    draft.put("lora_dropout", options.pop("lora_dropout", 0.0))
    if options.pop("use_dora", False):
        draft.put("use_dora", True)
    attention = options.pop("lora_attn_modules", ["q_proj", "v_proj"])
    if not isinstance(attention, list):
        draft.say(
            "not_carried",
            "error",
            _("lora_attn_modules is no list"),
            _("set lora_target_modules"),
            "model.lora_attn_modules",
        )
        attention = []
    targets = [MODULES.get(str(module), str(module)) for module in attention]
    targets += MLP if options.pop("apply_lora_to_mlp", False) else ()
    targets += ["lm_head"] if options.pop("apply_lora_to_output", False) else []
    draft.put("lora_target_modules", targets)
    for key, value in options.items():
        detail = _("model: {key}: {value} is not carried").format(key=key, value=value)
        draft.say("not_carried", "warning", detail, _("look whether the run needs it"), f"model.{key}")


def _dataset(draft: Draft) -> None:
    builder, options = _component(draft, "dataset")
    name = builder.rpartition(".")[2]
    source, files = options.pop("source", None), options.pop("data_files", None)
    file = files[0] if isinstance(files, list) and files else files
    if isinstance(file, str) and file:
        draft.put("dataset_path", file)
    elif source and source not in ("json", "csv", "text", "parquet"):
        draft.put("dataset_path", f"hf://{source}")
    elif name in DATASETS:
        draft.put("dataset_path", DATASETS[name])
    else:
        detail = _("the data of {name} is not known here").format(name=name or "dataset")
        draft.say("not_carried", "error", detail, _("set dataset_path"), "dataset")
    draft.put("packing", options.pop("packed", None))
    if (inputs := options.pop("train_on_input", None)) is not None:
        draft.put("assistant_only_loss", not inputs)
    for key, value in options.items():
        if value not in (None, "train"):
            detail = _("dataset: {key}: {value} is not carried").format(key=key, value=value)
            draft.say(
                "not_carried", "warning", detail, _("`ftui data check FILE` shows how the file is read"), "dataset"
            )


def _optimizer(draft: Draft) -> None:
    name, options = _component(draft, "optimizer")
    if name in OPTIMIZERS:
        fused = name == "torch.optim.AdamW" and options.pop("fused", False)
        draft.put("optim", "adamw_torch_fused" if fused else OPTIMIZERS[name])
    elif name:
        detail = _("optimizer {name} is not known here").format(name=name)
        draft.say("not_carried", "warning", detail, _("choose `optim`: AdamW is the default"), "optimizer")
    if (rate := options.pop("lr", None)) is not None:
        try:
            draft.put("learning_rate", float(rate))
        except (TypeError, ValueError, OverflowError):
            detail = _("optimizer: lr: {value} is no number").format(value=str(rate)[:60])
            draft.say("not_carried", "error", detail, _("set learning_rate"), "optimizer")
    draft.put("weight_decay", options.pop("weight_decay", None))
    betas = options.pop("betas", None)
    if isinstance(betas, list) and len(betas) == 2:
        draft.put("adam_beta1", betas[0])
        draft.put("adam_beta2", betas[1])
    scheduler, schedule = _component(draft, "lr_scheduler")
    draft.put("lr_scheduler_type", "cosine" if "cosine" in scheduler else "constant" if not scheduler else None)
    draft.put("warmup_steps", schedule.get("num_warmup_steps"))
    limit = draft.take("max_steps_per_epoch")
    if limit is not None:
        detail = _("max_steps_per_epoch: {limit} is not carried").format(limit=limit)
        draft.lost("max_steps_per_epoch", detail, _("max_steps ends the whole run after so many steps"))
