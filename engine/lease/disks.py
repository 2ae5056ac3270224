"""Which folders outlive the server: what the user said, the nearest folder first, else what the mount tells."""

from __future__ import annotations

import os
from pathlib import Path

from engine import settings
from engine.hardware import disk
from engine.hardware.disk import Persistence


def said(path: Path, known: settings.Settings | None = None) -> Persistence | None:
    """What the settings say of a path: the longest folder that holds it decides, of two alike the cautious word."""
    known = known or settings.load()
    real = Path(os.path.realpath(path))
    best: tuple[int, Persistence] | None = None
    kinds: tuple[tuple[str | None, Persistence], ...] = (
        (known.persistent, "persistent"),
        (known.temporary, "temporary"),
    )
    for text, kind in kinds:
        for folder in filter(None, (part.strip() for part in (text or "").split(":"))):
            place = Path(os.path.realpath(os.path.expanduser(folder)))  # noqa: PTH111 - Path's raises without a home
            if real.is_relative_to(place) and (best is None or len(place.parts) >= best[0]):
                best = len(place.parts), kind
    return best[1] if best else None


def persistence(path: Path, known: settings.Settings | None = None) -> Persistence:
    """Whether what lies there outlives the server; "unknown" counts as no."""
    if (told := said(path, known)) is not None:
        return told
    try:
        return disk.describe(path).persistence
    except OSError:
        return "unknown"


def remember(path: Path, kind: Persistence) -> None:
    """Keep what the user says of a folder.

    Raises:
        FtuiError: the settings cannot be written.
    """
    known = settings.load()
    real = os.path.realpath(path)
    lists = {}
    for name in ("persistent", "temporary"):
        folders = [part for part in (getattr(known, name) or "").split(":") if part and os.path.realpath(part) != real]
        if name == kind:
            folders.append(real)
        lists[name] = ":".join(folders) or None
    settings.save(**lists)


def is_here(remote: str, known: settings.Settings | None = None) -> bool:
    """Whether a remote is a folder of this server that is not known to outlive it: a copy there saves nothing."""
    return remote.startswith("/") and persistence(Path(remote), known) != "persistent"
