"""Axolotl's YAML (keys of its 0.19 schema): read and written."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from engine.interop.draft import Draft, Table, dataset, sharding
from engine.text import _

NAME = "axolotl"
FILES = (".json", ".jsonl", ".csv", ".parquet", ".txt", ".gz", ".zst")

SAME = (
    "lora_r", "lora_alpha", "lora_dropout", "lora_target_parameters", "load_in_8bit", "max_steps", "weight_decay",
    "adam_epsilon", "adam_beta1", "adam_beta2", "max_grad_norm", "seed", "save_total_limit", "logging_steps",
    "gradient_accumulation_steps", "gradient_checkpointing_kwargs", "activation_offloading", "neftune_noise_alpha",
    "metric_for_best_model", "greater_is_better", "load_best_model_at_end", "warmup_steps", "warmup_ratio",
    "eval_steps", "save_steps", "eval_strategy", "save_strategy", "output_dir", "trust_remote_code",
    "dataloader_num_workers", "dataloader_pin_memory", "dataloader_prefetch_factor", "dataloader_drop_last",
    "ddp_timeout", "ddp_bucket_cap_mb", "ddp_find_unused_parameters", "precompute_ref_log_probs", "hub_model_id",
    "resume_from_checkpoint", "torch_empty_cache_steps", "attn_implementation", "lr_scheduler_kwargs",
)  # fmt: skip
TABLE: Table = {
    **{name: name for name in SAME},
    "base_model": "model_name_or_path",
    "revision_of_model": "model_revision",
    "lora_modules_to_save": "lora_modules_to_save",
    "lora_fan_in_fan_out": "fan_in_fan_out",
    "lora_rank_pattern": "rank_pattern",
    "lora_alpha_pattern": "alpha_pattern",
    "peft_layers_to_transform": "layers_to_transform",
    "peft_layers_pattern": "layers_pattern",
    "peft_use_dora": "use_dora",
    "peft_use_rslora": "use_rslora",
    "peft_init_lora_weights": "init_lora_weights",
    "sequence_len": "max_length",
    "sample_packing": "packing",
    "eval_sample_packing": "eval_packing",
    "micro_batch_size": "per_device_train_batch_size",
    "eval_batch_size": "per_device_eval_batch_size",
    "num_epochs": "num_train_epochs",
    "learning_rate": ("learning_rate", float),
    "lr_scheduler": "lr_scheduler_type",
    "val_set_size": "test_size",
    "dataset_num_proc": "dataset_num_proc",
    "dataset_processes": "dataset_num_proc",
    "group_by_length": ("train_sampling_strategy", lambda on: "group_by_length" if on else None),
    "train_on_inputs": ("assistant_only_loss", lambda on: not on),
    "rl_beta": "beta",
    "dpo_loss_type": "loss_type",
    "dpo_label_smoothing": "label_smoothing",
    "liger_kernel": "use_liger_kernel",
    "chat_template_jinja": "chat_template_path",
}
# What the recipe's result does not depend on.
PLUMBING = (
    "dataset_prepared_path", "strict", "plugins", "low_cpu_mem_usage", "is_llama_derived_model", "pad_to_sequence_len",
    "is_mistral_derived_model", "is_qwen_derived_model", "is_falcon_derived_model", "tokenizer_type", "model_type",
    "sample_packing_eff_est", "sample_packing_group_size", "sample_packing_bin_size", "save_safetensors", "tf32",
    "lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel", "lora_embedding_kernel", "flash_attn_cross_entropy",
    "hf_use_auth_token", "gc_steps", "debug", "tokenizer_use_fast", "dataset_keep_in_memory", "xformers_attention",
    "chunked_cross_entropy", "dataset_exact_deduplication", "include_tokens_per_second", "include_tkps",
    "shuffle_merged_datasets", "dataset_shard_num", "hub_strategy", "local_rank", "ddp", "cls_model_config",
)  # fmt: skip
ATTENTION = {
    "flash_attention": "flash_attention_2",
    "sdp_attention": "sdpa",
    "eager_attention": "eager",
    "flex_attention": "flex_attention",
}
# Where axolotl's own default is not ours; with adapters or without.
DEFAULTS = {
    "per_device_train_batch_size": 1,
    "gradient_accumulation_steps": 1,
    "num_train_epochs": 1,
    "max_length": 512,
    "test_size": 0,
    "gradient_checkpointing": False,
    "packing": False,
}
ADAPTER_DEFAULTS = {"lora_dropout": 0.0}


def matches(given: dict[str, Any]) -> bool:
    """Whether a file looks like axolotl's."""
    return "base_model" in given


def read(draft: Draft) -> None:
    """Carry the keys of an axolotl file."""
    _task(draft)
    method = _method(draft)
    _data(draft)
    draft.carry(TABLE)
    _targets(draft)
    _precision(draft)
    _attention(draft)
    _schedule(draft)
    sharding(draft, "deepspeed")
    _fsdp(draft)
    _liger(draft)
    if "optimizer" in draft.given:
        optimizer(draft, "optimizer")
    draft.ignore(PLUMBING, _("{key} changes nothing here"))
    if any(draft.given.get(key) for key in ("wandb_project", "mlflow_experiment_name", "use_tensorboard")):
        names = ", ".join(_trackers(draft))
        detail = _("what goes to {names} is not carried: runs report to their own journal here").format(names=names)
        draft.say("not_carried", "warning", detail, _("`ftui watch RUN` shows it live"), "wandb_project")
    draft.defaults({**DEFAULTS, **(ADAPTER_DEFAULTS if method != "full" else {})})


def _task(draft: Draft) -> None:
    kind = str(draft.take("rl") or "sft")
    if draft.given.get("pretraining_dataset"):
        kind = "pretrain"
    if kind == "ipo":
        draft.put("loss_type", ["ipo"])
        kind = "dpo"
    if kind not in ("sft", "dpo", "pretrain"):
        detail = _("rl: {kind} cannot be trained here").format(kind=kind)
        draft.lost("rl", detail, _("stay with the other tool for this run"), "error")
        return
    draft.put("task", kind)


def _method(draft: Draft) -> str:
    adapter = draft.take("adapter")
    four_bit = draft.take("load_in_4bit")
    if adapter in (None, "", False):
        method = "full"
    elif adapter == "qlora" or (adapter == "lora" and four_bit):
        method = "qlora"
    elif adapter == "lora":
        method = "lora"
    else:
        draft.lost("adapter", _("adapter: {kind} cannot be trained here").format(kind=adapter), level="error")
        method = "lora"
    draft.put("method", method)
    if draft.given.get("lora_model_dir"):
        detail = _("training goes on from no other adapter here")
        draft.lost("lora_model_dir", detail, _("merge that adapter into the base first"), "error")
    return method


def _data(draft: Draft) -> None:
    for key, ours in (
        ("pretraining_dataset", "dataset_path"),
        ("datasets", "dataset_path"),
        ("test_datasets", "eval_dataset_path"),
    ):
        found = []
        for listed in draft.items(key):
            entry = {"path": listed} if isinstance(listed, str) else listed
            found += _source(draft, key, entry) if isinstance(entry, dict) else []
        dataset(draft, key, ours, found)
    template = draft.take("chat_template")
    if template not in (None, "tokenizer_default", "jinja"):
        detail = _("chat_template: {name}: the model's own template is used").format(name=template)
        draft.lost("chat_template", detail, _("give a template with chat_template_path if that one is needed"))


def _source(draft: Draft, key: str, entry: dict[str, Any]) -> list[str]:
    path, files = entry.get("path"), entry.get("data_files")
    listed = [files] if isinstance(files, str) else files if isinstance(files, list) else []
    for name in ("name", "split", "revision", "shards", "roles_to_train", "train_on_eos"):
        if (value := entry.get(name)) not in (None, "train", ["assistant"], "turn"):
            detail = _("datasets: {name}: {value} is not carried").format(name=name, value=value)
            draft.say("not_carried", "warning", detail, _("look whether the run needs it"), key)
    mapped = {
        name: value
        for name, value in entry.items()
        if (name.startswith("field") or name in ("message_property_mappings", "roles"))
        and value not in (None, "messages", "conversations", {"role": "role", "content": "content"})
    }
    if mapped:
        detail = _("datasets: {names}: columns are recognized by their names here").format(names=", ".join(mapped))
        draft.say("not_carried", "warning", detail, _("`ftui data check FILE` shows how the file is read"), key)
    if listed:
        return [str(file) for file in listed]
    if not isinstance(path, str):
        return []
    local = path.startswith((".", "/", "~", "$")) or path.lower().endswith(FILES) or os.path.exists(draft.folder / path)  # noqa: PTH110 (Path raises for a name that is too long)
    return [path if local or "://" in path else f"hf://{path}"]


def _targets(draft: Draft) -> None:
    linear, named = draft.take("lora_target_linear"), draft.take("lora_target_modules")
    if linear:
        draft.put("lora_target_modules", "all-linear")
    elif named:
        draft.put("lora_target_modules", named)


def _precision(draft: Draft) -> None:
    for key, ours in (("bf16", "bf16"), ("bfloat16", "bf16"), ("fp16", "fp16"), ("float16", "fp16"), ("fp8", "fp8")):
        if (value := draft.take(key)) in (True, "true") and ours not in draft.values:
            draft.put(ours, value is True or value == "true")
    checkpointing = draft.take("gradient_checkpointing")
    if checkpointing is not None:
        draft.put("gradient_checkpointing", bool(checkpointing))
        if isinstance(checkpointing, str):
            draft.put("activation_offloading", True)


def _attention(draft: Draft) -> None:
    for key, name in ATTENTION.items():
        if draft.take(key) is True:
            draft.put("attn_implementation", name)


def _schedule(draft: Draft) -> None:
    epochs = draft.values.get("num_train_epochs")
    epochs = epochs if isinstance(epochs, int | float) and epochs > 0 else 1
    for key, ours in (("evals_per_epoch", "eval_steps"), ("saves_per_epoch", "save_steps")):
        if times := draft.number(key):
            draft.put(ours, round(1 / (times * epochs), 6))
    if (floor := draft.take("cosine_min_lr_ratio")) is not None:
        draft.values["lr_scheduler_type"] = "cosine_with_min_lr"
        draft.values["lr_scheduler_kwargs"] = {"min_lr_rate": floor}


def _fsdp(draft: Draft) -> None:
    config = draft.take("fsdp_config") or {}
    flags = draft.take("fsdp") or []
    draft.take("fsdp_version")
    if not config and not flags:
        return
    draft.put("sharding", "fsdp2")
    if isinstance(config, dict) and (config.get("offload_params") or config.get("fsdp_offload_params")):
        draft.put("cpu_offload", True)
    detail = _("FSDP became `sharding: fsdp2`; what it wraps and how it saves is decided here")
    draft.say("carried_partly", "note", detail, "", "fsdp_config" if config else "fsdp")


def _liger(draft: Draft) -> None:
    keys = [key for key in draft.given if key.startswith("liger_")]
    if any(draft.take(key) for key in keys):
        draft.put("use_liger_kernel", True)


def _trackers(draft: Draft) -> list[str]:
    found = []
    for prefix, name in (("wandb_", "wandb"), ("mlflow_", "mlflow"), ("use_tensorboard", "tensorboard")):
        keys = [key for key in draft.given if key.startswith(prefix)]
        if any(draft.take(key) for key in keys):
            found.append(name)
    return found


def optimizer(draft: Draft, key: str) -> None:
    """Carry an optimizer by its name in transformers, where it is one."""
    from engine.recipe.keys import table

    name = str(draft.take(key))
    if name in table()["optim"].choices:
        draft.put("optim", name)
    else:
        detail = _("optimizer {name} is not known here").format(name=name)
        draft.lost(key, detail, _("choose `optim`: AdamW is the default"))


# Ours -> axolotl's, for the keys that say the same thing.
BACK = {
    **{name: name for name in SAME},
    **{target: key for key, target in TABLE.items() if isinstance(target, str)},
    "learning_rate": "learning_rate",
    "optim": "optimizer",
    "bf16": "bf16",
    "fp16": "fp16",
    "gradient_checkpointing": "gradient_checkpointing",
}


def write(values: dict[str, Any], given: set[str]) -> tuple[dict[str, Any], set[str]]:
    """An axolotl configuration of a resolved recipe.

    Args:
        values: the resolved recipe (every key with its value).
        given: the keys that the recipe itself names.

    Returns:
        The configuration, and the given keys that it does not carry.
    """
    wanted = given | {
        "max_length", "per_device_train_batch_size", "gradient_accumulation_steps", "num_train_epochs", "optim",
        "learning_rate", "lr_scheduler_type", "warmup_steps", "weight_decay", "seed", "gradient_checkpointing",
        "logging_steps", "save_total_limit", "output_dir", "packing", "bf16", "fp16", "test_size",
    }  # fmt: skip
    config: dict[str, Any] = {"base_model": values["model_name_or_path"]}
    if values["method"] != "full":
        config["adapter"] = values["method"]
        wanted |= {"lora_r", "lora_alpha", "lora_dropout", "use_rslora", "use_dora"}
        config["load_in_4bit"] = values["method"] == "qlora"
        targets = values["lora_target_modules"]
        config.update({"lora_target_linear": True} if targets == "all-linear" else {"lora_target_modules": targets})
    if values["task"] == "dpo":
        config["rl"] = "dpo"
    config["datasets"] = [_entry(values["dataset_path"], values["task"])]
    if values.get("eval_dataset_path"):
        config["test_datasets"] = [_entry(values["eval_dataset_path"], values["task"])]
        wanted.discard("test_size")
    config["train_on_inputs"] = values.get("assistant_only_loss") is False
    for ours, theirs in BACK.items():
        if ours in wanted and values.get(ours) is not None:
            config.setdefault(theirs, values[ours])
    for steps, strategy in (("eval_steps", "eval_strategy"), ("save_steps", "save_strategy")):
        if values.get(strategy) == "steps":
            config[steps] = values[steps]
    _steps(config, values)
    config.setdefault("output_dir", "./out")
    if values.get("sharding") == "fsdp2":
        config.update(fsdp_version=2, fsdp_config={"offload_params": bool(values.get("cpu_offload"))})
    carried = set(BACK) | {
        "model_name_or_path", "method", "task", "dataset_path", "eval_dataset_path", "lora_target_modules", "optim",
        "global_batch_size", "test_size", "eval_steps", "save_steps", "sharding", "cpu_offload", "use_peft",
        "load_in_4bit", "assistant_only_loss",
    }  # fmt: skip
    if values.get("sharding") in ("zero2", "zero3", "pipeline"):
        carried.discard("sharding")
    return config, given - carried


def _steps(config: dict[str, Any], values: dict[str, Any]) -> None:
    """axolotl takes shares for eval_steps and save_steps, but only whole warm-up steps."""
    warmup = config.pop("warmup_steps", None)
    if warmup is not None and warmup < 1:
        config["warmup_ratio"] = warmup
    elif warmup is not None:
        config["warmup_steps"] = int(warmup)
    if isinstance(logging := values.get("logging_steps"), float) and logging < 1:
        config["logging_steps"] = 10


def _entry(path: str, task: str) -> dict[str, Any]:
    if path.startswith("hf://"):
        entry: dict[str, Any] = {"path": path.removeprefix("hf://")}
    else:
        suffix = Path(path).suffix.lower().lstrip(".")
        entry = {"path": path, "ds_type": suffix if suffix in ("csv", "parquet") else "json"}
    if task == "pretrain":
        entry["type"] = "completion"
    elif task == "dpo":
        entry["type"] = "chat_template.default"
    else:
        entry.update(type="chat_template", field_messages="messages")
    return entry
