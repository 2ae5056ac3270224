"""A copy of one sealed checkpoint elsewhere: staged, hashed while it is copied, durable, then named."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from engine.checkpoint import manifest
from engine.errors import DoesNotFit, FtuiError, GateError, UsageError
from engine.files import fsync_dir, write_all
from engine.text import _, gigabytes

_PIECE = 4 * 1024 * 1024


def export(source: Path, into: Path, progress: Callable[[int, int], None] | None = None) -> Path:
    """Copy the sealed checkpoint `source` to `into`/<its name>; the new folder.

    Raises:
        GateError: the source is not whole; nothing is left at the destination.
        UsageError: there is something of that name already.
        DoesNotFit: too little room.
        FtuiError: the copy could not be written.
    """
    content = check(source, into)
    target = into / source.name
    staging = into / f".export-{source.name}-{os.getpid()}"
    try:
        into.mkdir(parents=True, exist_ok=True)
        _require_room(into, content.bytes)
        staging.mkdir()
        try:
            _copy_all(source, staging, content, progress)
            if os.path.lexists(target):
                raise _exists(target)
            staging.rename(target)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        fsync_dir(into)
    except OSError as error:
        raise FtuiError(
            _("the copy failed: {reason}").format(reason=error.strerror or error),
            where=str(into),
            fix=_("free space there, or choose another folder; the checkpoint itself is untouched"),
            kind="export",
        ) from error
    return target


def check(source: Path, into: Path) -> manifest.Manifest:
    """What is to be copied, when it may be (see `export`)."""
    content = manifest.read(source)
    if content is None or (bad := manifest.damage(source, content)):
        what = _("it has no readable manifest") if content is None else ", ".join(bad[:5])
        raise GateError(
            _("{name} is not whole: {what}").format(name=source.name, what=what),
            where=str(source),
            fix=_("`ftui ckpt verify` says which checkpoints are"),
            kind="not_whole",
        )
    if os.path.lexists(into / source.name):
        raise _exists(into / source.name)
    return content


def _exists(target: Path) -> UsageError:
    return UsageError(
        _("{path} is there already, and nothing is overwritten").format(path=target),
        where=str(target),
        fix=_("choose another folder"),
        kind="exists",
    )


def _require_room(into: Path, need: int) -> None:
    free = shutil.disk_usage(into).free
    if free < need:
        raise DoesNotFit(
            _("the copy takes {need}, {free} are free").format(need=gigabytes(need), free=gigabytes(free)),
            where=str(into),
            fix=_("free space there, or choose another folder"),
        )


def _copy_all(
    source: Path, staging: Path, content: manifest.Manifest, progress: Callable[[int, int], None] | None
) -> None:
    done = 0
    for name, entry in content.files.items():
        target = staging / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if _copy(source / name, target) != entry["sha256"]:
            raise GateError(
                _("{file} is not what was saved: its hash differs").format(file=name),
                where=str(source),
                fix=_("`ftui ckpt verify` says which checkpoints are whole"),
                kind="not_whole",
            )
        done += int(entry["size"])
        if progress:
            progress(done, content.bytes)
    _copy(source / manifest.NAME, staging / manifest.NAME)  # last, as in a save
    for folder in [staging, *(path for path in staging.rglob("*") if path.is_dir())]:
        fsync_dir(folder)


def _copy(source: Path, target: Path) -> str:
    digest = hashlib.sha256()
    with open(source, "rb", buffering=0) as file:
        fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            while piece := file.read(_PIECE):
                digest.update(piece)
                write_all(fd, piece)
            os.fsync(fd)
        finally:
            os.close(fd)
    with contextlib.suppress(OSError):
        shutil.copystat(source, target)
    return digest.hexdigest()
