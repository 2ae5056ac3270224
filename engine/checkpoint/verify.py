"""Which checkpoints of a folder are whole, what is wrong with the others, and which one to resume from.

For our own run folders and for any folder in which the Hugging Face trainer left `checkpoint-N`. Nothing is ever
written, renamed, removed or run. The ledger answers quickly from names and sizes; this reads the content.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from engine.checkpoint import ledger, manifest, shards, tree
from engine.checkpoint.inspection import Inspection
from engine.checkpoint.problems import Problems, clean
from engine.findings import Finding, Level
from engine.text import _

State = Literal["complete", "broken", "staging", "foreign"]
Progress = Callable[[int, int], None]


@dataclass
class Checked:
    """One entry of a folder of checkpoints. `exact`: a run resumed from it is the one that it would have been."""

    path: Path
    step: int | None
    state: State
    findings: list[Finding] = field(default_factory=list)
    files: int = 0
    bytes: int = 0
    resumable: bool = False
    exact: bool = False
    attempt: int = 0

    def to_json(self) -> dict[str, Any]:
        """As the command-line contract says."""
        return {
            "path": clean(str(self.path)),
            "step": self.step,
            "state": self.state,
            "findings": [finding.to_json() for finding in self.findings],
            "files": self.files,
            "bytes": self.bytes,
            "resumable": self.resumable,
        }


@dataclass
class Report:
    """All entries, oldest first, and the one to resume from."""

    checkpoints: list[Checked]
    resume_from: Checked | None

    @property
    def exit_code(self) -> int:
        """0 all is well, 1 something is broken, 4 nothing can be resumed from."""
        if self.resume_from is None:
            return 4
        return 1 if any(entry.state == "broken" for entry in self.checkpoints) else 0

    def to_json(self) -> dict[str, Any]:
        """As the command-line contract says."""
        return {
            "checkpoints": [entry.to_json() for entry in self.checkpoints],
            "resume_from": clean(str(self.resume_from.path)) if self.resume_from else None,
        }


def verify(folder: Path, *, step: int | None = None, quick: bool = False, progress: Progress | None = None) -> Report:
    """Check the checkpoints of a run folder of ours, of a trainer's output folder, or one checkpoint alone.

    Args:
        folder: where to look.
        step: only the checkpoint of that step.
        quick: names, sizes and headers only; what the files contain is not read.
        progress: told the bytes read so far and those to read in all.
    """
    if _is_checkpoint(folder):
        match = ledger.NAME.match(_full(folder).name)
        ours = _is_of_run(_full(folder).parent)
        return _report(_inspect([Inspection(folder, int(match[1]) if match else None, is_ours=ours)], quick, progress))
    is_run = (folder / "resolved.json").is_file()
    inner = folder / "checkpoints"
    lies_inside = inner.is_dir() and not any(ledger.NAME.match(path.name) for path in _entries(folder))
    place = inner if is_run or lies_inside else folder
    is_ours = is_run or _is_of_run(_full(folder))
    plain: list[Checked] = []
    inspections: list[Inspection] = []
    for path in _entries(place):
        entry, inspection = _classify(path, is_ours)
        if step is not None and (inspection or entry).step != step:  # type: ignore[union-attr]
            continue
        if entry is not None:
            plain.append(entry)
        if inspection is not None:
            inspections.append(inspection)
    inspections.sort(key=lambda one: (one.step or 0, one.folder.name))
    return _report([*_inspect(inspections, quick, progress), *plain])


def _full(folder: Path) -> Path:
    return Path(os.path.abspath(folder))  # noqa: PTH100 - not resolved: a link's own name counts


def _is_of_run(checkpoints: Path) -> bool:
    """Whether this is the folder of checkpoints of a run of ours."""
    return checkpoints.name == "checkpoints" and (checkpoints.parent / "resolved.json").is_file()


def _is_checkpoint(folder: Path) -> bool:
    return bool(ledger.NAME.match(_full(folder).name)) or (
        (folder / "trainer_state.json").is_file() and not any(ledger.NAME.match(path.name) for path in _entries(folder))
    )


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(Path(entry.path) for entry in os.scandir(folder) if tree.is_like_checkpoint(entry.name))
    except OSError:
        return []


def _classify(path: Path, is_ours: bool) -> tuple[Checked | None, Inspection | None]:
    """An entry that needs no inspection, or the inspection that it needs."""
    match = ledger.NAME.match(path.name)
    problems = Problems()
    if match is None:
        state: State = "staging" if tree.is_staging(path.name) else "foreign"
        detail = _why_not(path.name)
        problems.add("not_a_checkpoint_name", "note", detail)
        return Checked(path, tree.number_in(path.name) if state == "staging" else None, state, problems.findings), None
    step = int(match[1])
    if tree.link_problem(path, problems):
        state = "broken" if problems.broken else "foreign"
        return Checked(path, step, state, problems.findings), None
    return None, Inspection(path, step, is_ours=is_ours)


def _why_not(name: str) -> str:
    if tree.is_staging(name):
        return _("staging: a save, copy or deletion that never ended")
    if ledger.NAME.match(name.lower()):
        return _("case: the name must be written checkpoint-N")
    if tree.number_in(name) is None:
        return _("its name has no step number")
    return _("copy: its name is not checkpoint-N")


def _inspect(inspections: list[Inspection], quick: bool, progress: Progress | None) -> list[Checked]:
    for inspection in inspections:
        inspection.look()
    inspections = [one for one in inspections if one.files or one.folder.exists()]  # others were retired meanwhile
    total = sum(inspection.to_read() for inspection in inspections)
    done = 0

    def count(n: int) -> None:
        nonlocal done
        done += n
        if progress:
            progress(done, total)

    checked = []
    before: Inspection | None = None
    for inspection in inspections:
        if not quick:
            inspection.read(count)
        if before is not None:
            # With another configuration it is another run's; with the same one its tensors are wrong.
            same = all(inspection.json.get(name) == before.json.get(name) for name in shards.CONFIGS)
            level: Level = "error" if same else "warning"
            shards.compare_shapes(inspection.shapes, before.shapes, before.folder.name, level, inspection.problems)
        if inspection.shapes and not inspection.problems.broken:
            before = inspection
        checked.append(_checked(inspection))
    return checked


def _checked(inspection: Inspection) -> Checked:
    problems = inspection.problems
    foreign = inspection.is_ours and manifest.NAME not in inspection.files
    if foreign:
        problems.add("no_manifest", "note", _("it has no MANIFEST.json: this run did not save it, or not to its end"))
    elif inspection.is_ours and not inspection.sealed and not problems.broken:
        problems.add("bad_json", "error", _("its format is not one that can be read"), manifest.NAME)
    state: State = "complete" if problems.exact else "broken"
    return Checked(
        inspection.folder,
        inspection.step,
        "foreign" if foreign else state,
        problems.findings,
        len(inspection.files),
        inspection.bytes,
        resumable=not problems.broken and not foreign and not inspection.only_weights,
        exact=problems.exact and not foreign and not inspection.only_weights,
        attempt=inspection.attempt,
    )


def _report(checkpoints: list[Checked]) -> Report:
    able = sorted((entry for entry in checkpoints if entry.resumable), key=lambda e: (e.attempt, e.step or 0))
    exact = [entry for entry in able if entry.exact]
    best = (exact or able)[-1] if able else None
    return Report(checkpoints, best)
