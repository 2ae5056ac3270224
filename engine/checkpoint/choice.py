"""Which checkpoint to go on from, by content and not by name, at a bounded cost.

A checkpoint is read and hashed once; what was found is remembered in the run folder with the names, sizes and times
of its files, and holds for as long as they stay what they were. A restart after a crash therefore costs one reading
of the newest checkpoint at most, and a second restart from the same one costs a few `stat`.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.checkpoint import ledger, tree, verify
from engine.checkpoint.problems import Problems
from engine.files import read_json, write_json
from engine.text import _

NAME = "verified.json"
FORMAT = 1


@dataclass(frozen=True)
class Choice:
    """What to resume from. `exact`: the run goes on as if it had never stopped (on as many ranks).

    `skipped` names, for people, those that are newer or were asked for, and why they cannot be taken.
    """

    entry: ledger.Entry | None
    exact: bool = False
    skipped: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Verdict:
    resumable: bool
    exact: bool
    problem: str | None


def choose(
    checkpoints: Path, *, step: int | None = None, at_most: int | None = None, most_bytes: int | None = None
) -> Choice:
    """The newest checkpoint of a run whose content is right, or the one at `step`.

    One that would resume, but not exactly, is taken only where there is no exact one.

    Args:
        checkpoints: the run's folder of checkpoints.
        step: this one or none.
        at_most: none beyond this step (what came later is to be forgotten).
        most_bytes: read no more than this; larger checkpoints are judged by names, sizes and headers.
    """
    memory = _Memory(checkpoints)
    skipped: list[str] = []
    second: tuple[ledger.Entry, str | None] | None = None
    left = most_bytes
    chosen: Choice | None = None
    for entry in reversed(ledger.list(checkpoints)):
        if (step is not None and entry.step != step) or (at_most is not None and entry.step > at_most):
            continue
        if entry.state == "staging" or not entry.sealed:
            skipped.append(f"{entry.path.name}: {entry.problem}")
            continue
        verdict = memory.of(entry.path)
        if verdict is None:
            quick = left is not None and entry.bytes > left
            if left is not None and not quick:
                left -= entry.bytes
            verdict = _look(entry, quick=quick)
            if not quick:
                memory.note(entry.path, verdict)
        if verdict.resumable and verdict.exact:
            if second is not None:
                skipped.append(f"{second[0].path.name}: {second[1]}")
            chosen = Choice(entry, True, skipped)
            break
        if verdict.resumable and second is None:
            second = (entry, verdict.problem)
        else:
            skipped.append(f"{entry.path.name}: {verdict.problem}")
    memory.keep()
    return chosen or Choice(second[0] if second else None, False, skipped)


def _look(entry: ledger.Entry, *, quick: bool) -> _Verdict:
    report = verify.verify(entry.path, quick=quick)
    if not report.checkpoints:  # retired just now
        return _Verdict(False, False, _("it is gone"))
    checked = report.checkpoints[0]
    # Another attempt's step or a missing random state is told by the manifest, which `verify` has read as well.
    problem = next((found.detail for found in checked.findings if found.level != "note"), None)
    return _Verdict(checked.resumable, checked.exact, problem or entry.problem)


class _Memory:
    """verified.json of a run: what was read, and what the files looked like then."""

    def __init__(self, checkpoints: Path) -> None:
        self.path = checkpoints.parent / NAME
        self.checkpoints = checkpoints
        value = read_json(self.path)
        known = value.get("checkpoints") if isinstance(value, dict) and value.get("format") == FORMAT else None
        self._known: dict[str, Any] = known if isinstance(known, dict) else {}
        self._changed = False

    def of(self, checkpoint: Path) -> _Verdict | None:
        """What was found when the files were the same as now."""
        known = self._known.get(checkpoint.name)
        if not isinstance(known, dict) or known.get("stamp") != stamp(checkpoint):
            return None
        resumable, exact, problem = known.get("resumable"), known.get("exact"), known.get("problem")
        if not isinstance(resumable, bool) or not isinstance(exact, bool):
            return None
        return _Verdict(resumable, exact, problem if isinstance(problem, str) else None)

    def note(self, checkpoint: Path, verdict: _Verdict) -> None:
        self._known[checkpoint.name] = {
            "stamp": stamp(checkpoint),
            "resumable": verdict.resumable,
            "exact": verdict.exact,
            "problem": verdict.problem,
        }
        self._changed = True

    def keep(self) -> None:
        """Write it down; where that cannot be done (a full or read-only disk) the next one reads again."""
        if not self._changed:
            return
        there = {name: value for name, value in self._known.items() if (self.checkpoints / name).is_dir()}
        try:
            write_json(self.path, {"format": FORMAT, "checkpoints": there}, durable=False)
        except OSError:
            return


def stamp(checkpoint: Path) -> str:
    """Names, sizes, times and numbers of all files of a checkpoint, as one hash: it differs when any is touched."""
    digest = hashlib.sha256()
    for name, file in sorted(tree.files(checkpoint, Problems()).items()):
        try:
            info = os.stat(file.path)
        except OSError:
            continue
        digest.update(f"{name}\0{info.st_size}\0{info.st_mtime_ns}\0{info.st_ctime_ns}\0{info.st_ino}\n".encode())
    return digest.hexdigest()
