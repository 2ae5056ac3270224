"""What this machine has of the hub, without asking the hub."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

TRUE = frozenset(("1", "true", "yes", "on"))  # as huggingface_hub reads its switches


def offline() -> bool:
    """Whether the libraries were told to stay off the hub."""
    return any(os.environ.get(name, "").lower() in TRUE for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))


def cache() -> Path:
    """Where the libraries keep what they downloaded."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if value := os.environ.get(name):
            return Path(value).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or f"{shared}/huggingface"
    return Path(os.path.expandvars(home)).expanduser() / "hub"


def snapshots(name: str, revision: str | None = None) -> Iterator[Path]:
    """The folders of a model in the cache that hold a config.json; all revisions where none is named."""
    folder = cache() / ("models--" + name.replace("/", "--"))
    wanted = revision
    if revision is not None:
        try:
            wanted = (folder / "refs" / revision).read_text().strip()
        except (OSError, ValueError):
            wanted = revision  # a commit
    try:
        found = sorted((folder / "snapshots").iterdir())
    except OSError:
        return
    for snapshot in found:
        if wanted in (None, snapshot.name) and (snapshot / "config.json").is_file():
            yield snapshot
