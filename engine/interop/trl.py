"""TRL's own YAML (`trl sft --config`): its keys are ours; only the data and what the product decides differ."""

from __future__ import annotations

import os
from typing import Any

from engine.interop.draft import Draft
from engine.text import _

NAME = "trl"
SCRIPT = ("dataset_config", "dataset_train_split", "dataset_test_split", "dataset_streaming", "ignore_bias_buffers")
DEFAULTS = {
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "num_train_epochs": 3,
    "max_length": 1024,
    "warmup_steps": 0,
    "test_size": 0,
}
RATES = {"sft": 2e-5, "dpo": 1e-6, "pretrain": 2e-5}


def matches(given: dict[str, Any]) -> bool:
    """Whether a file looks like TRL's: the keys are ours, the data is not."""
    return "dataset_name" in given or ("datasets" in given and "base_model" not in given)


def read(draft: Draft) -> None:
    """Carry the keys of a TRL file."""
    from engine.recipe import keys

    task = "dpo" if any(key in draft.given for key in ("beta", "precompute_ref_log_probs")) else "sft"
    draft.put("task", task)
    peft, four_bit = draft.take("use_peft"), draft.take("load_in_4bit")
    draft.put("method", "full" if not peft else "qlora" if four_bit else "lora")
    if four_bit and not peft:
        draft.lost("load_in_4bit", _("a 4-bit base is trained with adapters only"), _("set use_peft: true"), "error")
    name = draft.take("dataset_name")
    mixture = draft.take("datasets")
    if isinstance(mixture, list) and mixture and isinstance(mixture[0], dict):
        name = name or mixture[0].get("data_files") or mixture[0].get("path")
        name = name[0] if isinstance(name, list) and name else name
        if len(mixture) > 1:
            detail = _("a mixture of {n} data sets: the first one is carried").format(n=len(mixture))
            draft.say("not_carried", "error", detail, _("put the files into one folder"), "datasets")
    if name:
        local = str(name).startswith((".", "/", "~")) or os.path.exists(draft.folder / str(name))  # noqa: PTH110 (Path raises for a name that is too long)
        draft.put("dataset_path", str(name) if local else f"hf://{name}")
    for key in SCRIPT:
        if draft.take(key) not in (None, False, "train", "test"):
            draft.lost(key, _("{key} is not carried").format(key=key), _("look whether the run needs it"))
    known = keys.table(task)
    for key in list(draft.given):
        ours = keys.canonical(key)
        if ours in known:
            draft.put(ours, draft.take(key))
    defaults = {**DEFAULTS, "learning_rate": RATES[task], "lr_scheduler_type": "linear"}
    if draft.values["method"] != "full":
        defaults["lora_target_modules"] = ["q_proj", "v_proj"]  # PEFT's for Llama, Qwen, Mistral, Gemma
    draft.defaults(defaults)
