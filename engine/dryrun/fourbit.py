"""4-bit matrices that may be fake: bitsandbytes' own layer and autograd function around a plain parameter.

`bitsandbytes.nn.Params4bit` quantises when it is moved, so it cannot be fake. Its content can: packed weights, and the
scales that belong to them. Everything that computes is bitsandbytes' and PEFT's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import bitsandbytes as bnb
import torch
from bitsandbytes.functional import QuantState
from torch import nn
from transformers import BitsAndBytesConfig
from transformers.integrations.bitsandbytes import replace_with_bnb_linear
from transformers.quantizers.base import get_keys_to_not_convert

from engine.dryrun.spec import Spec

BLOCK, NESTED = 64, 256  # weights that share a scale; scales that share one of their own


class Params4bit(nn.Parameter):
    """Stands for bitsandbytes' class of this name, which libraries tell by it."""


def replace_linears(model: Any, spec: Spec) -> None:
    """Quantise a model on the meta device as `from_pretrained` would."""
    kind = "fp4" if spec.quant == "fp4" else "nf4"
    # FSDP2 shards floating-point storage only, and leaves packed bytes whole on every rank
    storage = torch.bfloat16 if spec.sharding == "fsdp2" else torch.uint8
    config = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=kind,
        bnb_4bit_use_double_quant=spec.quant == "nf4-dq",
        bnb_4bit_compute_dtype=torch.bfloat16,
        bnb_4bit_quant_storage=storage,
    )
    dtypes = {name: p.dtype for name, p in model.named_parameters()}
    replace_with_bnb_linear(model, get_keys_to_not_convert(model), config)
    for name, module in model.named_modules():
        if isinstance(module, bnb.nn.Linear4bit):
            _quantise(module, kind, spec.quant == "nf4-dq", storage)
            if module.bias is not None:
                module.bias = nn.Parameter(module.bias.to(dtypes[f"{name}.bias"]), requires_grad=False)
    model.is_loaded_in_4bit = True
    for parameter in model.parameters():
        parameter.requires_grad = False
    bnb.nn.modules.fix_4bit_weight_quant_state_from_module = _keep_state


def _quantise(module: Any, kind: str, nested: bool, storage: torch.dtype) -> None:
    numbers = module.weight.numel()
    shape = module.weight.shape
    packed = -(-numbers // 2) // storage.itemsize
    meta: dict[str, Any] = {"device": "meta"}
    weight = Params4bit(torch.empty((packed, 1), dtype=storage, **meta), requires_grad=False)
    scales = -(-numbers // BLOCK)
    state = QuantState(
        absmax=torch.empty(scales, dtype=torch.uint8 if nested else torch.float32, **meta),
        shape=shape,
        code=torch.empty(16, **meta),
        blocksize=BLOCK,
        quant_type=kind,
        dtype=torch.bfloat16,
    )
    if nested:
        state.offset = torch.empty((), **meta)
        state.state2 = QuantState(
            absmax=torch.empty(-(-scales // NESTED), **meta),
            code=torch.empty(256, **meta),
            blocksize=NESTED,
            dtype=torch.float32,
        )
        state.nested = True
    weight.quant_state, weight.quant_type, weight.compress_statistics = state, kind, nested  # type: ignore[attr-defined]
    module.weight, module.quant_state = weight, state


def _keep_state(module: Any) -> None:
    """What FSDP gathers is a plain tensor; the layer remembers the scales."""
    if getattr(module.weight, "quant_state", None) is None:
        module.weight.quant_state = module.quant_state


def fill_scales(module: Any, make: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Give a layer its scales, which are no parameters: every rank keeps all of them."""
    state = module.quant_state
    for part in (state, state.state2):
        if part is not None:
            part.absmax, part.code = make(part.absmax), make(part.code)
    if state.offset is not None:
        state.offset = make(state.offset)
