"""backup/protected.json: the checkpoints that retention must not delete, since their copy is not proved yet."""

from __future__ import annotations

from collections.abc import Sequence

from engine.backup.items import Item
from engine.backup.ledger import Ledger
from engine.backup.policy import Policy
from engine.files import read_json, write_json
from engine.workspace import RunFolder


def update(run: RunFolder, policy: Policy, ledger: Ledger, items: Sequence[Item]) -> set[str]:
    """Protect what is wanted and not proved at the policy's level, and nothing else; the names.

    With `adapter_only` the proof of the adapter is what lets a checkpoint go.
    """
    names = {
        item.name.rpartition("/")[2]
        for item in items
        if item.step is not None and item.name != "final" and not ledger.item(item.name).proved(policy.verify)
    }
    path = run.path / "backup" / "protected.json"
    wanted = {"format": 1, "checkpoints": sorted(names)}
    if read_json(path) != wanted:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, wanted)
    return names
