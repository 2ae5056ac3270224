"""At the end: keep the best adapter and the reports at the remote, remove the rest, after a preview.

Only objects that the ledger or the layout of a run's copy names are removed, and nothing before what stays
was seen there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from engine.backup import items, verify
from engine.backup.ledger import MANIFESTS, Ledger
from engine.backup.rclone import RcloneError
from engine.backup.remote import Remote
from engine.checkpoint import ledger as checkpoints
from engine.checkpoint import pruning
from engine.errors import GateError
from engine.text import _
from engine.workspace import RunFolder

ROWS = ("data/train/", "data/eval/")


@dataclass
class Plan:
    """What goes and what stays, as paths below the run's folder at the remote."""

    goes: dict[str, int] = field(default_factory=dict)
    stays: dict[str, int] = field(default_factory=dict)
    kept: str | None = None  # the item whose model stays

    @property
    def bytes(self) -> int:
        return sum(self.goes.values())

    def to_json(self) -> dict[str, Any]:
        return {
            "goes": sorted(self.goes),
            "goes_bytes": self.bytes,
            "stays_files": len(self.stays),
            "stays_bytes": sum(self.stays.values()),
            "kept": self.kept,
        }


def plan(run: RunFolder, remote: Remote, ledger: Ledger, *, keep_rows: bool = False) -> Plan:
    """What would be removed: all but the final model (else the best adapter) and the run's own files and reports.

    Raises:
        GateError: there is no model there that was proved, so nothing may go.
    """
    there = remote.listing()
    kept = _kept(run, ledger)
    if kept is None:
        raise GateError(
            _("no model of {run} is proved there: nothing may be removed").format(run=run.name),
            where=remote.path,
            fix=_("`ftui backup now {run}` sends and proves it").format(run=run.name),
            kind="nothing_safe",
        )
    made = Plan(kept=kept)
    for path, size in there.items():
        top = path.split("/")[0]
        model = top in ("checkpoints", "adapters", "final")
        stays = path.startswith(f"{kept}/") if model else keep_rows or not path.startswith(ROWS)
        (made.stays if stays else made.goes)[path] = size
    return made


def _kept(run: RunFolder, ledger: Ledger) -> str | None:
    if ledger.items.get("final") is not None and ledger.item("final").safe:
        return "final"
    best = pruning.best_of(checkpoints.list(run.checkpoints))
    for folder in ("adapters", "checkpoints"):
        if best and ledger.items.get(f"{folder}/{best}") is not None and ledger.item(f"{folder}/{best}").safe:
            return f"{folder}/{best}"
    return None


def remove(plan: Plan, remote: Remote, ledger: Ledger) -> int:
    """Do it; how many objects were removed. What stays is asked for once more first.

    Raises:
        GateError: something that is to stay is not right there any more; nothing was removed.
        RcloneError: the server refuses.
    """
    assert plan.kept is not None
    wrong = []
    for name, record in ledger.item(plan.kept).files.items():
        result = verify.check(remote, f"{plan.kept}/{name}", record, None)
        if result.answer != "ok":
            wrong.append(f"{name}: {result.answer}")
    if wrong:
        raise GateError(
            _("what is to stay is not right there: {files}").format(files="; ".join(wrong[:5])),
            where=f"{remote.path}/{plan.kept}",
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
        if item != plan.kept and item.split("/")[0] in ("checkpoints", "adapters", "final"):
            ledger.pruned(item)
    if any(path.startswith(ROWS) for path in plan.goes):
        ledger.pruned(items.ROWS)
    for path in plan.goes:
        if path.startswith(ROWS) and path in ledger.item("run").files:
            ledger.pruned("run", path)
    return removed
