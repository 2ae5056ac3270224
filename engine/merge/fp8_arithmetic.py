"""Weights to e4m3 and back, one scale a row."""

from __future__ import annotations

import torch

LARGEST = 448.0  # of e4m3
STEP, LEAST = 2.0**-4, 2.0**-10  # half a step between two numbers: relative, and (near zero) in units of the scale


def quantized(weight: torch.Tensor, scale_type: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of float32 as e4m3 and the scale of each row.

    The scale is rounded before it is used, so that reader and writer divide and multiply by the same number. Rounding
    it down can carry the row's largest number a little beyond e4m3's, which has no infinity: it is cut off there.
    """
    scale = weight.abs().amax(dim=1, keepdim=True) / LARGEST
    scale = scale.to(scale_type)
    least = torch.finfo(scale_type).tiny
    scale = torch.where(scale < least, torch.full_like(scale, least), scale)  # a row of zeros divides by something
    return (weight / scale.float()).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn), scale


def restored(weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """The inverse of `quantized`, in float32."""
    return weight.float() * scale.float()


def tolerance(exact: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """How far a number may be from the exact one: one rounding, and that of the scale at the end of the range."""
    return torch.maximum(exact.abs() * STEP, scale.float() * LEAST) * (1 + 2.0**-7)
