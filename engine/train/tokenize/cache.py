"""Tokenized data kept for the next run with the same rows, tokenizer and settings: <home>/cache/tokens/KEY.

A run's data folder and the cache share their files by hard links: each is whole without the other, a backup of the
run holds all of it, and it lies on the disk once. Where links cannot be made (another file system) it is copied.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from pathlib import Path
from typing import Any

from engine.files import read_json

UNUSED_DAYS = 14
DOCUMENT = "data.json"


def take(cache: Path, key: str, folder: Path) -> dict[str, Any] | None:
    """Put what the cache has under a key into a run's data folder; its data.json, or None."""
    kept = cache / "tokens" / key
    document = read_json(kept / DOCUMENT)
    if not isinstance(document, dict):
        return None
    try:
        for path, size in document["files"].items():
            if (kept / path).stat().st_size != size:
                return None
        _link(kept, folder, document["files"])
        os.utime(kept)
    except (OSError, KeyError, AttributeError):
        for path in folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        return None
    document.pop("files")
    return document


def keep(cache: Path, key: str, folder: Path) -> None:
    """Keep a run's new data folder. Nothing is lost where that fails: the next run tokenizes again."""
    from engine.files import write_json

    target = cache / "tokens" / key
    staging = target.with_name(f".new-{os.getpid()}-{key[:16]}")
    with contextlib.suppress(OSError):
        if target.exists():
            return
        _prune(target.parent)
        staging.mkdir(parents=True)
        try:
            sizes = {
                str(path.relative_to(folder)): path.stat().st_size
                for path in sorted(folder.rglob("*"))
                if path.is_file() and path.name != DOCUMENT
            }
            _link(folder, staging, sizes)
            document = read_json(folder / DOCUMENT)
            if isinstance(document, dict):
                write_json(staging / DOCUMENT, {**document, "files": sizes}, durable=False)
                staging.rename(target)
        finally:
            shutil.rmtree(staging, ignore_errors=True)


def _link(source: Path, target: Path, files: dict[str, int]) -> None:
    for name in files:
        destination = target / name
        destination.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source / name, destination)
        except OSError:
            shutil.copyfile(source / name, destination)


def _prune(folder: Path) -> None:
    """Forget what no run holds any more and nobody used for long."""
    try:
        entries = list(folder.iterdir())
    except FileNotFoundError:
        return
    old = time.time() - UNUSED_DAYS * 86400
    for entry in entries:
        with contextlib.suppress(OSError):
            held = any(path.stat().st_nlink > 1 for path in entry.rglob("*") if path.is_file())
            if not held and entry.stat().st_mtime < old:
                shutil.rmtree(entry)
