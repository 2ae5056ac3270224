"""How runs are, from their files alone. Two hundred state files must cost a command next to nothing."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from engine import journal
from engine.process import ProcessId
from engine.text import _
from engine.workspace import RunFolder, Workspace, created

LIVE = frozenset({"starting", "running", "saving"})  # states that only a live supervisor makes true
ENDED = frozenset({"stopped", "done", "failed", "lost"})
EVENTS = 20


def state_of(state: dict[str, Any]) -> str:
    """The state a reader may believe: what claims to live without its supervisor is "lost"."""
    name = state.get("state")
    if not isinstance(name, str):
        return "lost"
    if name in LIVE:
        supervisor = ProcessId.from_json(state.get("supervisor"))
        if supervisor is None or not supervisor.alive():
            return "lost"
    return name


def is_alive(run: RunFolder) -> bool:
    """Whether the run's supervisor (or the command that is starting it) lives."""
    return state_of(run.read_state()) in LIVE


def held_s(state: dict[str, Any], now: float | None = None) -> float:
    """How long a run has held its devices, over all its attempts; the time between two of them does not count.

    Args:
        state: its state.json.
        now: the time to count to while it lives; None: when state.json was written.
    """
    earlier, started = float(state.get("earlier_s") or 0.0), state.get("started")
    if started is None:
        return earlier
    until = state.get("ended") or now or state.get("updated") or started
    return earlier + max(0.0, float(until) - float(started))


def summary(run: RunFolder) -> dict[str, Any]:
    """One row of `ftui runs`."""
    return _row(run, run.read_state())


def _row(run: RunFolder, state: dict[str, Any]) -> dict[str, Any]:
    name = state_of(state)
    error = state.get("error")
    if name == "lost":
        error = {"kind": "lost", "message": _("its supervisor is gone"), "where": str(run.path), "fix": next_step(run)}
    return {
        "name": run.name,
        "state": name,
        "phase": state.get("phase") if name in LIVE else None,
        "step": state.get("step"),
        "max_steps": state.get("max_steps"),
        "loss": state.get("loss"),
        "eval_loss": state.get("eval_loss"),
        "eta_s": state.get("eta_s") if name in LIVE else None,
        "path": str(run.path),
        "error": error,
        "attempt": state.get("attempt"),
        "created": state.get("created"),
        "ended": state.get("ended"),
    }


def next_step(run: RunFolder) -> str:
    """How to go on with a run that was lost: its ranks save when their supervisor dies, so the folder is asked."""
    from engine.checkpoint import ledger

    if (entry := ledger.newest(run.checkpoints)) is None:
        return _("no checkpoint to go on from; {start_again}").format(start_again=start_again(run))
    return _("`ftui resume {run}` goes on from step {step}").format(run=run.name, step=entry.step)


def start_again(run: RunFolder) -> str:
    """What to do with a run that left nothing to go on from."""
    return _("start again: ftui run {recipe}").format(recipe=recipe_of(run))


def recipe_of(run: RunFolder) -> str:
    """The recipe that a run was started from; its copy in the run folder where that file is gone."""
    source = run.read_resolved().get("source")
    return source if isinstance(source, str) and Path(source).exists() else str(run.recipe)


def listing(workspace: Workspace) -> list[dict[str, Any]]:
    """All runs, newest first; folders that are no runs are left out."""
    found = []
    for run in workspace.folders():
        state = run.read_state()
        if state or run.resolved.exists():
            found.append((run, state))
    found.sort(key=lambda item: (_created(*item), item[0].name), reverse=True)
    return [_row(run, state) for run, state in found]


def _created(run: RunFolder, state: dict[str, Any]) -> float:
    value = state.get("created")
    return float(value) if isinstance(value, int | float) else created(run)


def status(run: RunFolder) -> dict[str, Any]:
    """One run in full: its row, the newest sample of its GPUs, the last events, and what would be lost now."""
    state = run.read_state()
    row = _row(run, state)
    sample = journal.last(run.hardware) if row["state"] in LIVE else None
    own = set(state.get("gpus") or [])
    row.update(
        {
            "plan": read_plan(run),
            "epoch": state.get("epoch"),
            "tokens_per_s": state.get("tokens_per_s") if row["state"] in LIVE else None,
            "device": state.get("device"),
            "world_size": state.get("world_size"),
            "restarts": state.get("restarts"),
            "started": state.get("started"),
            "elapsed_s": held_s(state, time.time() if row["state"] in LIVE else None),
            "last_checkpoint": state.get("last_checkpoint"),
            "exit_code": state.get("exit_code"),
            "gpus": [gpu for gpu in (sample or {}).get("gpus") or [] if gpu.get("uuid") in own],
            "host": (sample or {}).get("host"),
            "disk": (sample or {}).get("disk"),
            "events": _last_events(run),
            "unsaved": at_risk(run, state),
            "at_risk": elsewhere(run) or at_risk(run, state),
            "diagnosis": _diagnosis(run) if row["error"] is not None and row["state"] in ENDED else None,
            "drill": _drill(run),
        }
    )
    return row


def _diagnosis(run: RunFolder) -> dict[str, Any] | None:
    """The post-mortem; logs of any content must not keep a command from showing the rest."""
    from engine.run.diagnose import diagnose

    try:
        found = diagnose(run)
    except Exception:  # noqa: BLE001 - see above
        return None
    return None if found is None else found.to_json()


def read_plan(run: RunFolder) -> dict[str, Any] | None:
    """plan.json, or None where no plan could be made, or what is there is none."""
    from engine.files import read_json

    document = read_json(run.plan)
    return document if isinstance(document, dict) and _is_plan(document) else None


def _is_plan(document: dict[str, Any]) -> bool:
    """Whether what is there of a plan is of the right kinds; an older one may hold less."""
    result = document.get("result")
    if not isinstance(result, dict) or not isinstance(document.get("request", {}), dict):
        return False
    time, memory = result.get("time") or {}, result.get("per_gpu") or {}
    if not all(isinstance(part, dict) for part in (time, memory, result.get("corrected_by") or {})):
        return False
    known = [memory.get("needs_gb"), memory.get("device_gb"), document.get("useful_share")]
    known += [time.get(key) for key in ("hours", "high", "tokens_per_s_total")]
    return all(isinstance(value, int | float | None) for value in known)


def _drill(run: RunFolder) -> dict[str, Any] | None:
    """The newest drill, where its line says how it went."""
    found = journal.last(run.path / "drills.jsonl", {"event": "drill"})
    if found is None or not isinstance(found.get("passed"), bool) or not isinstance(found.get("step"), int | None):
        return None
    return found


def _last_events(run: RunFolder) -> list[dict[str, Any]]:
    reader = journal.JournalReader(run.events)
    try:
        reader.offset = max(0, run.events.stat().st_size - journal.CHUNK)
    except OSError:
        return []
    return list(reader.all())[-EVENTS:]  # a line cut by the offset is no JSON and is skipped


def elsewhere(run: RunFolder) -> dict[str, Any] | None:
    """What would be lost if the machine vanished now: the steps since the last checkpoint that is proved at a remote.

    None where the run has no remote: then what is saved here is all there is.
    """
    from engine.backup import status as backup
    from engine.errors import FtuiError

    try:
        policy = backup.effective(run)
    except FtuiError:  # `ftui backup status` says what is wrong with it
        return None
    if policy is None:
        return None
    lost = backup.at_risk(run, policy)
    steps, seconds = lost["steps"], lost["seconds"]
    return {
        "steps": steps,
        "seconds": seconds,
        "money": _price_of(seconds) if steps else None,
        "safe_step": lost["step"],
    }


def at_risk(run: RunFolder, state: dict[str, Any] | None = None) -> dict[str, Any]:
    """What would be lost if the ranks ended now: the steps since the last sealed checkpoint, their time and price.

    `seconds` and `money` are null where no time or no price is known.
    """
    steps, seconds = unsaved(run.read_state() if state is None else state)
    return {"steps": steps, "seconds": seconds, "money": _price_of(seconds) if steps else None}


def unsaved(state: dict[str, Any]) -> tuple[int, float | None]:
    """The steps since the last sealed checkpoint, and how long the ranks trained for them (None: not known)."""
    sealed = (state.get("last_checkpoint") or {}).get("step") or 0
    steps = 0 if state.get("state") == "done" else max(0, (state.get("step") or 0) - sealed)
    return steps, state.get("unsaved_s") if steps else 0.0


def _price_of(seconds: float | None) -> dict[str, Any] | None:
    from engine import settings
    from engine.errors import FtuiError

    try:
        known = settings.load()
    except FtuiError:  # a broken settings file is reported by whoever needs a setting to go on
        return None
    if seconds is None or known.price is None:
        return None
    hours = {"hour": 1.0, "month": 730.0}[known.price_period]
    return {"amount": known.price * seconds / 3600 / hours, "currency": known.price_currency}
