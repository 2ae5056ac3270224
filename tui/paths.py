"""Paths as the screens show them."""

from __future__ import annotations

from pathlib import Path


def short(path: Path, most: int | None = None) -> str:
    """A path with `~` for the home folder; of one longer than `most` the end, which tells more."""
    try:
        text = str(Path("~") / path.relative_to(Path.home()))
    except (ValueError, RuntimeError):
        text = str(path)
    return text if most is None or len(text) <= most else "…" + text[1 - most :]
