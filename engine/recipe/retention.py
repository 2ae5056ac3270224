"""`retention`: which checkpoints stay, when there are more than are wanted or than there is room for."""

from __future__ import annotations

import difflib
import math
from typing import Any

from engine.recipe.values import Unusable, shown
from engine.text import _

KEY = "retention"
COUNTS = {"keep_last": 1, "keep_best": 0, "keep_every": 1}  # key -> the least that makes sense
SIZES = ("max_gb", "min_free_gb")
SWITCHES = ("greater_is_better", "weights_only")
NAMES = (*COUNTS, "metric", *SWITCHES, *SIZES)


def checked(value: Any) -> Any:
    """The mapping as written, its values of the right kind.

    Raises:
        Unusable: a name that is not ours, or a value that it cannot take; `inner` says which.
    """
    if value is None:
        return None
    for name, given in value.items():
        if name not in NAMES:
            near = difflib.get_close_matches(str(name), NAMES, 1)
            fix = _("did you mean '{key}'?").format(key=near[0]) if near else _("use: {names}")
            detail = _("{key}: '{name}' is no rule for keeping checkpoints").format(key=KEY, name=shown(name))
            raise Unusable("unknown_key", detail, fix.format(names=", ".join(NAMES)), inner=str(name))
        if given is not None:
            _check(name, given)
    if value.get("greater_is_better") is not None and not value.get("metric"):
        detail = _("{key}: greater_is_better says nothing without a metric").format(key=KEY)
        raise Unusable("conflict", detail, _("name the metric"), inner="greater_is_better")
    return value


def _check(name: str, given: Any) -> None:
    number = isinstance(given, int | float) and not isinstance(given, bool) and math.isfinite(given)
    fix = ""
    if name in COUNTS and not (number and float(given).is_integer() and given >= COUNTS[name]):
        fix = _("give a whole number, at least {n}").format(n=COUNTS[name])
    elif name in SIZES and not (number and given > 0):
        fix = _("give a number of GB above 0")
    elif name in SWITCHES and not isinstance(given, bool):
        fix = _("give true or false")
    elif name == "metric" and not (isinstance(given, str) and given.strip()):
        fix = _("name what the evaluation reports, for example eval_loss")
    if fix:
        detail = _("{key}: {name} cannot be {value}").format(key=KEY, name=name, value=shown(given))
        kind = "wrong_type" if not number or name in ("metric", *SWITCHES) else "out_of_range"
        raise Unusable(kind, detail, fix, inner=name)
