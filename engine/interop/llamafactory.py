"""LLaMA-Factory's YAML (keys of its 0.9 arguments): read and written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from engine.files import read_json
from engine.interop.draft import Draft, Table, dataset, sharding
from engine.text import _

NAME = "llamafactory"
STAGES = {"sft": "sft", "pt": "pretrain", "dpo": "dpo"}
ATTENTION = {"fa2": "flash_attention_2", "fa3": "flash_attention_3", "sdpa": "sdpa", "disabled": "eager"}
DATASET = "train"

TABLE: Table = {
    "model_name_or_path": "model_name_or_path",
    "model_revision": "model_revision",
    "lora_rank": "lora_r",
    "lora_alpha": "lora_alpha",
    "lora_dropout": "lora_dropout",
    "use_rslora": "use_rslora",
    "use_dora": "use_dora",
    "cutoff_len": "max_length",
    "val_size": "test_size",
    "preprocessing_num_workers": "dataset_num_proc",
    "enable_liger_kernel": "use_liger_kernel",
    "pref_beta": "beta",
    "pref_loss": ("loss_type", lambda name: [name]),
    "dpo_label_smoothing": "label_smoothing",
    "disable_gradient_checkpointing": ("gradient_checkpointing", lambda off: not off),
    "double_quantization": "use_bnb_nested_quant",
    "quantization_type": "bnb_4bit_quant_type",
    "fp8": "fp8",
    "train_on_prompt": ("assistant_only_loss", lambda on: not on),
    "pure_bf16": ("bf16_master", lambda on: "bf16" if on else None),
}
PLUMBING = (
    "do_train", "do_eval", "do_predict", "plot_loss", "overwrite_cache", "overwrite_output_dir", "dataset_dir",
    "ray_run_name", "ray_num_workers", "use_fast_tokenizer", "low_cpu_mem_usage", "print_param_status", "cache_dir",
    "include_num_input_tokens_seen", "preprocessing_batch_size", "data_shared_file_system", "media_dir",
    "quantization_method", "save_only_model", "resources_per_worker", "placement_strategy", "ray_storage_path",
)  # fmt: skip
DEFAULTS = {
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "learning_rate": 5e-5,
    "lr_scheduler_type": "linear",
    "warmup_steps": 0,
    "num_train_epochs": 3,
    "test_size": 0,
    "max_length": 2048,
}
ADAPTER_DEFAULTS = {"lora_r": 8, "lora_dropout": 0.0}


def matches(given: dict[str, Any]) -> bool:
    """Whether a file looks like LLaMA-Factory's."""
    return "finetuning_type" in given or "cutoff_len" in given or ("stage" in given and "template" in given)


def read(draft: Draft) -> None:
    """Carry the keys of a LLaMA-Factory file."""
    from engine.recipe.keys import table

    stage = str(draft.take("stage") or "sft")
    if stage in STAGES:
        draft.put("task", STAGES[stage])
    else:
        draft.lost("stage", _("stage: {stage} cannot be trained here").format(stage=stage), level="error")
    method = _method(draft)
    _data(draft)
    draft.carry(TABLE)
    _targets(draft)
    if draft.take("packing") or draft.given.get("neat_packing"):
        draft.put("packing", True)
    draft.take("neat_packing")
    attention = draft.take("flash_attn")
    if attention not in (None, "auto"):
        draft.put("attn_implementation", ATTENTION.get(str(attention), str(attention)))
    if draft.take("use_unsloth"):
        draft.put("backend", "unsloth")
    sharding(draft, "deepspeed")
    draft.ignore(PLUMBING, _("{key} changes nothing here"))
    keys = table(str(draft.values.get("task", "sft")))
    for name in list(draft.given):  # the rest are transformers' own arguments
        if name in keys and name not in draft.values and draft.given[name] is not None:
            draft.put(name, draft.take(name))
    defaults = {**DEFAULTS, **(ADAPTER_DEFAULTS if method != "full" else {})}
    if method != "full" and "lora_alpha" not in draft.values:
        rank = draft.values.get("lora_r")
        defaults["lora_alpha"] = 2 * (rank if isinstance(rank, int) else int(ADAPTER_DEFAULTS["lora_r"]))
    draft.defaults(defaults)


def _method(draft: Draft) -> str:
    kind, bits = draft.take("finetuning_type", "lora"), draft.take("quantization_bit")
    method = "full" if kind == "full" else "lora"
    if kind not in ("full", "lora"):
        draft.lost(
            "finetuning_type", _("finetuning_type: {kind} cannot be trained here").format(kind=kind), level="error"
        )
    if bits == 4:
        method = "qlora"
    elif bits == 8:
        draft.put("load_in_8bit", True)
    elif bits:
        draft.lost("quantization_bit", _("{bits}-bit quantization is not known here").format(bits=bits), level="error")
    if draft.given.get("adapter_name_or_path"):
        detail = _("training goes on from no other adapter here")
        draft.lost("adapter_name_or_path", detail, _("merge that adapter into the base first"), "error")
    draft.put("method", method)
    return method


def _data(draft: Draft) -> None:
    folder = draft.folder / str(draft.given.get("dataset_dir") or "data")
    info = read_json(folder / "dataset_info.json")
    for key, ours in (("dataset", "dataset_path"), ("eval_dataset", "eval_dataset_path")):
        dataset(draft, key, ours, [_source(draft, key, str(name), info, folder) for name in draft.items(key)])
    if template := draft.take("template"):
        detail = _("template: {name}: the model's own chat template is used").format(name=template)
        draft.say("carried_partly", "note", detail, _("chat_template_path takes another"), "template")


def _source(draft: Draft, key: str, name: str, info: Any, folder: Path) -> str:
    entry = info.get(name) if isinstance(info, dict) else None
    if isinstance(entry, dict):
        if entry.get("columns") or entry.get("tags"):
            detail = _("{name}: its columns are recognized by their names here").format(name=name)
            draft.say("carried_partly", "note", detail, _("`ftui data check FILE` shows how the file is read"), key)
        if entry.get("file_name"):
            return str(folder / str(entry["file_name"]))
        if entry.get("hf_hub_url"):
            return f"hf://{entry['hf_hub_url']}"
    detail = _("'{name}' is not described in {path}").format(name=name, path=folder / "dataset_info.json")
    draft.say("carried_partly", "warning", detail, _("set the path of its file"), key)
    return name


def _targets(draft: Draft) -> None:
    if targets := draft.items("lora_target"):
        draft.put("lora_target_modules", "all-linear" if targets == ["all"] else targets)
    if extra := draft.items("additional_target"):
        draft.put("lora_modules_to_save", extra)


BACK = {target: key for key, target in TABLE.items() if isinstance(target, str)}
PASSED = (
    "per_device_train_batch_size", "gradient_accumulation_steps", "learning_rate", "lr_scheduler_type", "optim",
    "num_train_epochs", "max_steps", "warmup_steps", "weight_decay", "max_grad_norm", "seed", "bf16", "fp16",
    "logging_steps", "eval_strategy", "eval_steps", "save_strategy", "save_steps", "save_total_limit",
    "lr_scheduler_kwargs", "adam_beta1", "adam_beta2", "adam_epsilon", "neftune_noise_alpha",
    "per_device_eval_batch_size", "load_best_model_at_end", "metric_for_best_model", "greater_is_better",
)  # fmt: skip
CARRIED = frozenset((
    "model_name_or_path", "method", "task", "dataset_path", "eval_dataset_path", "lora_target_modules", "output_dir",
    "lora_modules_to_save", "global_batch_size", "packing", "attn_implementation", "gradient_checkpointing",
    "use_peft", "load_in_4bit", "load_in_8bit", "test_size", "assistant_only_loss", "loss_type",
))  # fmt: skip


def write(values: dict[str, Any], given: set[str]) -> tuple[dict[str, Any], str, set[str]]:
    """A LLaMA-Factory configuration of a resolved recipe.

    Returns:
        The configuration, the text of the dataset_info.json that it needs beside it, and the given keys that it does
        not carry.
    """
    adapters = values["method"] != "full"
    config: dict[str, Any] = {
        "model_name_or_path": values["model_name_or_path"],
        "stage": next(stage for stage, task in STAGES.items() if task == values["task"]),
        "do_train": True,
        "finetuning_type": "lora" if adapters else "full",
        "dataset_dir": ".",
        "dataset": DATASET,
        "cutoff_len": values["max_length"],
    }
    if adapters:
        targets = values["lora_target_modules"]
        config["lora_target"] = "all" if targets == "all-linear" else ",".join(targets)
        for ours in ("lora_r", "lora_alpha", "lora_dropout", "use_rslora", "use_dora"):
            config[BACK[ours]] = values[ours]
        if extra := values.get("lora_modules_to_save"):
            config["additional_target"] = ",".join(extra)
    if values["method"] == "qlora":
        config.update(quantization_bit=4, quantization_type=values["bnb_4bit_quant_type"], double_quantization=True)
    elif values.get("load_in_8bit"):
        config["quantization_bit"] = 8
    entries = {DATASET: _described(values["dataset_path"], values["task"])}
    if values.get("eval_dataset_path"):
        entries["held_out"] = _described(values["eval_dataset_path"], values["task"])
        config["eval_dataset"] = "held_out"
    elif values.get("test_size"):
        config["val_size"] = values["test_size"]
    if values["task"] == "dpo":
        config.update(pref_beta=values["beta"], pref_loss=_first(values["loss_type"]))
    config["packing"] = bool(values.get("packing"))
    config["disable_gradient_checkpointing"] = not values.get("gradient_checkpointing")
    attention = {name: key for key, name in ATTENTION.items()}.get(str(values.get("attn_implementation")))
    if attention:
        config["flash_attn"] = attention
    config.update({name: values[name] for name in PASSED if values.get(name) is not None})
    config["output_dir"] = values.get("output_dir") or "out"
    if values.get("assistant_only_loss") is False:
        config["train_on_prompt"] = True
    return config, json.dumps(entries, indent=2) + "\n", given - CARRIED - set(PASSED) - set(BACK)


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, list) else value


def _described(path: str, task: str) -> dict[str, Any]:
    entry: dict[str, Any] = {"hf_hub_url": path[5:]} if path.startswith("hf://") else {"file_name": path}
    if task == "pretrain":
        return {**entry, "columns": {"prompt": "text"}}
    chat = {
        "role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant",
        "system_tag": "system", "observation_tag": "tool",
    }  # fmt: skip
    if task == "dpo":
        return {**entry, "formatting": "sharegpt", "ranking": True, "tags": chat,
                "columns": {"messages": "prompt", "chosen": "chosen", "rejected": "rejected"}}  # fmt: skip
    return {**entry, "formatting": "sharegpt", "columns": {"messages": "messages"}, "tags": chat}
