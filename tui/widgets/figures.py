"""Figures as the screens write them: the locale's separators, fixed decimals, "-" for what is not known."""

from __future__ import annotations

import functools
import math

from engine import text

UNKNOWN = "-"


@functools.lru_cache(maxsize=4096)
def _number(value: float, digits: int, _language: str) -> str:
    return text.number(value, digits)


def figure(value: float, digits: int = 0) -> str:
    """A number; Babel's formatting is slow, and a screen asks for the same few again and again."""
    return _number(value, digits, text.language())


def whole(value: float | None) -> str:
    """A whole number."""
    return UNKNOWN if value is None else figure(round(value))


def fixed(value: float | None, digits: int) -> str:
    """A number with exactly `digits` decimals."""
    if value is None:
        return UNKNOWN
    return figure(round(value, digits), digits) if math.isfinite(value) else _not_finite(value)


def loss(value: float | None) -> str:
    """A loss: three decimals, fewer for large ones."""
    if value is None:
        return UNKNOWN
    if not math.isfinite(value):
        return _not_finite(value)
    return fixed(value, 3 if abs(value) < 100 else 1 if abs(value) < 10_000 else 0)


def small(value: float | None) -> str:
    """A learning rate: two digits and the power of ten."""
    if value is None:
        return UNKNOWN
    return f"{value:.1e}" if math.isfinite(value) else _not_finite(value)


def percent(share: float | None) -> str:
    """A share of one as percent."""
    return UNKNOWN if share is None else f"{fixed(share * 100, 0)} %"


def _not_finite(value: float) -> str:
    return "NaN" if math.isnan(value) else "inf" if value > 0 else "-inf"
