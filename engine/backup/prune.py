"""At the end: keep the best adapter and the reports at the remote, remove the rest, after a preview.

Only objects that the ledger or the layout of a run's copy names are removed, and nothing before what stays
was seen there.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.backup import hashing, items, verify
from engine.backup.ledger import MANIFESTS, FileRecord, Ledger
from engine.backup.rclone import RcloneError
from engine.backup.remote import Remote
from engine.checkpoint import ledger as checkpoints
from engine.checkpoint import pruning
from engine.errors import GateError
from engine.files import write_json
from engine.text import _
from engine.workspace import RunFolder

ROWS = ("data/train/", "data/eval/")


@dataclass
class Plan:
    """What goes and what stays, as paths below the run's folder at the remote."""

    goes: dict[str, int] = field(default_factory=dict)
    stays: dict[str, int] = field(default_factory=dict)
    kept: list[str] = field(default_factory=list)  # the items that stay
    split: str | None = None  # the best checkpoint, of which the adapter alone stays

    @property
    def bytes(self) -> int:
        return sum(self.goes.values())

    def to_json(self) -> dict[str, Any]:
        return {
            "goes": sorted(self.goes),
            "goes_bytes": self.bytes,
            "stays_files": len(self.stays),
            "stays_bytes": sum(self.stays.values()),
            "kept": self.kept + ([f"adapters/{self.split}"] if self.split else []),
        }


def plan(run: RunFolder, remote: Remote, ledger: Ledger, *, keep_rows: bool = False) -> Plan:
    """What would be removed: all but the final model, the best adapter and the run's own files and reports.

    Of the best checkpoint the adapter alone stays, as adapters/checkpoint-N; where it holds a whole model, all of it
    does, unless there is a final one.

    Raises:
        GateError: there is no model there that was proved, so nothing may go.
    """
    there = remote.listing()
    made = _kept(run, ledger)
    if not made.kept and made.split is None:
        raise GateError(
            _("no model of {run} is proved there: nothing may be removed").format(run=run.name),
            where=remote.path,
            fix=_("`ftui backup now {run}` sends and proves it").format(run=run.name),
            kind="nothing_safe",
        )
    for path, size in there.items():
        model = path.split("/")[0] in ("checkpoints", "adapters", "final")
        stays = (
            path.startswith(tuple(f"{name}/" for name in made.kept))
            if model
            else keep_rows or not path.startswith(ROWS)
        )
        (made.stays if stays else made.goes)[path] = size
    return made


def _kept(run: RunFolder, ledger: Ledger) -> Plan:
    def safe(name: str) -> bool:
        return name in ledger.items and ledger.item(name).safe

    made = Plan(kept=["final"] if safe("final") else [])
    best = pruning.best_of(checkpoints.list(run.checkpoints))
    if best is None:
        return made
    if safe(f"adapters/{best}"):
        made.kept.append(f"adapters/{best}")
    elif safe(f"checkpoints/{best}"):
        if any(name.startswith("adapter_model") for name in ledger.item(f"checkpoints/{best}").files):
            made.split = best
        elif not made.kept:
            made.kept.append(f"checkpoints/{best}")
    return made


def _hashes(file: FileRecord) -> hashing.Hashes:
    return hashing.Hashes(file.stamp, file.sha256, file.part_size, file.parts, file.etag, file.md5)


def _split(best: str, remote: Remote, ledger: Ledger) -> str:
    """Copy the adapter out of a checkpoint, on the server, with a manifest of its own, and prove it; the new item."""
    source, name = f"checkpoints/{best}", f"adapters/{best}"
    files = {path: file for path, file in ledger.item(source).files.items() if items.ADAPTER.match(path)}
    ledger.expects(name, len(files))
    for path, file in files.items():
        ledger.hashed(name, path, _hashes(file))
        ledger.sending(name, path)
        remote.job(
            "operations/copyfile",
            srcFs=remote.fs(file.size),
            srcRemote=f"{source}/{path}",
            dstFs=remote.fs(file.size),
            dstRemote=f"{name}/{path}",
            _config={"IgnoreTimes": True},
        )
        ledger.uploaded(name, path, None, "copied")
    known = {path: {"size": file.size, "sha256": file.sha256} for path, file in files.items()}
    with tempfile.TemporaryDirectory(prefix="ftui-") as folder:
        made = Path(folder) / MANIFESTS[0]
        write_json(made, {"format": 1, "step": int(best.rpartition("-")[2]), "files": known})
        ledger.hashed(name, made.name, hashing.hash_file(made))
        ledger.sending(name, made.name)
        remote.put(made, f"{name}/{made.name}")
    ledger.uploaded(name, made.name, None)
    ledger.committed(name)
    return name


def remove(plan: Plan, remote: Remote, ledger: Ledger) -> int:
    """Do it; how many objects were removed. What stays is asked for once more first.

    Raises:
        GateError: something that is to stay is not right there any more; nothing was removed.
        RcloneError: the server refuses.
    """
    kept = [*plan.kept, *([_split(plan.split, remote, ledger)] if plan.split else [])]
    wrong = []
    for item in kept:
        for name, record in ledger.item(item).files.items():
            result = verify.check(remote, f"{item}/{name}", record, None)
            if result.answer != "ok":
                wrong.append(f"{item}/{name}: {result.answer}")
            else:
                ledger.verified(item, name, result.how)
    if wrong:
        raise GateError(
            _("what is to stay is not right there: {files}").format(files="; ".join(wrong[:5])),
            where=remote.path,
            fix=_("`ftui backup verify` says more, `ftui backup now` sends it again"),
            kind="kept_is_damaged",
        )
    # manifests first: from then on nobody takes what is left for a whole checkpoint
    order = sorted(plan.goes, key=lambda path: (path.rpartition("/")[2] not in MANIFESTS, path))
    removed = 0
    for path in order:
        try:
            remote.delete(path)
        except RcloneError as error:
            raise RcloneError(error.text, cause=error.cause, where=f"{remote.path}/{path}") from None
        removed += 1
    for item in list(ledger.items):
        if item not in kept and item.split("/")[0] in ("checkpoints", "adapters", "final"):
            ledger.pruned(item)
    if any(path.startswith(ROWS) for path in plan.goes):
        ledger.pruned(items.ROWS)
    for path in plan.goes:
        if path.startswith(ROWS) and path in ledger.item("run").files:
            ledger.pruned("run", path)
    return removed
