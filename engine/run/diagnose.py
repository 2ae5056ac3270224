"""The post-mortem of a run: what happened, where that can be read, and what to do, each as a command."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from engine.errors import UsageError
from engine.run import evidence, remedies
from engine.run.causes import CAUSES, UNKNOWN, Cause, by_kind, title
from engine.run.evidence import Line, Log
from engine.run.remedies import Fix
from engine.run.status import recipe_of, state_of
from engine.text import _, gigabytes, number
from engine.workspace import RunFolder

if TYPE_CHECKING:
    from engine.run.launch import Started

VAGUE = frozenset({"crash", "peer_lost", "failed", "signal", "disk", "given_up"})  # the logs may know better
SHOWN_FIXES = 3


@dataclass
class Diagnosis:
    """Why a run ended, or nearly did."""

    kind: str
    title: str
    what: str
    rank: int | None = None
    phase: str | None = None
    step: int | None = None
    memory: dict[str, Any] | None = None
    evidence: list[Line] = field(default_factory=list)
    fixes: list[Fix] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """As `ftui status --json` has it under `diagnosis`."""
        return {
            **self.__dict__,
            "evidence": [line.to_json() for line in self.evidence],
            "fixes": [fix.to_json() for fix in self.fixes],
        }


def diagnose(run: RunFolder) -> Diagnosis | None:
    """The post-mortem of a run that failed, was lost, or was stopped for a reason; None for any other."""
    state = run.read_state()
    name, error = state_of(state), state.get("error")
    if name == "lost":
        error = {"kind": "lost", "message": _("its supervisor is gone")}
    if not isinstance(error, dict) or name in ("done", "queued"):
        return None
    logs = evidence.logs(run)
    kind = str(error.get("kind") or "failed")
    cause, lines = _cause(run, kind, logs)
    found = Diagnosis(
        cause.kind,
        title(cause),
        str(error.get("message") or _(cause.meaning)),
        rank=_whole(error.get("rank")),
        phase=error.get("phase") if isinstance(error.get("phase"), str) else None,
        step=_whole(error.get("step")) if error.get("step") is not None else _whole(state.get("step")),
        memory=error.get("memory") if isinstance(error.get("memory"), dict) else None,
        evidence=lines,
    )
    if found.rank is None and lines:
        found.rank = next((rank for line in lines if (rank := evidence.rank_of(line)) is not None), None)
    if not lines:
        found.evidence = _named(error, logs)
    found.fixes = _fixes(run, cause, error)
    return found


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _cause(run: RunFolder, kind: str, logs: list[Log]) -> tuple[Cause, list[Line]]:
    """The cause with the lines that show it: as the error says, or what stands in logs, events and kernel."""
    known = by_kind(kind)
    if known is not None and kind not in VAGUE:
        line = evidence.find(logs, known.patterns()) if known.signs else None
        return known, [line] if line else []
    gpus = evidence.gpu_events(run)
    if gpus:
        driver = by_kind("driver")
        assert driver is not None
        line = evidence.find(logs, driver.patterns())
        return driver, [*gpus, *([line] if line else [])][:5]
    if killed := evidence.kernel(evidence.killed_pids(logs)):
        said = killed[-1].text
        cause = by_kind("driver" if "Xid" in said else "oom_killer")
        assert cause is not None
        return cause, killed[-3:]
    for cause in CAUSES:
        if cause.signs and (line := evidence.find(logs, cause.patterns())) is not None:
            if cause.kind == "signal" and (full := evidence.memory_at_the_end(run)) is not None:
                killer = by_kind("oom_killer")
                assert killer is not None
                return killer, [line, full]
            return cause, [line]
    return known or UNKNOWN, []


def _named(error: dict[str, Any], logs: list[Log]) -> list[Line]:
    """Where the error itself says that it happened, else the last words of the log."""
    where = error.get("where")
    if isinstance(where, str) and where:
        file, _colon, line = where.rpartition(":")
        if line.isdigit():
            return [Line(file, int(line), str(error.get("message") or ""))]
        return [Line(where, 0, str(error.get("message") or ""))]
    for log in logs:
        for index in range(len(log.lines) - 1, -1, -1):
            if log.lines[index].strip():
                return [log.line(index)]
    return []


def _fixes(run: RunFolder, cause: Cause, error: dict[str, Any]) -> list[Fix]:
    from engine.checkpoint import ledger

    can_resume = ledger.newest(run.checkpoints) is not None
    if cause.kind == "out_of_memory":
        fixes = remedies.for_memory(run, can_resume=can_resume) or remedies.halve(run, can_resume=can_resume)
        if fixes:
            return fixes
    recipe = run.read_resolved().get("recipe") or {}
    rate = recipe.get("learning_rate")
    words = {
        "run": run.name,
        "path": str(run.path),
        "recipe": recipe_of(run),
        "data": str(recipe.get("dataset_path") or "FILE"),
        "half_rate": f"{rate / 2:.3g}" if isinstance(rate, int | float) else "1e-4",
    }
    fixes = []
    said = error.get("fix")
    if (
        isinstance(said, str)
        and said
        and cause.kind in ("unknown", "data", "template", "hub", "versions", "missing_package")
    ):
        fixes.append(Fix(said))
    for text, command in cause.fixes:
        start, words_of = command.partition("{recipe} ")[::2]
        changes = [word.format(**words) for word in words_of.split() if "=" in word]
        if command.startswith("ftui resume {run}"):
            if not can_resume:
                continue
            more = command.split()[3:]
            doable = all("=" in word for word in more)
            fixes.append(Fix(_(text), command.format(**words), "resume" if doable else None, more if doable else []))
        elif start == "ftui run " and changes and not any(word.endswith(("=DIR", "=FILE")) for word in changes):
            fixes.append(remedies.with_changes(run, _(text), changes, can_resume=False))
        else:
            fixes.append(Fix(_(text), command.format(**words)))
    if not can_resume and not any(fix.command.startswith("ftui run") for fix in fixes):
        fixes.append(remedies.with_changes(run, _("start it again: no checkpoint was saved"), [], can_resume=False))
    return fixes[: SHOWN_FIXES + 1]


def memory_words(memory: dict[str, Any]) -> str:
    """What the allocator held, in one line."""
    parts = []
    for key, text in (
        ("allocated", _("{size} in tensors")),
        ("reserved_unused", _("{size} reserved and unused")),
        ("free", _("{size} free on the device")),
        ("total", _("of {size}")),
        ("resident", _("{size} resident")),
        ("limit", _("limit {size}")),
    ):
        if isinstance(memory.get(key), int | float):
            parts.append(text.format(size=gigabytes(memory[key])))
    return ", ".join(parts)


def where(found: Diagnosis) -> str:
    """Rank, phase and step in one line; empty where none is known."""
    phases = {
        "load": _("while loading"),
        "forward": _("in forward"),
        "backward": _("in backward"),
        "optimizer": _("in the optimizer's step"),
        "evaluate": _("in an evaluation"),
        "save": _("in a save"),
    }
    parts = []
    if found.rank is not None:
        parts.append(_("rank {n}").format(n=found.rank))
    if found.phase in phases:
        parts.append(phases[found.phase])
    if found.step:
        parts.append(_("step {n}").format(n=number(found.step)))
    return ", ".join(parts)


def apply(run: RunFolder, found: Diagnosis | None, number: int) -> Started:
    """Do what a fix says: resume with its changes, or start a new run with them.

    Raises:
        UsageError: there is no such fix, or it is nothing that can be done by a command.
        FtuiError: the start was refused.
    """
    from engine.run import launch, resuming

    fixes = found.fixes if found is not None else []
    if not 1 <= number <= len(fixes) or fixes[number - 1].action is None:
        doable = ", ".join(str(n) for n, fix in enumerate(fixes, 1) if fix.action)
        raise UsageError(
            _("fix {n} is not one that can be applied").format(n=number),
            where=run.name,
            fix=_("those can: {numbers}").format(numbers=doable) if doable else _("`ftui explain` shows what to do"),
            kind="no_such_fix",
        )
    fix = fixes[number - 1]
    if fix.action == "resume":
        return resuming.resume(run, changes=fix.changes)
    return launch.start(resuming.workspace_of(run), recipe_of(run), fix.changes)
