"""The model of a dry run: built on the meta device by the real libraries, then given fake tensors.

The order is what works: PEFT and `fully_shard` fail inside the fake mode, and a fake CUDA device aborts in backward
where there is no GPU, so the fake tensors are CPU tensors.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from torch import nn
from torch.distributed.tensor import DTensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from engine.dryrun.spec import Spec

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class Unsupported(Exception):
    """The dry run cannot do this; the closed form can."""


def on_meta(spec: Spec) -> Any:
    """The model as the trainer would have it before its first step, on the meta device.

    Raises:
        Unsupported: the libraries refuse the combination, as they would in the run itself.
    """
    try:
        model = _model(spec)
        adapted = model if spec.method == "full" else _adapted(model, spec)
    except (ValueError, NotImplementedError, KeyError, ImportError, AttributeError) as error:
        raise Unsupported(str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__) from error
    if spec.checkpointing:
        model.activation_checkpointing_enable()
    if spec.loss == "chunked":
        from trl.trainer.utils import add_fused_lm_head

        add_fused_lm_head(model, outputs=("log_probs", "entropy", "is_top1"))
    adapted.train()
    return adapted


def _model(spec: Spec) -> Any:
    fields = dict(spec.config)
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    config.use_cache = False
    if spec.untie:
        config.tie_word_embeddings = False
    kind = AutoModelForCausalLM._model_mapping[type(config)]
    attention = spec.attention
    if attention == "flash":  # its kernel is not here, sdpa saves the same
        kind._supports_sdpa, attention = True, "sdpa"
    elif not kind._supports_sdpa:
        attention = "eager"
    options: dict[str, Any] = {"attn_implementation": attention, "dtype": DTYPES[spec.bf16_master]}
    with torch.device("meta"), _no_weights():
        model = AutoModelForCausalLM.from_config(config, **options)
        model.tie_weights()
    if spec.method == "qlora":
        from engine.dryrun import fourbit

        fourbit.replace_linears(model, spec)
    return model


def attention(spec: Spec) -> str:
    """The attention that a step really runs with."""
    fields = dict(spec.config)
    kind = AutoModelForCausalLM._model_mapping[type(AutoConfig.for_model(fields.pop("model_type"), **fields))]
    return "eager" if spec.attention == "sdpa" and not kind._supports_sdpa else spec.attention


def _no_weights() -> contextlib.AbstractContextManager[Any]:
    """Without initial values, which nobody sees."""
    from transformers import initialization

    return initialization.no_init_weights()


def _adapted(model: PreTrainedModel, spec: Spec) -> Any:
    if spec.kbit_prepare and spec.method == "qlora":
        prepare_model_for_kbit_training(model, use_gradient_checkpointing=spec.checkpointing)
    targets: Any = list(spec.lora_targets) or "all-linear"
    config = LoraConfig(
        r=spec.lora_r,
        lora_dropout=spec.lora_dropout,
        target_modules=targets,
        modules_to_save=list(spec.lora_modules_to_save) or None,
        use_dora=spec.use_dora,
        task_type="CAUSAL_LM",
    )
    with torch.device("meta"):
        adapted = get_peft_model(model, config)
    if spec.checkpointing:
        adapted.enable_input_require_grads()
    if spec.lora_dtype == "bf16":  # what TRL does on a quantised base
        for name, parameter in adapted.named_parameters():
            if parameter.requires_grad and "lora_magnitude_vector" not in name:
                parameter.data = parameter.data.to(torch.bfloat16)
    return adapted


def shard(model: Any, spec: Spec) -> None:
    """`fully_shard` over fake ranks, unit by unit as accelerate prepares it."""
    from accelerate.utils import FullyShardedDataParallelPlugin
    from accelerate.utils.fsdp_utils import fsdp2_prepare_model

    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        reshard_after_forward=spec.reshard,
        auto_wrap_policy="transformer_based_wrap",
        cpu_ram_efficient_loading=False,
    )
    plugin.set_mixed_precision("bf16")
    accelerator = SimpleNamespace(
        state=SimpleNamespace(fsdp_plugin=plugin),
        mixed_precision="bf16",
        is_main_process=False,
        device=torch.device("cpu"),
    )
    # accelerate takes the weights aside to load them again, and a 4-bit layer would look at its values for that
    with mock.patch.object(type(model), "state_dict", lambda _model: {}):
        fsdp2_prepare_model(accelerator, model)


@contextlib.contextmanager
def fake_ranks(ranks: int) -> Iterator[None]:
    """A process group of this process and `ranks - 1` that exist only by number; none is left behind."""
    import torch.distributed as dist
    import torch.distributed._tools.fake_collectives  # noqa: F401 - gives collectives a result on fake tensors
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    try:
        yield
    finally:
        dist.destroy_process_group()


def fill(model: nn.Module, make: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Replace every parameter and buffer by what `make` gives for it; what was tied stays tied.

    Args:
        model: on the meta device.
        make: for a meta tensor one of its shape, dtype and stride.
    """
    done: dict[int, Any] = {}

    def replace(tensor: torch.Tensor) -> torch.Tensor:
        if isinstance(tensor, DTensor):
            return DTensor(make(tensor._local_tensor), tensor._spec, requires_grad=tensor.requires_grad)
        return make(tensor)

    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is None:
                continue
            if id(parameter) not in done:
                fresh = nn.Parameter(replace(parameter), requires_grad=parameter.requires_grad)
                done[id(parameter)] = (fresh, parameter)  # the old one is held: its id must not come again
            module._parameters[name] = done[id(parameter)][0]
        for name, buffer in module._buffers.items():
            if buffer is None:
                continue
            if id(buffer) not in done:
                done[id(buffer)] = (replace(buffer), buffer)
            module._buffers[name] = done[id(buffer)][0]
        if getattr(module, "quant_state", None) is not None:
            from engine.dryrun import fourbit

            fourbit.fill_scales(module, make)
    for module in model.modules():
        if hasattr(module, "_get_fsdp_state"):
            for group in module._get_fsdp_state()._fsdp_param_groups:
                for parameter in group.fsdp_params:
                    parameter.reset_sharded_param()
