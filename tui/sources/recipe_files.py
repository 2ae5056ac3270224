"""Which recipes there are to choose from: ours, and what looks like one in the user's folder. No Textual here."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

MOST_FILES = 50
_HEAD = 64 * 1024
_OURS = re.compile(rb"^(?:method|model_name_or_path|dataset_path)\s*:", re.MULTILINE)
"""One of these every recipe of ours has at its top level; other programs' YAML has none."""


def known(folder: Path | None = None) -> list[str]:
    """The demo, the files of a folder (the present one) as `./name`, then the other built-in recipes."""
    from engine import recipe

    try:
        files = sorted(path for pattern in ("*.yaml", "*.yml") for path in (folder or Path()).glob(pattern))
    except OSError:
        files = []
    ours = (f"./{path.name}" for path in files if _looks_like_one(path))
    first, *others = recipe.names()
    return [first, *itertools.islice(ours, MOST_FILES), *others]


def _looks_like_one(path: Path) -> bool:
    if path.name.startswith("."):
        return False
    try:
        if not path.is_file():  # a pipe would be waited for
            return False
        with open(path, "rb") as file:
            return _OURS.search(file.read(_HEAD)) is not None
    except OSError:
        return False
