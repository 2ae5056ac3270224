"""The 4-bit base that QLoRA trained on, as 16-bit weights: quantized by bitsandbytes as the training did, and back.

Which layers bitsandbytes quantizes is asked of transformers, with a model without memory. On the CPU a few numbers
may fall into the neighboring one of the sixteen levels where the GPU's division rounds otherwise.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from engine.merge.arithmetic import DTYPES, read
from engine.merge.match import spellings
from engine.merge.tensors import Ref
from engine.text import _

BLOCK = 64  # numbers that share a scale: bitsandbytes' default, which the training uses


class CannotQuantize(Exception):
    """The base cannot be quantized as the training did; the text says why."""


class QuantizedBase:
    """Gives the weights of layers as the training computed with them.

    Args:
        folder: the base.
        how: `{"type": "nf4"|"fp4", "nested": bool, "dtype": safetensors' name of the type it was loaded in}`.
        stored: the names of the base's tensors.

    Raises:
        CannotQuantize: bitsandbytes is not here, or the model's layers are not known.
    """

    def __init__(self, folder: str | Path, how: dict[str, Any], stored: set[str]) -> None:
        self.how = how
        found = (next((name for name in spellings(wanted) if name in stored), None) for wanted in parameters(folder))
        self.names = {name for name in found if name is not None}
        if not self.names:
            raise CannotQuantize(_("no layer that bitsandbytes quantizes was found in the base's files"))

    def weight(self, name: str, source: Ref) -> torch.Tensor | None:
        """A layer's weight, quantized and back; None for what is not quantized."""
        return dequantized(read(source), self.how) if name in self.names else None


def parameters(folder: str | Path) -> list[str]:
    """The parameters of a model that bitsandbytes stores in 4 bits, as they are called in memory.

    Raises:
        CannotQuantize: the model cannot be built, or has layers that are stored transposed.
    """
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.pytorch_utils import Conv1D
    from transformers.quantizers.base import get_keys_to_not_convert
    from transformers.quantizers.quantizers_utils import should_convert_module

    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        with torch.device("meta"):
            model: Any = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
        skipped = get_keys_to_not_convert(model)
    except Exception as error:  # whatever a model's own code raises
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise CannotQuantize(reason) from error
    names = []
    for name, module in model.named_modules():
        if isinstance(module, Conv1D):
            raise CannotQuantize(_("{name} is stored transposed (Conv1D)").format(name=name))
        if type(module) is torch.nn.Linear and should_convert_module(name, skipped):
            names.append(f"{name}.weight")
    return names


def dequantized(weight: torch.Tensor, how: dict[str, Any]) -> torch.Tensor:
    """A weight in 4 bits and back, in the type in which the model was loaded.

    Raises:
        CannotQuantize: bitsandbytes is not here.
    """
    try:
        from bitsandbytes import functional
    except Exception as error:
        raise CannotQuantize(_("bitsandbytes cannot be loaded: {reason}").format(reason=error)) from error
    loaded = weight.to(DTYPES[how["dtype"]]).contiguous()
    packed, state = functional.quantize_4bit(
        loaded, blocksize=BLOCK, compress_statistics=bool(how["nested"]), quant_type=how["type"]
    )
    back: torch.Tensor = functional.dequantize_4bit(packed, state)
    return back.reshape(weight.shape)
