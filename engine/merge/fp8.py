"""FP8 as vLLM loads it (compressed-tensors): which tensors become it, and what config.json says of them.

Weights in e4m3 with one scale for each output channel, activations quantized token by token while it computes: nothing
has to be calibrated. Only the linear layers of the decoder become FP8; embeddings, output layer, norms, routers and
whatever else the model has (a vision tower) stay in 16 bits.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from engine.merge.base import Base, is_head
from engine.merge.match import is_conv1d
from engine.merge.report import Report
from engine.merge.tensors import FLOATS
from engine.text import _

if TYPE_CHECKING:
    from engine.merge.plan import Output

DTYPE = "F8_E4M3"
SCALE = "_scale"  # `x.weight` has its scales in `x.weight_scale`
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.\d+\.")
_OTHER = re.compile(r"(?:^|[._])(?:vision|visual|audio|image|video|speech)")
_ROUTERS = ("gate", "router", "shared_expert_gate", "wg")  # a small matrix that decides; gate_proj is none


def carrier(main: str) -> str:
    """The type of what stays in 16 bits, and of the scales."""
    return main if main in ("BF16", "F16") else "BF16"


def mark(base: Base, outputs: list[Output], config: dict[str, Any], report: Report) -> None:
    """Make the linear layers FP8 and say so in the config.

    Args:
        base: the model.
        outputs: all tensors of the merged model; those that become FP8 are changed.
        config: the merged model's config.json; gets `quantization_config`.
        report: takes what cannot be FP8.
    """
    kept, count = [], 0
    for output in outputs:
        module, dot, last = output.name.rpartition(".")
        shape = output.source.shape
        if len(shape) == 3 and output.source.dtype in FLOATS and "expert" in module + last:
            detail = _("{name} holds all experts in one tensor, which is not written as FP8").format(name=output.name)
            report.add("unsupported_base", "error", detail, output.name, fix=_("merge to bf16 instead"))
        if not dot or last != "weight" or len(shape) != 2 or output.source.dtype not in FLOATS:
            continue
        if _is_linear(output.name, module):
            if is_conv1d(base, module, False, True, True):
                detail = _("{name} is stored transposed (Conv1D), which is not written as FP8").format(name=output.name)
                report.add("unsupported_base", "error", detail, output.name, fix=_("merge to bf16 instead"))
            output.dtype, output.scale = DTYPE, carrier(base.dtype)
            count += 1
        elif output.name != base.embedding:
            kept.append(module)
    if not count and not report.broken:
        report.add("unsupported_base", "error", _("the base has no linear layers that could be FP8"), base.model_type)
    head = (base.head or "lm_head.weight").removesuffix(".weight")
    config["quantization_config"] = description(list(dict.fromkeys([head, *kept])))


def _is_linear(name: str, module: str) -> bool:
    last = module.rpartition(".")[2]
    return (
        _LAYER.search(name) is not None
        and not _OTHER.search(name)
        and not is_head(name)
        and last not in _ROUTERS
        and not any(word in last for word in ("embed", "norm", "relative_attention_bias"))
    )


def description(ignore: list[str]) -> dict[str, Any]:
    """`quantization_config` in the form of compressed-tensors."""
    weights = {
        "num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel", "dynamic": False,
        "group_size": None, "block_structure": None, "actorder": None, "observer": "minmax", "observer_kwargs": {},
    }  # fmt: skip
    activations = {**weights, "strategy": "token", "dynamic": True, "observer": None}
    group = {
        "targets": ["Linear"], "weights": weights, "input_activations": activations, "output_activations": None,
        "format": "float-quantized",
    }  # fmt: skip
    return {
        "quant_method": "compressed-tensors", "format": "float-quantized", "quantization_status": "compressed",
        "config_groups": {"group_0": group}, "ignore": ignore, "kv_cache_scheme": None,
        "global_compression_ratio": None,
    }  # fmt: skip
