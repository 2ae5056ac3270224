"""Model, tokenizer and adapter, as the recipe asks for them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig

from engine.errors import UsageError
from engine.recipe import hub, paths
from engine.text import _
from engine.train import builtin
from engine.train.job import Job
from engine.train.ranks import Ranks

HUB_TIMEOUT_S = 15.0
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


def locate(job: Job, ranks: Ranks) -> str:
    """The model's folder or hub id; a built-in one is made when it is not there.

    Raises:
        UsageError: the recipe names no model, or a folder that is none.
    """
    name = job.get("model_name_or_path")
    if not name:
        raise UsageError(
            _("the recipe names no model"), where="model_name_or_path", fix=_("set model_name_or_path"), kind="no_model"
        )
    if str(name).startswith(builtin.PREFIX):
        return str(ranks.by_first(lambda: builtin.model_path(name, job.cache)))
    path = Path(name)
    if path.is_absolute() or path.exists():
        if not (path / "config.json").is_file():
            raise UsageError(
                _("there is no model in this folder: config.json is missing"),
                where=str(path),
                fix=_("set model_name_or_path to a folder with config.json, weights and tokenizer"),
                kind="no_model",
            )
        return str(path)
    ranks.by_first(lambda: _reachable(str(name), job.get("model_revision")))
    return str(name)


def to_come(job: Job) -> str | None:
    """What `locate` and the loading will take long for: "builtin" has to be made, "download" to be fetched."""
    name = str(job.get("model_name_or_path") or "")
    if name.startswith(builtin.PREFIX):
        return None if builtin.is_made(name, job.cache) else "builtin"
    if paths.source("model_name_or_path", name) != "hub" or Path(name).exists():
        return None
    return None if next(hub.snapshots(name), None) else "download"


def _reachable(name: str, revision: str | None) -> None:
    """Ask for a model of the hub once, where it is not in the cache: the libraries try for a minute, without a word.

    Raises:
        UsageError: it cannot be had.
    """
    if next(hub.snapshots(name, None if revision in (None, "main") else revision), None) is not None:
        return
    from huggingface_hub import HfApi
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    fix = _("give the model's folder, or download it where the hub can be reached: `hf download {name}`")
    if hub.offline():
        reason = _("HF_HUB_OFFLINE is set, and it is not in the cache")
    else:
        try:
            HfApi().model_info(name, revision=revision, timeout=HUB_TIMEOUT_S)
            return
        except GatedRepoError:
            reason, fix = _("it wants your consent"), _("accept its license on the hub, then set HF_TOKEN")
        except RepositoryNotFoundError:
            reason, fix = _("there is no such model, or it is private"), _("check the name; for a private one HF_TOKEN")
        except RevisionNotFoundError:
            reason, fix = _("it has no such revision"), _("check model_revision")
        except Exception as error:  # noqa: BLE001 - of whichever HTTP library the hub's client uses
            reason = _first_line(error)
    raise UsageError(
        _("{name} is no folder, and cannot be had from the hub: {reason}").format(name=name, reason=reason),
        where="model_name_or_path",
        fix=fix.format(name=name),
        kind="no_model",
    )


def _hub(job: Job) -> dict[str, Any]:
    """Where hub files come from; both are harmless for a folder."""
    options: dict[str, Any] = {"trust_remote_code": bool(job.get("trust_remote_code", False))}
    if revision := job.get("model_revision"):
        options["revision"] = revision
    return options


def load_tokenizer(job: Job, path: str) -> Any:
    """The tokenizer with the recipe's chat template.

    Raises:
        UsageError: there is none beside the model.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, **_hub(job))
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise UsageError(
            _("the model has no usable tokenizer: {reason}").format(reason=_first_line(error)),
            where=path,
            fix=_("put tokenizer.json and tokenizer_config.json of the base model into the folder"),
            kind="no_tokenizer",
        ) from error
    if template := job.get("chat_template_path"):
        tokenizer.chat_template = _template(str(template))
    if end := job.get("eos_token"):
        tokenizer.eos_token = end
    return tokenizer


def _template(path: str) -> str:
    """The text of a chat template: a .jinja file, or that of the tokenizer in a folder.

    Only the text is taken: tokens that it uses and this tokenizer lacks are spelled in pieces.
    """
    try:
        if path.endswith((".jinja", ".j2")):
            return Path(path).read_text(encoding="utf-8")
        if template := AutoTokenizer.from_pretrained(path).chat_template:
            return str(template)
        reason = _("the tokenizer there has none")
    except (OSError, ValueError, KeyError) as error:
        reason = _first_line(error)
    raise UsageError(
        _("there is no chat template to be read: {reason}").format(reason=reason),
        where=path,
        fix=_("set chat_template_path to a .jinja file or to a tokenizer's folder"),
        kind="no_chat_template",
    )


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
    options: dict[str, Any] = {**_hub(job), **(job.get("model_init_kwargs") or {}), "dtype": dtype}
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
            _("the model cannot be loaded: {reason}").format(reason=_first_line(error)),
            where=path,
            fix=_("install what is missing into the training environment, or choose another attn_implementation"),
            kind="missing_package",
        ) from error
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(
            _("the model cannot be loaded: {reason}").format(reason=_first_line(error)),
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
            _("PEFT refuses the adapter: {reason}").format(reason=_first_line(error)), where="lora_r", kind="bad_value"
        ) from error


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    return field.default_factory() if field.default_factory is not dataclasses.MISSING else None


def _first_line(error: BaseException) -> str:
    """The first line of an error's text: libraries like to append their whole manual."""
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:300]
