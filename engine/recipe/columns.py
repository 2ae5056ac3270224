"""`dataset_columns`: what the data calls the columns that training reads."""

from __future__ import annotations

import difflib
from typing import Any

from engine.recipe.values import Unusable, shown
from engine.text import _

KEY = "dataset_columns"
NAMES = (
    "messages", "conversations", "role", "content", "instruction", "input", "output", "prompt", "completion", "text",
    "chosen", "rejected", "tools", "system",
)  # fmt: skip


def checked(value: Any) -> Any:
    """The mapping, from our names to those of the data.

    Raises:
        Unusable: a name that is not ours, or one that stands for nothing.
    """
    if value is None:
        return None
    for ours, theirs in value.items():
        if ours not in NAMES:
            near = difflib.get_close_matches(str(ours), NAMES, 1)
            fix = _("did you mean '{key}'?").format(key=near[0]) if near else _("use: {names}")
            detail = _("{key}: '{name}' is not a column that can be mapped").format(key=KEY, name=shown(ours))
            raise Unusable("unknown_column", detail, fix.format(names=", ".join(NAMES)))
        if not isinstance(theirs, str) or not theirs:
            detail = _("{key}: {name} needs the name of a column").format(key=KEY, name=ours)
            raise Unusable("wrong_type", detail, _("write {name}: the column's name").format(name=ours))
    if len(set(value.values())) != len(value):
        detail = _("{key}: one column is mapped twice").format(key=KEY)
        raise Unusable("wrong_type", detail, _("give each of our names a column of its own"))
    return value


def of(recipe: Any) -> dict[str, str]:
    """The mapping of a resolved recipe, with the column of plain text where it has another name.

    Args:
        recipe: whatever has `get`: a resolved recipe, a job.
    """
    columns = dict(recipe.get(KEY) or {})
    field = str(recipe.get("dataset_text_field") or "text")
    return columns if field == "text" else {"text": field, **columns}
