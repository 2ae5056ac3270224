"""Curves as characters: values to dot rows, dots to braille, half blocks or ASCII. Pure numpy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tui.state.series import Floats
from tui.widgets.glyphs import Mode

Codes = NDArray[np.uint32]
Dots = NDArray[np.bool_]

DOTS: dict[Mode, tuple[int, int]] = {"braille": (2, 4), "block": (1, 2), "ascii": (1, 1)}
"""Dots per cell: columns, rows."""

_BRAILLE = 0x2800
_BRAILLE_BITS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]], dtype=np.uint32)
_HALVES = np.array([ord(" "), ord("▀"), ord("▄"), ord("█")], dtype=np.uint32)


def rows(values: Floats, low: float, high: float, count: int, *, log: bool = False) -> Floats:
    """The dot row of each value (0 is the top); what lies outside is drawn on the edge, NaN stays NaN."""
    if log:
        with np.errstate(divide="ignore", invalid="ignore"):
            values = np.log10(np.where(values > 0, values, np.nan))
        low, high = float(np.log10(low)), float(np.log10(high))
    scaled: Floats = np.clip((high - values) / (high - low) * (count - 1), 0, count - 1)
    return scaled


def fill(top: Floats, bottom: Floats, count: int) -> Dots:
    """The dots of `count` rows between `top` and `bottom` in each column; neighbors are joined half way."""
    top, bottom = top.copy(), bottom.copy()
    down = (top[1:] + bottom[:-1]) / 2  # where the column begins below the end of the one before it
    up = (bottom[1:] + top[:-1]) / 2
    with np.errstate(invalid="ignore"):
        falls, rises = top[1:] > bottom[:-1] + 1, bottom[1:] < top[:-1] - 1
    top[1:] = np.where(falls, np.minimum(top[1:], down), top[1:])
    bottom[:-1] = np.where(falls, np.maximum(bottom[:-1], down), bottom[:-1])
    bottom[1:] = np.where(rises, np.maximum(bottom[1:], up), bottom[1:])
    top[:-1] = np.where(rises, np.minimum(top[:-1], up), top[:-1])
    index = np.arange(count)[:, None]
    with np.errstate(invalid="ignore"):
        dots: Dots = (index >= np.rint(top)) & (index <= np.rint(bottom))  # false for NaN
    return dots


def pack(dots: Dots, mode: Mode, character: str = "*") -> tuple[Codes, Dots]:
    """Dots to one character per cell, and which cells have any."""
    across, down = DOTS[mode]
    height, width = dots.shape[0] // down, dots.shape[1] // across
    cells = dots.reshape(height, down, width, across)
    any_dot: Dots = cells.max(axis=(1, 3))
    codes: Codes
    if mode == "braille":
        codes = (cells * _BRAILLE_BITS[:, None, :]).sum(axis=(1, 3), dtype=np.uint32) + np.uint32(_BRAILLE)
    elif mode == "block":
        codes = _HALVES[cells[:, 0, :, 0] + 2 * cells[:, 1, :, 0]]
    else:
        codes = np.full((height, width), ord(character), dtype=np.uint32)
    return codes, any_dot
