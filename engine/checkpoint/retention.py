"""Which checkpoints to let go: after a new one is sealed, never before."""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection, Iterable
from pathlib import Path

from engine.checkpoint import ledger, pins
from engine.files import read_json

_LEFT_OVER = re.compile(r"\.(staging|retired|replaced)-")


def protected(run_backup: Path) -> set[str] | None:
    """The names in backup/protected.json and the pinned ones; None when a file is there that cannot be understood."""
    pinned = pins.read(run_backup.parent)
    path = run_backup / "protected.json"
    if not path.exists():
        return pinned
    value = read_json(path)
    names = value.get("checkpoints") if isinstance(value, dict) else None
    if pinned is None or not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return None
    return pinned | set(names)


def to_go(
    entries: Iterable[ledger.Entry], limit: int, *, best: str | None, keep: Collection[str]
) -> list[ledger.Entry]:
    """The sealed checkpoints that are neither among the newest `limit` whole ones, nor the best, nor in `keep`."""
    sealed = [entry for entry in entries if entry.sealed]
    # What cannot be resumed from must not push out what can: the newest of those count.
    whole = [entry.path.name for entry in sealed if entry.resumable]
    stay = {*whole[-limit:], *keep}
    if best:
        stay.add(Path(best).name)
    return [entry for entry in sealed if entry.path.name not in stay]


def retire(
    checkpoints: Path,
    limit: int | None,
    *,
    best: str | None = None,
    keep: Collection[str] | None = (),
) -> list[Path]:
    """Delete all sealed checkpoints but the newest `limit`, the best and those in `keep`; the deleted ones.

    `keep` None means that it is not known what must stay: nothing is deleted. A folder without a seal is not ours
    to delete. The folder is renamed first, so that a kill in between leaves no half of a checkpoint behind.
    """
    if not limit or limit < 1 or keep is None:
        return []
    gone = []
    for entry in to_go(ledger.list(checkpoints), limit, best=best, keep=keep):
        doomed = entry.path.with_name(f".retired-{entry.path.name}")
        entry.path.rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)
        gone.append(entry.path)
    return gone


def clean(checkpoints: Path) -> list[str]:
    """Remove what killed saves and deletions left and tell their names; only for the ranks, before they write."""
    if not checkpoints.is_dir():
        return []
    names = sorted(path.name for path in checkpoints.iterdir() if path.is_dir() and _LEFT_OVER.match(path.name))
    for name in names:
        original = checkpoints / name.removeprefix(".replaced-")
        if name.startswith(".replaced-") and not original.exists():
            (checkpoints / name).rename(original)  # killed between the two renames of a replacement
        else:
            shutil.rmtree(checkpoints / name, ignore_errors=True)
    return names
