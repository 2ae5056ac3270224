"""Which depths are measured, and from two of them the whole model: each phase is a straight line over the layers."""

from __future__ import annotations

import math
from typing import Any

LEAST = 4  # fewer layers than this and the phases run into each other
NEAR = 0.10  # of the limit: a guess is not good enough there

Peaks = dict[str, dict[str, float]]  # phase -> part -> bytes


def period(config: dict[str, Any]) -> int:
    """After how many layers the kinds of layers repeat (Gemma's windows, gpt-oss' windows, sparse steps)."""
    kinds = config.get("layer_types")
    found = 1
    if isinstance(kinds, list) and kinds:
        found = next(p for p in range(1, len(kinds) + 1) if all(a == b for a, b in zip(kinds, kinds[p:], strict=False)))
    elif isinstance(config.get("sliding_window_pattern"), int):
        found = config["sliding_window_pattern"]
    elif config.get("model_type") in ("gemma2", "gpt_oss"):
        found = 2
    elif str(config.get("model_type")).startswith("gemma3"):
        found = 6
    elif config.get("model_type") == "smollm3":
        found = 4
    return math.lcm(found, max(1, int(config.get("decoder_sparse_step") or 1)))


def depths(layers: int, config: dict[str, Any]) -> tuple[int, ...]:
    """The depths to measure: two, as far apart as a period, that end on the same kind of layer as the model.

    All layers alone where that is hardly more.
    """
    step = period(config)
    first = int(config.get("first_k_dense_replace") or 0) + LEAST
    while (layers - first) % step:
        first += 1
    second = first + step * math.ceil(2 / step)
    return (first, second) if second + 2 < layers else (layers,)


def extrapolate(shallow: Peaks, deep: Peaks, depths: tuple[int, int], layers: int) -> Peaks:
    """Each part of each phase at `layers`, on the line through two depths."""
    factor = (layers - depths[0]) / (depths[1] - depths[0])
    return {
        phase: {part: size + factor * (deep[phase][part] - size) for part, size in parts.items()}
        for phase, parts in shallow.items()
    }


def straight(peaks: Peaks) -> bool:
    """Whether the phases may be extrapolated: no layer in between peaks above both ends of backward."""
    ends = max(sum(parts.values()) for phase, parts in peaks.items() if phase != "middle")
    return sum(peaks.get("middle", {}).values()) <= ends * 1.001


def close(total: float, limit: float | None) -> bool:
    """Whether a figure is so near the limit that all layers have to be run."""
    return limit is not None and abs(total - limit) <= NEAR * limit


# the closed form's phases, and the stretches of a step that each consists of
PHASES = {
    "loss": ("forward", "head", "loss"),
    "backward": ("backward",),
    "end of backward": ("end", "embedding"),
    "step": ("step",),
}


def named(peaks: Peaks) -> Peaks:
    """The phases of the closed form; what lies between the ends of backward counts only if it exceeds both."""

    def largest(names: tuple[str, ...]) -> dict[str, float]:
        return max((peaks[name] for name in names if name in peaks), key=lambda parts: sum(parts.values()), default={})

    phases = {phase: largest(stretches) for phase, stretches in PHASES.items()}
    middle = peaks.get("middle", {})
    if sum(middle.values()) > max(sum(phases[name].values()) for name in ("backward", "end of backward")):
        phases["backward"] = middle
    return {phase: parts for phase, parts in phases.items() if parts}
