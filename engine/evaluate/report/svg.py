"""Plots as inline SVG: two bars with their intervals, differences around zero, and a scatter of losses by row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

from engine.evaluate.report import words
from engine.text import _, number

WIDTH, LABEL, VALUE = 720, 210, 120
ROW = 46
BAR = 14


def bars(metrics: Sequence[dict[str, Any]]) -> str:
    """Base and tuned of each share, with whiskers for the intervals."""
    height = ROW * len(metrics) + 24
    left, right = LABEL, WIDTH - VALUE
    parts = [_grid(left, right, height - 24)]
    for at, metric in enumerate(metrics):
        top = at * ROW + 6
        parts.append(_text(left - 8, top + BAR + 4, words.label(metric["name"]), "end"))
        for line, role in enumerate(("base", "tuned")):
            part, y = metric[role], top + line * (BAR + 3)
            end = left + _clip(part["value"]) * (right - left)
            parts.append(f'<rect class="{role}" x="{left}" y="{y}" width="{max(1.0, end - left):.1f}" height="{BAR}"/>')
            parts.append(_whisker(part, y + BAR / 2, left, right))
            parts.append(_text(right + 8, y + BAR - 3, words.figure(metric["name"], part["value"]), "start"))
    for share in (0, 0.5, 1):
        parts.append(_text(left + share * (right - left), height - 6, f"{number(100 * share)} %", "middle", "dim"))
    return _svg(height, parts, _("base and tuned, with 95 % intervals"))


def differences(metrics: Sequence[dict[str, Any]]) -> str:
    """How far the tuned model is from its base, each metric on a scale of its own."""
    row = 30
    height = row * len(metrics) + 8
    left, right = LABEL, WIDTH - VALUE
    middle = (left + right) / 2
    parts = [f'<line class="zero" x1="{middle}" x2="{middle}" y1="0" y2="{height}"/>']
    for at, metric in enumerate(metrics):
        delta, y = metric["delta"], at * row + row / 2
        ends = [abs(v) for v in (delta["low"], delta["high"], delta["value"]) if v is not None and math.isfinite(v)]
        scale = max(ends, default=0) or 1.0
        kind = delta["verdict"]

        def place(value: float | None, scale: float = scale) -> float:
            return middle + _clip((value or 0) / scale, -1) * (right - left) / 2.2

        low, high, point = place(delta["low"]), place(delta["high"]), place(delta["value"])
        parts.append(_text(left - 8, y + 4, words.label(metric["name"]), "end"))
        parts.append(f'<line class="range {kind}" x1="{low:.1f}" x2="{high:.1f}" y1="{y}" y2="{y}"/>')
        parts.append(f'<circle class="{kind}" cx="{point:.1f}" cy="{y}" r="4"/>')
        parts.append(_text(right + 8, y + 4, words.figure(metric["name"], delta["value"], signed=True), "start"))
    return _svg(height, parts, _("tuned less base, with 95 % intervals"))


def groups(rows: Sequence[dict[str, Any]]) -> str:
    """General prompts solved, by category and language."""
    flat = [
        {
            "name": f"{words.group(group)} ({group['rows']})",
            "base": {"value": group["base"] / max(1, group["rows"])},
            "tuned": {"value": group["tuned"] / max(1, group["rows"])},
        }
        for group in rows
    ]
    return bars(flat)


def _grid(left: float, right: float, height: float) -> str:
    xs = [left + share * (right - left) for share in (0, 0.25, 0.5, 0.75, 1)]
    return "".join(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height}"/>' for x in xs)


def _whisker(part: dict[str, Any], y: float, left: float, right: float) -> str:
    low, high = part.get("low"), part.get("high")
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        return ""
    a, b = (left + _clip(value) * (right - left) for value in (low, high))
    ends = "".join(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y - 3}" y2="{y + 3}"/>' for x in (a, b))
    return f'<g class="whisker"><line x1="{a:.1f}" x2="{b:.1f}" y1="{y}" y2="{y}"/>{ends}</g>'


def _clip(value: float, low: float = 0.0) -> float:
    return max(low, min(1.0, value)) if math.isfinite(value) else 0.0


def _text(x: float, y: float, text: str, anchor: str, kind: str = "") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(height: float, parts: Sequence[str], title: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(title)}">'
        f"<title>{escape(title)}</title>{''.join(parts)}</svg>"
    )
