"""Two checkpoints side by side, as lines of text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine.text import _, gigabytes
from tui.state.checkpoints import CheckpointRow
from tui.widgets.figures import loss, whole


def compared(a: CheckpointRow, b: CheckpointRow) -> list[str]:
    """Two checkpoints side by side: losses, sizes, what they were made with; only what differs of the latter."""
    from engine.checkpoint import manifest

    first, second = manifest.read(Path(a.path)), manifest.read(Path(b.path))
    rows = [
        ("", whole(a.step), whole(b.step)),
        (_("loss"), loss(a.loss), loss(b.loss)),
        (_("eval"), loss(a.eval_loss), loss(b.eval_loss)),
        (_("size"), gigabytes(a.bytes), gigabytes(b.bytes)),
    ]
    if first is not None and second is not None:
        metrics = sorted({*first.metrics, *second.metrics} - {"loss", "eval_loss"})
        rows += [(key, _value(first.metrics.get(key)), _value(second.metrics.get(key))) for key in metrics]
        facts = [
            (_("attempt"), first.attempt, second.attempt),
            (_("ranks"), first.world_size, second.world_size),
            (_("recipe"), (first.recipe_sha256 or "")[:12], (second.recipe_sha256 or "")[:12]),
            (_("data"), (first.data_sha256 or "")[:12], (second.data_sha256 or "")[:12]),
        ]
        names = sorted({*first.versions, *second.versions})
        facts += [(name, first.versions.get(name), second.versions.get(name)) for name in names]
        different = [(name, _value(x), _value(y)) for name, x, y in facts if x != y]
        rows += different or [(_("made with"), _("the same"), _("the same"))]
    return [f"{name:<24} {x:>18} {y:>18}" for name, x, y in rows]


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return "-" if value is None else str(value)
