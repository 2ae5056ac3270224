"""MANIFEST.json: the seal of a checkpoint, and the commit that writes it last.

A checkpoint is written to a staging folder beside its final place. Sealing hashes every file, makes files and
folders durable, writes the manifest, renames the folder and makes the rename durable: whatever is killed when,
a folder with a manifest is whole, and a folder without one was never a checkpoint.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from engine.files import fsync_dir, read_json, sha256_file, write_json
from engine.text import _

NAME = "MANIFEST.json"
WEIGHTS = "weights"  # the tier of a checkpoint of which only those were kept
FORMAT = 1
MAX_RANKS = 100_000  # the files that each rank must have are counted: a damaged number must not take all memory
_READERS = 4  # hashing waits for the disk as much as for the processor; hashlib runs without the interpreter lock


@dataclass
class Manifest:
    """What a sealed checkpoint holds: `files` maps each path inside it to its size and SHA-256.

    `tier` is "full", or "weights" where only those were kept.
    """

    step: int
    world_size: int = 1
    attempt: int = 0
    versions: dict[str, str] = field(default_factory=dict)
    recipe_sha256: str | None = None
    data_sha256: str | None = None
    metrics: dict[str, Any] = field(default_factory=dict)
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    format: int = FORMAT
    tier: str = "full"

    @property
    def bytes(self) -> int:
        """The size of all files together."""
        return sum(int(entry["size"]) for entry in self.files.values())


def read(folder: Path) -> Manifest | None:
    """The manifest of a checkpoint; None when it is absent, damaged, or of a format that this version cannot read."""
    value = read_json(folder / NAME)
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        return None
    known = {key: value[key] for key in Manifest.__dataclass_fields__ if key in value}
    try:
        manifest = Manifest(**known)
        valid = (
            isinstance(manifest.step, int)
            and isinstance(manifest.attempt, int)
            and isinstance(manifest.world_size, int)
            and 0 < manifest.world_size <= MAX_RANKS
            and isinstance(manifest.versions, dict)
            and isinstance(manifest.tier, str)
            and isinstance(manifest.metrics, dict)
            and all(
                isinstance(entry["size"], int) and isinstance(entry["sha256"], str) and is_inside(name)
                for name, entry in manifest.files.items()
            )
        )
    except (TypeError, KeyError, AttributeError):
        return None
    return manifest if valid else None


def is_inside(name: str) -> bool:
    """Whether a path of a manifest stays inside its checkpoint."""
    return not name.startswith("/") and "\0" not in name and (".." not in name or ".." not in name.split("/"))


def _hash_and_sync(path: Path) -> dict[str, Any]:
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        os.fsync(file.fileno())
        return {"size": os.fstat(file.fileno()).st_size, "sha256": digest}


def seal(
    staging: Path, final: Path, meta: dict[str, Any], known: Mapping[str, dict[str, Any]] | None = None
) -> Manifest:
    """Turn the finished content of `staging` into the checkpoint `final`.

    A checkpoint that already has that name (an earlier attempt reached the same step, or it is broken) is
    replaced, and only once the new one is durable.

    Args:
        staging: a folder on the same file system as `final`; nobody writes to it any more.
        final: where the checkpoint is to be.
        meta: fields of the manifest, at least `step`.
        known: entries of files that were hashed while they were written and are durable; the others are read.

    Raises:
        OSError: nothing was sealed; `staging` is still there.
    """
    known = known or {}
    names = sorted(
        path.relative_to(staging).as_posix() for path in staging.rglob("*") if path.is_file() and path.name != NAME
    )
    for name, entry in known.items():
        if os.stat(staging / name).st_size != entry["size"]:  # another writer, or a file system that lost a part
            raise OSError(errno.EIO, _("a file is not as long as what was written"), str(staging / name))
    rest = [name for name in names if name not in known]
    with ThreadPoolExecutor(_READERS) as pool:
        read = dict(zip(rest, pool.map(lambda name: _hash_and_sync(staging / name), rest), strict=True))
    manifest = Manifest(**meta, files={name: known.get(name) or read[name] for name in names})
    for folder in [path for path in staging.rglob("*") if path.is_dir()]:
        fsync_dir(folder)
    write_json(staging / NAME, asdict(manifest))
    old = final.with_name(f".replaced-{final.name}")
    if final.exists():
        shutil.rmtree(old, ignore_errors=True)
        final.rename(old)
    staging.rename(final)
    fsync_dir(final.parent)
    shutil.rmtree(old, ignore_errors=True)
    return manifest


def damage(folder: Path, manifest: Manifest, *, check_hash: bool = False) -> list[str]:
    """The files that are missing or not as the manifest says ([] when all is well)."""
    bad = []
    for name, entry in manifest.files.items():
        path = f"{folder}/{name}"  # a Path for each file would double the time of a long list
        try:
            if os.stat(path).st_size != entry["size"] or (check_hash and sha256_file(Path(path)) != entry["sha256"]):
                bad.append(name)
        except OSError:
            bad.append(name)
    return bad
