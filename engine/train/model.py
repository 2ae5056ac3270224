"""The base model, as the recipe asks for it; `source` knows where it comes from."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, BitsAndBytesConfig

from engine.errors import UsageError
from engine.text import _
from engine.train import fp8, sharding
from engine.train.job import Job
from engine.train.source import first_line, hub_options, load_tokenizer, locate, to_come  # noqa: F401


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


def _place(job: Job, config: BitsAndBytesConfig | None) -> dict[str, Any]:
    """Where the weights go while they load; without a word they go where the trainer puts them."""
    wanted = sharding.kind(job.recipe)
    if wanted == "pipeline":
        return {"device_map": "balanced"}
    if wanted == "fsdp2" and job.rank.world_size > 1 and sharding.loads_once(job.recipe):
        from accelerate.utils import enable_fsdp_ram_efficient_loading

        enable_fsdp_ram_efficient_loading()
    # bitsandbytes quantizes where the weights end up; ZeRO-3 takes no map, and has the current device
    return {"device_map": {"": device(job)}} if config is not None and wanted != "zero3" else {}


def _load(job: Job, path: str, options: dict[str, Any], config: BitsAndBytesConfig | None) -> Any:
    if job.get("random_init", False):
        shape = AutoConfig.from_pretrained(path, **hub_options(job))
        kept = {key: options[key] for key in ("dtype", "attn_implementation") if key in options}
        if kept["dtype"] == "auto":
            kept.pop("dtype")
        return AutoModelForCausalLM.from_config(shape, **kept)
    if config is not None:
        options["quantization_config"] = config
    return AutoModelForCausalLM.from_pretrained(path, **options, **_place(job, config))


def load_model(job: Job, path: str) -> Any:
    """The base model: quantized when the recipe says so, on this rank's device or spread over several.

    Raises:
        UsageError: the weights are missing or damaged, or the attention implementation is not installed.
    """
    if job.get("fp8", False):
        fp8.refuse(device(job))
    model, config = _loaded(job, path)
    model.config.use_cache = False
    if job.get("use_liger_kernel", False):
        _refuse_liger(model.config.get_text_config().model_type)
    if job.get("fp8", False):
        fp8.convert(model)
    if config is not None and job.get("kbit_prepare", False):
        from peft import prepare_model_for_kbit_training

        model = prepare_model_for_kbit_training(
            model, use_gradient_checkpointing=bool(job.get("gradient_checkpointing", True))
        )
    return model


def _refuse_liger(model_type: str) -> None:
    """Stop where Liger would silently change nothing.

    Raises:
        UsageError: it is not installed, or has no kernels for this model.
    """
    try:
        from liger_kernel.transformers.monkey_patch import MODEL_TYPE_TO_APPLY_LIGER_FN as known
    except ImportError as error:
        raise UsageError(
            _("use_liger_kernel needs liger-kernel: {reason}").format(reason=first_line(error)),
            where="use_liger_kernel",
            fix=_("install it (`pip install liger-kernel`), or delete use_liger_kernel"),
            kind="missing_package",
        ) from error
    if model_type not in known:
        raise UsageError(
            _("Liger has no kernels for a model of the kind {kind}").format(kind=model_type),
            where="use_liger_kernel",
            fix=_("delete use_liger_kernel"),
            kind="not_supported",
        )


def _loaded(job: Job, path: str) -> tuple[Any, BitsAndBytesConfig | None]:
    """The model, and how it is quantized.

    Raises:
        UsageError: the weights are missing or damaged, or the attention implementation is not installed.
    """
    dtype = _dtype(job)
    options: dict[str, Any] = {**hub_options(job), **(job.get("model_init_kwargs") or {}), "dtype": dtype}
    if attention := job.get("attn_implementation"):
        options["attn_implementation"] = attention
    config = quantization(job, dtype)
    try:
        return _load(job, path, options, config), config
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
