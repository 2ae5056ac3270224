"""Starting a run, handing it to its supervisor, and clearing away what a lost one left behind."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine import journal
from engine.errors import DoesNotFit, FtuiError, UsageError
from engine.files import Lock, fsync_dir, write_atomic, write_json
from engine.findings import Finding
from engine.process import ProcessId, end_all, marked
from engine.process.daemon import daemonize, own_environment
from engine.run.background import ensure_keeper
from engine.run.gpus import Placement
from engine.run.planned import PlanRefused, refuse
from engine.run.prepare import Prepared, RecipeError, prepare
from engine.text import _
from engine.workspace import RunFolder, Workspace

__all__ = ["PlanRefused", "RecipeError", "Started", "leftovers", "reap", "start"]
READY_S = 60.0
LOCK_WAIT_S = 1.5  # a supervisor that has written its end lets go of the lock within this
REAP_GRACE_S = 60.0  # ranks that lost their supervisor save before they end


@dataclass
class Started:
    """A run that is going: `pid` is its supervisor's; `resumed` compares a resume with what was before."""

    run: RunFolder
    pid: int
    findings: list[Finding] = field(default_factory=list)
    resumed: dict[str, Any] | None = None


def start(
    workspace: Workspace,
    recipe: str | Path,
    overrides: Sequence[str] = (),
    *,
    name: str | None = None,
    force: bool = False,
) -> Started:
    """Check a recipe, make its run folder, start its supervisor, and return when that is up.

    Args:
        workspace: where the run folder goes.
        recipe: a file, or the name of a built-in recipe.
        overrides: `key=value` texts that replace the recipe's values.
        name: the run's name; by default the recipe's with a number.
        force: go on in spite of data errors and of a plan that does not fit, and take GPUs that are in use.

    Raises:
        RecipeError: the recipe has errors; nothing was made.
        PlanRefused: it does not fit; nothing was made.
        FtuiError: no GPU is free, the folder cannot be made, or the supervisor did not come up.
    """
    from engine import settings

    python, restarts = settings.training_python(), settings.load().max_restarts
    can_train(python)
    ready = prepare(workspace, recipe, overrides, force=force)
    try:
        refuse(ready.planned, where=str(ready.source), force=force)

        def fill(folder: RunFolder, final_name: str) -> None:
            _fill(folder, final_name, ready, list(overrides), force=force)

        run = workspace.claim_run(name, ready.source.stem, fill)
        lock = take_lock(run)
        try:
            process = supervise(run, lock, ready.placement, python=python, max_restarts=restarts)
        finally:
            lock.release()
        return Started(run, process.pid, ready.findings + keeper_findings(workspace))
    finally:
        ready.placement.release()


def can_train(python: str) -> None:
    """Whether there is such an interpreter at all; what it holds, its own process says.

    Raises:
        UsageError: there is none.
    """
    import shutil  # slow, and needed by a start only

    if shutil.which(python) is None:
        raise UsageError(
            _("there is no Python to train with at {path}").format(path=python),
            where="FTUI_PYTHON" if os.environ.get("FTUI_PYTHON") else _("the setting python"),
            fix=_("set FTUI_PYTHON to the Python of an environment with torch; `ftui doctor` checks it"),
            kind="no_python",
        )


def _fill(folder: RunFolder, name: str, ready: Prepared, overrides: list[str], *, force: bool) -> None:
    from engine.run.statefile import fresh

    loaded, source, placement = ready.loaded, ready.source, ready.placement
    text = loaded.text
    if overrides:
        text = (
            text.rstrip("\n")
            + "\n\n# given on the command line:\n"
            + "".join(f"#   {line}\n" for given in overrides for line in given.splitlines())
        )
    for path in (folder.logs, folder.data, folder.checkpoints):
        path.mkdir()
    write_atomic(folder.recipe, text.encode())
    document = {
        "format": 1,
        "run": name,
        "recipe": ready.resolved,
        "origin": loaded.origin,
        "overrides": overrides,
        "source": str(source),
        "skip_bad_rows": force,
    }
    write_json(folder.resolved, document)
    if ready.planned.document is not None:
        write_json(folder.plan, ready.planned.document)
    state = fresh(
        name,
        supervisor=ProcessId.current().to_json(),
        device=placement.device,
        world_size=placement.ranks,
        gpus=list(placement.gpus),
    )
    write_json(folder.state, state)
    events = journal.JournalWriter(folder.events)
    events.append("created", source=str(source), overrides=overrides)
    events.sync()
    events.close()
    fsync_dir(folder.path)


def supervise(run: RunFolder, lock: Lock, placement: Placement, *, python: str, max_restarts: int) -> ProcessId:
    """Start the supervisor; it goes on holding the locks that we took for it."""
    gpu_locks = [held.fileno() for held in placement.locks]
    argv = [sys.executable, "-m", "engine.run.supervisor", str(run.path), "--python", python]
    argv += ["--max-restarts", str(max_restarts), "--lock-fd", str(lock.fileno())]
    env = {**own_environment(), "FTUI_LOCK_FDS": ",".join(map(str, gpu_locks))}
    try:
        return daemonize(
            argv,
            name=_("the run's supervisor"),
            env=env,
            cwd=run.path,
            log=run.logs / "supervisor.log",
            pass_fds=(lock.fileno(), *gpu_locks),
            timeout=READY_S,
        )
    except BaseException as error:
        state = run.read_state()
        if state.get("supervisor") == ProcessId.current().to_json():  # it had no chance to say so itself
            known = error if isinstance(error, FtuiError) else FtuiError(_("the start was interrupted"))
            state.update(state="failed", error=known.to_json(), exit_code=known.exit_code, ended=time.time())
            try:
                write_json(run.state, state)
            except OSError:  # a full disk: better no state at all than one that claims to live as long as we do
                run.state.unlink(missing_ok=True)
        raise


def keeper_findings(workspace: Workspace) -> list[Finding]:
    """The keeper watches over the run; a run goes on without it, so its failure is a warning."""
    try:
        ensure_keeper(workspace)
    except FtuiError as error:
        return [Finding("keeper", "warning", detail=error.what, fix=error.fix or "")]
    return []


def take_lock(run: RunFolder) -> Lock:
    """The run's lock, which its supervisor will hold.

    Raises:
        UsageError: a supervisor (or another command) has it.
    """
    lock = Lock(run.lock)
    deadline = time.monotonic() + LOCK_WAIT_S
    while not lock.acquire():
        if time.monotonic() > deadline:
            raise busy(run)
        time.sleep(0.05)
    return lock


def busy(run: RunFolder) -> FtuiError:
    """The error of a command that wants a run to itself which is being run."""
    return UsageError(
        _("{run} is being run already").format(run=run.name),
        where=str(run.lock),
        fix=_("`ftui status {run}` shows it, `ftui stop {run}` stops it").format(run=run.name),
        kind="already_running",
    )


def leftovers(run: RunFolder) -> list[ProcessId]:
    """Launcher and ranks (and whatever they started) of a run, wherever they ended up."""
    places = {os.fspath(run.path), os.path.realpath(run.path)}
    return [process for place in places for process in marked("FTUI_RUN", place)]


def reap(run: RunFolder, grace: float = REAP_GRACE_S) -> None:
    """End what a lost supervisor left behind: the ranks get time to save, then are killed.

    Raises:
        DoesNotFit: they do not even end by SIGKILL (a hung driver or disk).
    """
    if not end_all(lambda: leftovers(run), grace=grace):
        pids = ", ".join(str(process.pid) for process in leftovers(run))
        raise DoesNotFit(
            _("processes of {run} do not end: {pids}").format(run=run.name, pids=pids),
            fix=_("they hang in the driver or on a disk; restart the machine"),
            kind="hung",
            exit_code=1,
        )
