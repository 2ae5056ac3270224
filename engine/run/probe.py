"""A probe: some real steps of a recipe on this machine, for its plan; only what was measured stays.

The ranks are started as a run's are, in a scratch folder under the workspace's cache, without saves and evaluations.
They are killed when enough steps are in the journal, so no probe ever writes a checkpoint or a model.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine import settings
from engine.errors import DoesNotFit, FtuiError, UsageError
from engine.files import Lock, read_json, write_atomic, write_json
from engine.journal import JournalReader
from engine.plan import measured
from engine.process import ProcessId
from engine.process.child import Child
from engine.run import failure, launch, measure
from engine.run.planned import describe
from engine.run.prepare import Prepared, prepare
from engine.run.sampler import Sampler
from engine.run.statefile import fresh
from engine.text import _
from engine.train import launcher
from engine.workspace import RunFolder, Workspace

FORMAT = 1
MOST = 1000
WARM_UP = 1  # the first step chooses kernels and makes the optimizer's state: it is in no speed
BEYOND = 1_000_000  # steps that are never reached: the ranks must not come to the end of a run, which saves
TICK_S = 0.05
LIBRARIES = ("torch", "transformers", "trl", "peft", "accelerate", "bitsandbytes")
# What no step depends on, and what a probe must not do.
QUIET = {
    "save_strategy": "no", "eval_strategy": "no", "logging_strategy": "steps", "logging_steps": 1,
    "load_best_model_at_end": False, "output_dir": None, "report_to": "none",
}  # fmt: skip


@dataclass(frozen=True)
class Probed:
    """What the steps took; `record` is as in measured.jsonl."""

    record: dict[str, Any]
    steps: int
    seconds: float  # of the whole probe, loading included
    made: float
    cached: bool = False

    def to_json(self) -> dict[str, Any]:
        """As `ftui plan --json` prints it, GB."""
        figures = self.record["measured"]
        return {
            "steps": self.steps,
            "seconds": self.seconds,
            "tokens_per_s": figures["tokens_per_s"],
            "spread": figures["spread"],
            "step_time_s": figures["step_time_s"],
            "batch_tokens": figures["batch_tokens"],
            **{f"{name}_gb": _gb(figures[name]) for name in ("memory", "reserved", "device")},
            "made": self.made,
            "cached": self.cached,
        }


def _gb(size: float | None) -> float | None:
    return None if size is None else round(size / 1e9, 3)


def run(
    workspace: Workspace, recipe: str | Path, overrides: Sequence[str], steps: int, say: Callable[[str], None]
) -> Probed:
    """Train some steps of a recipe here, or remember how that went.

    Call it from the main thread of a process: the ranks end with the thread that started them.

    Args:
        workspace: whose GPU locks are taken, and whose cache and measurements it is kept in.
        recipe: a file, or the name of a built-in recipe.
        overrides: `key=value` texts that replace the recipe's values.
        steps: how many to measure, beside one to warm up.
        say: takes progress for people.

    Raises:
        UsageError: a number of steps that makes no sense, or an error in the recipe or its data.
        DoesNotFit: there is no free GPU, the steps ran out of memory, or they would take the host's memory away.
        FtuiError: the steps failed; the ranks' log is kept and named.
    """
    if not 1 <= steps <= MOST:
        raise UsageError(
            _("a probe takes 1 to {most} steps, not {steps}").format(most=MOST, steps=steps), where="--probe",
            kind="bad_value",
        )  # fmt: skip
    python = settings.training_python()
    launch.can_train(python)
    quiet = [f"{key}={json.dumps(value)}" for key, value in QUIET.items()]
    say(_("probe: looking at the recipe and its data"))
    ready = prepare(workspace, recipe, [*overrides, *quiet, f"max_steps={BEYOND}"], force=False)
    try:
        _check(ready)
        key = _key(ready, steps, python)
        kept = workspace.cache_dir / "probe" / f"{key}.json"
        if (found := _remembered(kept)) is not None:
            return found
        probed = _measure(workspace, ready, key, steps, python, say)
    finally:
        ready.placement.release()
    measured.store(workspace.root, probed.record)
    document = {"format": FORMAT, "steps": steps, "seconds": probed.seconds, "made": probed.made}
    write_json(kept, document | {"record": probed.record})
    return probed


def _check(ready: Prepared) -> None:
    plan = ready.planned
    if int(ready.resolved.get("num_machines") or 1) > 1:
        raise UsageError(
            _("a probe trains on one machine, and the recipe on several"), where="num_machines",
            fix=_("add num_machines=1: a probe of one machine's share"), kind="conflict",
        )  # fmt: skip
    if plan.document is None:
        (why,) = plan.findings
        raise FtuiError(why.detail, where=str(ready.source), fix=why.fix or None, kind=why.kind)
    if not ready.placement.gpus and plan.result is not None and plan.result.verdict == "no":
        raise DoesNotFit(
            _("a probe could take the memory of everything else here: {what}").format(what=describe(plan.result)),
            where=str(ready.source), fix=_("plan something smaller first"), kind="does_not_fit",
        )  # fmt: skip


def _key(ready: Prepared, steps: int, python: str) -> str:
    """What the answer depends on: the recipe, its files, the GPUs, and the libraries."""
    from engine.hardware import versions

    recipe = {key: value for key, value in ready.resolved.items() if key not in ("max_steps", *QUIET)}
    files = [_signature(recipe.get(key)) for key in ("dataset_path", "eval_dataset_path", "model_name_or_path")]
    try:
        found = versions.packages(LIBRARIES, python)["packages"]
    except OSError as error:
        raise FtuiError(
            _("the training Python cannot be started: {reason}").format(reason=str(error)[:200]), where=python,
            fix=_("`ftui doctor` says what it lacks"), kind="environment", exit_code=2,
        ) from error  # fmt: skip
    parts = [FORMAT, recipe, files, steps, [card.name for card in ready.placement.cards], found]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:24]


def _signature(place: Any) -> list[tuple[str, int, int]]:
    """Size and time of a file, or of what a folder holds at its top."""
    path = Path(str(place))
    try:
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        return [(file.name, (info := file.stat()).st_size, info.st_mtime_ns) for file in files[:1000]]
    except OSError:  # a name on the hub, or one that we make ourselves
        return []


def _remembered(file: Path) -> Probed | None:
    found: Any = read_json(file)
    try:
        if found["format"] != FORMAT:
            return None
        probed = Probed(found["record"], int(found["steps"]), float(found["seconds"]), float(found["made"]), True)
        probed.to_json()
    except (KeyError, TypeError, ValueError):  # absent, or not ours
        return None
    return probed


def _measure(
    workspace: Workspace, ready: Prepared, key: str, steps: int, python: str, say: Callable[[str], None]
) -> Probed:
    place = workspace.cache_dir / "probe"
    place.mkdir(parents=True, exist_ok=True)
    _clear(place)
    folder, started = RunFolder(place / f"run-{os.getpid()}"), time.monotonic()
    shutil.rmtree(folder.path, ignore_errors=True)
    folder.path.mkdir()
    lock = Lock(folder.lock)
    lock.acquire()
    try:
        _fill(folder, ready)
        _train(workspace, folder, ready, steps, python, say)
        record = measure.of(folder)
        if record is None or record["measured"]["tokens_per_s"] is None:
            raise FtuiError(_("the probe's steps were too few to measure"), fix=_("give it more of them"))
        times = list(_logs(folder, "step_time_s"))[WARM_UP:]
        speeds = list(_logs(folder, "tokens_per_s"))[WARM_UP:]
        figures = record["measured"] | {"step_time_s": statistics.median(times), "spread": _spread(speeds)}
        made = time.time()
        record |= {"run": f"probe-{key[:8]}", "probe": True, "measured": figures}
        return Probed(record, steps, round(time.monotonic() - started, 1), made)
    except FtuiError as error:
        _keep_logs(folder, place / f"{key}.log", error)
        raise
    finally:
        lock.release()
        shutil.rmtree(folder.path, ignore_errors=True)


def _clear(place: Path) -> None:
    """Remove folders of probes that were killed; those of living ones are locked."""
    for old in place.glob("run-*"):
        lock = Lock(old / "supervisor.lock")
        try:
            if lock.acquire():
                lock.release()
                shutil.rmtree(old, ignore_errors=True)
        except OSError:
            continue


def _fill(folder: RunFolder, ready: Prepared) -> None:
    for path in (folder.logs, folder.data, folder.checkpoints):
        path.mkdir()
    write_atomic(folder.recipe, ready.loaded.text.encode())
    origin = ready.loaded.origin
    write_json(folder.resolved, {"format": 1, "run": folder.name, "recipe": ready.resolved, "origin": origin})
    write_json(folder.plan, ready.planned.document)
    placement = ready.placement
    state = fresh(
        folder.name, supervisor=ProcessId.current().to_json(), device=placement.device, world_size=placement.ranks,
        gpus=list(placement.gpus),
    )  # fmt: skip
    write_json(folder.state, state)


def _train(
    workspace: Workspace, folder: RunFolder, ready: Prepared, steps: int, python: str, say: Callable[[str], None]
) -> None:
    """Start the ranks and end them when the journal has enough steps."""
    placement = ready.placement
    base = {**os.environ, "FTUI_HOME": str(workspace.root)}  # the scratch folder is no run folder: say whose it is
    argv, env = launcher.command(folder, python=python, nproc=placement.ranks, gpus=placement.gpus, base=base)
    child = Child(argv, env=env, cwd=folder.path, log=folder.logs / "launcher.log", grace=0.0)
    sampler, reader, seen = Sampler(folder), JournalReader(folder.journal), 0
    try:
        child.start()
        while seen < steps + WARM_UP:
            for line in reader.poll():
                seen += line.get("event") == "log"
                if seen <= steps + WARM_UP:
                    _tell(line, seen, steps, say)
            sampler.tick(child.id.pid if child.id is not None else None)
            if (ended := child.poll()) is not None:
                raise _failed(folder, failure.explain(folder, 1, ended))
            time.sleep(TICK_S)
        sampler.close()
        sampler = Sampler(folder)  # a new one samples at once: short steps may lie between two seconds
        sampler.tick(child.id.pid if child.id is not None else None)
    except OSError as error:
        raise FtuiError(
            _("the steps cannot be started: {reason}").format(reason=error.strerror or error), where=str(folder.path)
        ) from error
    finally:
        if child.running:
            child.stop(grace=0.0, number=signal.SIGKILL)
            child.wait(10.0)
        sampler.close()


def _tell(line: dict[str, Any], seen: int, steps: int, say: Callable[[str], None]) -> None:
    doing = {
        "libraries": _("probe: loading torch, transformers and TRL"),
        "builtin": _("probe: making the built-in model"),
        "download": _("probe: downloading the model"),
        "data": _("probe: preparing the data"),
        "model": _("probe: loading the model"),
    }
    if line.get("event") == "phase" and line.get("doing") in doing:
        say(doing[line["doing"]])
    elif line.get("event") == "start":
        say(_("probe: the first step warms up"))
    elif line.get("event") == "log" and seen > WARM_UP:
        say(_("probe: step {n} of {steps}").format(n=seen - WARM_UP, steps=steps))


def _failed(folder: RunFolder, error: dict[str, Any]) -> FtuiError:
    text = _("the probe's steps failed: {reason}").format(reason=error["message"])
    kind = error.get("kind") or "probe_failed"
    return FtuiError(
        text, where=str(folder.logs), fix=error.get("fix"), kind=kind, exit_code=error.get("exit_code") or 1
    )


def _keep_logs(folder: RunFolder, target: Path, error: FtuiError) -> None:
    """The scratch folder goes; what its processes said is put into one file, and the error names that."""
    try:
        with target.open("wb") as out:
            for log in sorted(folder.logs.glob("*.log")):
                out.write(f"== {log.name}\n".encode() + log.read_bytes()[-(1 << 20) :])
    except OSError:
        return
    if error.where is None or error.where.startswith(str(folder.path)):
        error.where = str(target)


def _logs(folder: RunFolder, key: str) -> Iterator[float]:
    for line in JournalReader(folder.journal).all():
        if line.get("event") == "log" and isinstance(line.get(key), int | float):
            yield float(line[key])


def _spread(speeds: list[float]) -> float:
    """Twice the standard error of the mean speed, as a share of it."""
    if len(speeds) < 2:
        return 1.0
    share: float = 2 * statistics.stdev(speeds) / len(speeds) ** 0.5 / statistics.mean(speeds)
    return round(share, 4)
