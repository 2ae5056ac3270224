"""Pinned checkpoints: retention never lets them go. Kept in the run folder, written by `ftui ckpt pin` alone."""

from __future__ import annotations

from pathlib import Path

from engine.files import Lock, read_json, write_json

NAME = "pins.json"
FORMAT = 1


def read(run: Path) -> set[str] | None:
    """The names of the pinned checkpoints; None when the file is there but cannot be understood."""
    path = run / NAME
    if not path.exists():
        return set()
    value = read_json(path)
    names = value.get("checkpoints") if isinstance(value, dict) else None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return None
    return set(names)


def change(run: Path, *, add: str | None = None, remove: str | None = None) -> set[str]:
    """Pin or unpin a checkpoint by its name; the pinned ones afterwards.

    Raises:
        ValueError: the file is there and cannot be understood; it is left as it is.
        OSError: it could not be written.
    """
    with Lock(run / f".{NAME}.lock").held():
        names = read(run)
        if names is None:
            raise ValueError(NAME)
        if add:
            names.add(add)
        names.discard(remove or "")
        write_json(run / NAME, {"format": FORMAT, "checkpoints": sorted(names)})
        return names
