"""Rows that are asked and were trained on: what a model answers to them says nothing."""

from __future__ import annotations

import fnmatch
from collections import Counter
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from engine.data.check import FileResult, check_files
from engine.data.duplicates import Prints, overlap
from engine.data.worker import Options
from engine.errors import FtuiError
from engine.files import read_json
from engine.findings import MAX_LINES, Finding
from engine.text import _, gigabytes
from engine.workspace import RunFolder

MOST = 4_000_000_000  # bytes of training data that are read for this


@dataclass
class Leaks:
    """What was found: lines of the asked file that are the same as training rows, and the findings."""

    same: set[int] = field(default_factory=set)
    findings: list[Finding] = field(default_factory=list)
    checked: bool = False

    def to_json(self) -> dict[str, Any]:
        return {"checked": self.checked, "same": len(self.same)}


def check(run: RunFolder, asked: Path, *, held_out: bool) -> Leaks:
    """Compare a file of asked rows with what a run was trained on.

    Args:
        run: the run.
        asked: the file.
        held_out: the rows were taken out of the training files: each is in them once without having been trained on.
    """
    leaks = Leaks()
    files, problem = _sources(run)
    if problem:
        detail = _("whether the rows were trained on could not be checked: {reason}").format(reason=problem)
        leaks.findings.append(Finding("leak_not_checked", "warning", detail))
        return leaks
    try:
        train, theirs = check_files(files, [asked], Options())
    except FtuiError as error:
        detail = _("whether the rows were trained on could not be checked: {reason}").format(reason=error.what)
        leaks.findings.append(Finding("leak_not_checked", "warning", detail))
        return leaks
    known, prints = _joined(train), _joined(theirs)
    own_split = held_out and not _has_own_file(run)
    if own_split:
        known = _without(known, prints)
    found = overlap(known, prints)
    leaks.checked = True
    leaks.same = {int(prints.line[at]) for at in np.flatnonzero(found.same >= 0)}
    near = np.flatnonzero((found.alike >= 0) & (found.same < 0) & (found.prompt < 0))
    asks = (
        ("trained_on", "error", found.same, _("{n} rows are the same as rows that were trained on: they are left out")),
        ("same_prompt", "warning", found.prompt, _("{n} rows have a prompt that was trained on, with another answer")),
    )
    for kind, level, partner, text in asks:
        places = np.flatnonzero(partner >= 0)
        if len(places):
            leaks.findings.append(_finding(kind, level, prints, places, text, asked))
    if len(near):
        text = _("{n} rows are nearly the same as rows that were trained on: new prompts may be harder")
        leaks.findings.append(_finding("nearly_trained_on", "warning", prints, near, text, asked))
    return leaks


def _finding(kind: str, level: Any, prints: Prints, places: Any, text: str, asked: Path) -> Finding:
    lines = [int(line) for line in prints.line[places][:MAX_LINES]]
    fix = _("take them out of one of the two; `ftui data prepare` splits without duplicates")
    return Finding(kind, level, text.format(n=len(places)), fix, lines, len(places), extra={"file": str(asked)})


def _sources(run: RunFolder) -> tuple[list[Path], str | None]:
    """The files that a run was trained on, as they are now, or why they cannot be compared."""
    document = read_json(run.data / "data.json")
    listed = document.get("sources") if isinstance(document, dict) else None
    if not isinstance(listed, list) or not listed:
        return [], _("the run does not say what it was trained on")
    own = str(((run.read_resolved().get("recipe") or {}).get("eval_dataset_path")) or "")
    files = []
    for source in listed:
        path = Path(str(source.get("path")))
        if own and (str(path) == own or path.is_relative_to(own) or fnmatch.fnmatch(str(path), own)):
            continue
        if not path.is_file() or path.stat().st_size != source.get("bytes"):
            return [], _("{path} is gone or was changed since").format(path=path)
        files.append(path)
    if (size := sum(path.stat().st_size for path in files)) > MOST:
        return [], _("{size} of training data; `ftui data check --eval` compares them").format(size=gigabytes(size))
    return files, None


def _has_own_file(run: RunFolder) -> bool:
    return bool((run.read_resolved().get("recipe") or {}).get("eval_dataset_path"))


def _joined(results: list[FileResult]) -> Prints:
    return Prints.join([prints for result in results for prints in result.prints])


def _without(known: Prints, held_out: Prints) -> Prints:
    """The training rows less one for each held-out row."""
    left = Counter(held_out.normal.tolist())
    keep = np.ones(len(known.line), bool)
    for place in np.flatnonzero(np.isin(known.normal, held_out.normal)):
        value = int(known.normal[place])
        if left[value] > 0:
            left[value] -= 1
            keep[place] = False
    return Prints(**{column.name: getattr(known, column.name)[keep] for column in fields(Prints)})
