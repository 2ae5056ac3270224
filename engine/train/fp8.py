"""`fp8: true`: matrix products in FP8, scaled at each step, by torchao; weights and states stay as they are."""

from __future__ import annotations

from typing import Any

import torch

from engine.errors import UsageError
from engine.text import _

FIRST = (8, 9)  # compute capability of Ada; Hopper follows
AMD = ("gfx942", "gfx950")
MULTIPLE = 16  # what the kernels want of both sides of a matrix


def refuse(place: torch.device) -> None:
    """Stop where it cannot be done.

    Raises:
        UsageError: the card computes no FP8, or torchao is not there.
    """
    why = _reason(place)
    if why:
        raise UsageError(why, where="fp8", fix=_("delete fp8: bf16 is used then"), kind="not_supported")
    try:
        import torchao.float8  # noqa: F401
    except ImportError as error:
        raise UsageError(
            _("fp8 needs torchao, which the training environment has not"),
            where="fp8",
            fix=_("install it (`pip install torchao`), or delete fp8"),
            kind="missing_package",
        ) from error


def _reason(place: torch.device) -> str | None:
    if place.type != "cuda":
        return _("FP8 needs a GPU, and this run is on the {device}").format(device=place.type)
    properties = torch.cuda.get_device_properties(place)
    if getattr(torch.version, "hip", None):
        arch = str(getattr(properties, "gcnArchName", "")).partition(":")[0]
        return None if arch in AMD else _("{card} ({arch}) computes no FP8").format(card=properties.name, arch=arch)
    if (properties.major, properties.minor) < FIRST:
        return _("{card} computes no FP8: cards of compute capability 8.9 and newer do").format(card=properties.name)
    return None


def convert(model: Any, *, emulate: bool = False) -> int:
    """Let the model's linear layers compute in FP8; how many do.

    The head stays: the loss is computed from its own weight. So do layers whose sides the kernels cannot take.

    Args:
        model: before an adapter is put on it.
        emulate: compute the same on hardware without FP8 (for tests).
    """
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    head = model.get_output_embeddings()

    def fits(module: torch.nn.Module, _name: str) -> bool:
        if not isinstance(module, torch.nn.Linear) or module is head:
            return False
        return module.in_features % MULTIPLE == 0 and module.out_features % MULTIPLE == 0

    convert_to_float8_training(model, config=Float8LinearConfig(emulate=emulate), module_filter_fn=fits)
    return count(model)


def count(model: Any) -> int:
    """How many layers compute in FP8."""
    return sum(1 for module in model.modules() if type(module).__name__ == "Float8Linear")
