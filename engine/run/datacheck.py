"""A start's look at the data: quick whatever its size, so that a run does not fail at a row minutes later.

`ftui data check` reads everything; this reads the beginning, and says so where it did not come to the end.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from engine.errors import UsageError
from engine.findings import Finding
from engine.recipe.paths import DATA_KEYS, is_path, source
from engine.text import _, number

if TYPE_CHECKING:
    from engine.data.training import How
    from engine.recipe.model import Recipe

SECONDS = 1.5  # for all files together
READ_CLOSELY = 300  # first rows of a file that are searched for everything, not for errors alone
NAMED = 50  # rows of a file that cannot be trained on, and whose reason is looked for
FORCIBLE = "forcible"  # in `Finding.extra`: --force goes on without these rows


class _Reading(NamedTuple):
    """How the recipe's rows are read."""

    text_field: str
    task: str
    how: How


@dataclass
class _Seen:
    """What the look at one source found so far."""

    rows: int = 0
    good: int = 0
    whole: bool = True
    forms: dict[str, str] = field(default_factory=dict)  # the first row of each


def look(recipe: Recipe, workspace: Path | None = None, *, seconds: float = SECONDS) -> list[Finding]:
    """Errors and warnings of the first rows of a recipe's data; their `extra["file"]` says whose lines they name.

    Args:
        recipe: the recipe; `recipe.check` has seen that its paths lead somewhere.
        workspace: its root, where the list of dropped rows is; None takes the user's.
        seconds: when to stop reading.
    """
    until = time.monotonic() + seconds
    found: list[Finding] = []
    reading: _Reading | None = None
    for key in DATA_KEYS:
        value = recipe.get(key)
        if is_path(key, value):
            reading = reading or _reading(recipe, workspace)
            for finding in _source(str(value), reading, until):
                finding.key = key
                found.append(finding)
        elif isinstance(value, str) and source(key, value) in ("hub", "remote"):
            detail = _("{name} is fetched when the run starts, and not looked at before").format(name=value)
            fix = _("`ftui data check {name}` fetches and checks it now").format(name=value)
            found.append(Finding("data_sampled", "note", detail, fix, key=key, extra={"file": value}))
    return found


def _reading(recipe: Recipe, workspace: Path | None) -> _Reading:
    from engine.data import drops, training
    from engine.workspace import locate

    how = training.How(dict(recipe.get("dataset_columns") or {}), drops.read(workspace or locate().root))
    return _Reading(str(recipe.get("dataset_text_field") or "text"), recipe.task, how)


def _source(name: str, reading: _Reading, until: float) -> Iterator[Finding]:
    from engine.data import sources

    seen = _Seen()
    every = _("`ftui data check {file}` lists them all").format(file=name)
    try:
        for file in sources.resolve([name]):
            if time.monotonic() > until:
                seen.whole = False
                break
            for finding in _file(file, reading, until, seen):
                if finding.level == "error":
                    finding.extra[FORCIBLE] = True
                if finding.level != "note":
                    yield finding
    except UsageError as error:
        yield Finding(error.kind, "error", error.what, error.fix or "", extra={"file": error.where or name})
        return
    if len(seen.forms) > 1:
        firsts = ", ".join(f"{form} ({first})" for form, first in seen.forms.items())
        detail = _("rows of several forms cannot be trained together: {forms}").format(forms=firsts)
        yield Finding(
            "mixed_formats", "error", detail, _("give the rows of one form"), extra={"file": name, FORCIBLE: True}
        )
    if seen.whole and not seen.good:
        yield Finding("no_rows", "error", _("no row can be trained on"), every, extra={"file": name})
    elif not seen.whole:
        detail = _("only the first {n} rows were looked at").format(n=number(seen.rows))
        fix = _("`ftui data check {file}` reads all of it").format(file=name)
        yield Finding("data_sampled", "note", detail, fix, extra={"file": name})


def _file(file: Path, reading: _Reading, until: float, seen: _Seen) -> Iterator[Finding]:
    from engine.data import training
    from engine.data.tally import Tally
    from engine.data.worker import Block, check_block

    tally = Tally()
    closely: list[tuple[int, Any]] = []
    bad: dict[tuple[str, str | None], Finding] = {}
    named = 0
    text_field, task, how = reading
    for row in training.rows(file, tally, text_field, task, how):
        if row.dropped:
            continue
        seen.rows += 1
        if row.form is not None:
            seen.good += 1
            seen.forms.setdefault(row.form, f"{file}:{row.line}")
            if len(closely) < READ_CLOSELY:
                closely.append((row.line, row.value))
        elif named < NAMED:
            named += 1
            why = training.problem(row, text_field, task, how)
            known = bad.setdefault((why.kind, why.subtype), why)
            if known is not why:
                known.lines.append(row.line)
                known.count += 1
        if time.monotonic() > until:
            seen.whole = False
            break
    if closely:
        tally.merge(check_block(Block(0, 0, closely), training.options(text_field, how.columns)).tally)
    for finding in bad.values():
        finding.extra["file"] = str(file)
        yield finding
    yield from tally.findings(str(file))
