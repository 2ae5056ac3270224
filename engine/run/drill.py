"""The resume drill: the proof that a run can be resumed, by doing it beside the run for a few steps.

The ranks go on from the checkpoint in a scratch folder, which reads the run's rows and its checkpoint and writes
nothing into the run; their losses are held against the journal's.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine import journal
from engine.errors import FtuiError
from engine.files import Lock, write_json
from engine.process import read_stat
from engine.process.child import Child
from engine.run import choice, comparison, failure, launch, resuming
from engine.run.gpus import Placement, place_again
from engine.run.watchdog import Watchdog
from engine.text import _
from engine.train import launcher
from engine.workspace import RunFolder

NAME = "drills.jsonl"
STEPS = 5
TOLERANCE = 0.02  # of the loss, where the resume is not exact: the order of sums, kernels that differ from call to call
LOADING_S = 4 * 3600.0
COMPARED = ("loss", "grad_norm", "learning_rate")


@dataclass
class Drill:
    """What a drill found. `tolerance` is 0 where equal losses were promised; `reason` says why it did not pass."""

    run: str
    step: int
    checkpoint: str
    exact: bool
    differs: list[str]
    skipped: list[str]
    tolerance: float
    passed: bool = False
    reason: str | None = None
    steps: int = 0
    compared: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    scratch: str | None = None  # kept where it failed

    def to_json(self) -> dict[str, Any]:
        """As `ftui resume --drill --json` prints it and drills.jsonl keeps it."""
        return dict(self.__dict__)


def drill(
    run: RunFolder,
    *,
    step: int | None = None,
    gpus: int | None = None,
    steps: int | None = None,
    changes: Sequence[str] = (),
    say: Callable[[str], Any] = lambda _text: None,
) -> Drill:
    """Resume beside the run, compare, and note what came of it.

    Args:
        run: the run; it may be alive where there are devices to spare.
        step: the checkpoint to go on from; by default the one that a resume would take.
        gpus: how many GPUs; by default as many as the run has.
        steps: how many steps to train; by default a few, or as many as it takes to meet a line of the journal.
        changes: `key=value` texts, as for a resume.
        say: told what is going on.

    Raises:
        GateError: there is nothing to resume from.
        FtuiError: no GPU is free, or the ranks cannot be started.
    """
    from engine import settings

    python = settings.training_python()
    launch.can_train(python)
    values = resuming.read_changes(changes)
    say(_("reading the checkpoint"))
    chosen, skipped = choice.choose(run.checkpoints, step=step)
    if chosen is None:
        raise resuming.nothing_to_resume(run, step, skipped)
    state = run.read_state()
    workspace = resuming.workspace_of(run)
    placement = place_again(workspace, run.read_resolved().get("recipe") or {}, state, gpus)
    scratch = RunFolder(workspace.cache_dir / "drills" / f"{run.name}-{os.getpid()}")
    began = time.monotonic()
    try:
        document, _given = resuming.resolve_again(run, placement, values)
        before = comparison.setup_before(run, state, chosen.entry)
        _fill(scratch, run, document)
        report = comparison.report(
            state, chosen, before, comparison.setup_after(scratch, placement), skipped, python
        )  # fmt: skip
        entry = chosen.entry
        wanted = _lines(run, entry.step, placement.ranks)
        promised = report["exact"] and placement.device == "cpu"
        found = Drill(
            run.name, entry.step, str(entry.path), report["exact"], report["differs"], skipped,
            tolerance=0.0 if promised else TOLERANCE,
        )  # fmt: skip
        until = _until(entry.step, list(wanted), steps, state.get("max_steps"))
        say(_("training {n} steps from step {step} in {folder}").format(
            n=until - entry.step, step=entry.step, folder=scratch.path
        ))  # fmt: skip
        _train(scratch, entry.path, placement, python, until, found, entry.attempt + 1, str(workspace.root))
        _judge(found, wanted, scratch, run)
    finally:
        placement.release()
    found.seconds = round(time.monotonic() - began, 1)
    if found.passed:
        shutil.rmtree(scratch.path, ignore_errors=True)
    else:
        found.scratch = str(scratch.path)
    _note(run, found)
    return found


def _fill(scratch: RunFolder, run: RunFolder, document: dict[str, Any]) -> None:
    """A run folder that shares the run's rows and saves nothing; those that failed drills of the run left are gone."""
    for old in scratch.path.parent.glob(f"{run.name}-*"):
        pid = old.name.rpartition("-")[2]
        if old.name != f"{run.name}-{pid}":  # of a run with a longer name
            continue
        if pid == str(os.getpid()) or (pid.isdigit() and read_stat(int(pid)) is None):
            shutil.rmtree(old, ignore_errors=True)
    for folder in (scratch.logs, scratch.checkpoints):
        folder.mkdir(parents=True)
    scratch.data.symlink_to(run.data.resolve())
    recipe = {**document["recipe"], "save_strategy": "no", "load_best_model_at_end": False, "output_dir": None}
    write_json(scratch.resolved, {**document, "recipe": recipe})


def _lines(run: RunFolder, step: int, ranks: int) -> dict[int, dict[str, Any]]:
    """The journal's lines beyond a step that a run from there must meet: their whole interval lies behind it.

    The newest attempt wins; those of another number of ranks are marked, since they are not met exactly.
    """
    found: dict[int, dict[str, Any]] = {}
    before, world = 0, ranks
    for event in journal.JournalReader(run.journal).all():
        at = event.get("step")
        if not isinstance(at, int):
            continue
        if event.get("event") == "start":
            before, world = at, event.get("world_size") or ranks
            found = {known: line for known, line in found.items() if known <= at}
        elif event.get("event") == "log" and "loss" in event:
            if before >= step:
                found[at] = {**event, "same_ranks": world == ranks}
            before = at
    return found


def _until(step: int, lines: list[int], steps: int | None, max_steps: Any) -> int:
    """The step that the drill ends at."""
    wanted = step + (steps or STEPS)
    if lines and lines[0] > wanted and steps is None:
        wanted = lines[0]
    if lines and steps is None:
        wanted = max(lines[0], max((at for at in lines if at <= wanted), default=wanted))
    return min(wanted, max_steps) if isinstance(max_steps, int) else wanted


def _train(
    scratch: RunFolder, checkpoint: Path, placement: Placement, python: str, until: int, found: Drill, attempt: int,
    home: str,
) -> None:  # fmt: skip
    argv, env = launcher.command(
        scratch, python=python, nproc=placement.ranks, attempt=attempt, resume_from=checkpoint, gpus=placement.gpus
    )
    child = Child(argv, env={**env, "FTUI_HOME": home}, cwd=scratch.path, log=scratch.logs / "launcher.log", grace=0.0)
    watchdog = Watchdog(scratch, scratch.read_resolved()["recipe"], python)
    reader = journal.JournalReader(scratch.journal)
    deadline = time.monotonic() + LOADING_S
    child.start()
    try:
        while (ended := child.poll()) is None:
            for event in reader.poll():
                watchdog.take(event)
                if event.get("event") == "start":
                    deadline = math.inf
                if event.get("event") == "log" and isinstance(event.get("step"), int):
                    found.steps = event["step"] - found.step
            if found.steps >= until - found.step:
                return
            if watchdog.silent_s() is not None or time.monotonic() > deadline:
                found.reason = _("the ranks hang; their logs are in {folder}").format(folder=scratch.logs)
                return
            time.sleep(0.1)
        for event in reader.all():
            if event.get("event") == "log" and isinstance(event.get("step"), int):
                found.steps = event["step"] - found.step
        if not found.steps or (found.steps < until - found.step and not ended.ok):
            found.reason = str(failure.explain(scratch, attempt, ended)["message"])
    finally:
        for stray in child.strays():  # on TERM they would save
            stray.send(signal.SIGKILL)
        child.stop(grace=0.0)
        child.wait(30.0)


def _judge(found: Drill, wanted: dict[int, dict[str, Any]], scratch: RunFolder, run: RunFolder) -> None:
    """Hold the lines of the drill against those of the run."""
    done = {
        event["step"]: event
        for event in journal.read_all(scratch.journal)
        if event.get("event") == "log" and isinstance(event.get("step"), int)
    }
    if found.reason is not None:
        return
    for step, line in done.items():
        loss = line.get("loss")
        if not isinstance(loss, int | float):
            found.reason = _("the loss at step {step} is not a number").format(step=step)
            return
        if (other := wanted.get(step)) is not None:
            tolerance = found.tolerance if other["same_ranks"] else TOLERANCE
            found.compared.append(_compare(step, line, other, tolerance))
    wrong = [row for row in found.compared if not row["passed"]]
    if wrong:
        first = wrong[0]
        found.reason = _("at step {step} the loss is {got}, and the journal says {journal}").format(
            step=first["step"], got=first["loss"], journal=first["journal"]
        )
        return
    if not found.compared and (reason := _far_off(done, journal.last(run.journal, {"event": "log"}))):
        found.reason = reason
        return
    found.passed = bool(done)


def _compare(step: int, line: dict[str, Any], other: dict[str, Any], tolerance: float) -> dict[str, Any]:
    equal = all(line.get(key) == other.get(key) for key in COMPARED)
    near = isinstance(other.get("loss"), int | float) and abs(line["loss"] - other["loss"]) <= tolerance * max(
        abs(other["loss"]), 0.1
    )
    return {
        "step": step,
        "loss": line["loss"],
        "journal": other.get("loss"),
        "equal": equal,
        "passed": equal if tolerance == 0 else near,
    }


def _far_off(done: dict[int, dict[str, Any]], newest: dict[str, Any] | None) -> str | None:
    """Without a line to compare with: whether the losses begin where the run's ended, at least about there."""
    last = (newest or {}).get("loss")
    if not done or not isinstance(last, int | float):
        return None
    first = done[min(done)]["loss"]
    if first <= 2 * max(float(last), 0.1):
        return None
    return _("the loss begins at {got}, and the run's last was {last}").format(got=first, last=last)


def _note(run: RunFolder, found: Drill) -> None:
    """Into drills.jsonl, and into the run's events where no supervisor writes them."""
    document = found.to_json()
    with contextlib.suppress(OSError), Lock(run.path / f".{NAME}.lock").held():
        writer = journal.JournalWriter(run.path / NAME)
        writer.append("drill", **document)
        writer.close()
    lock = Lock(run.lock)
    with contextlib.suppress(OSError, FtuiError):
        if lock.acquire():
            writer = journal.JournalWriter(run.events)
            kept = ("step", "passed", "reason", "exact")
            writer.append("drill", **{key: document[key] for key in kept}, compared=len(found.compared))
            writer.close()
    lock.release()


def last(run: RunFolder) -> dict[str, Any] | None:
    """The newest drill of a run."""
    return journal.last(run.path / NAME)
