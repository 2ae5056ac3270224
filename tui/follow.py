"""Following a run without the terminal app: one line an event until the run ends."""

from __future__ import annotations

import time
from typing import Any

from engine.journal import JournalReader
from engine.run import status
from engine.text import _, clock, duration, ngettext, number
from engine.workspace import RunFolder
from tui.output import Output

POLL_S = 0.5
ENDED = ("done", "stopped", "failed", "lost")
RESUMABLE = 75
EXIT_CODES = {"done": 0, "stopped": RESUMABLE, "failed": 1, "lost": 1}


def follow(run: RunFolder, out: Output, *, stream: bool = False, since: float = 0.0) -> int:
    """Print a run's journal and events as they come; return the run's exit code when it has ended.

    Args:
        run: the run.
        out: where the lines go.
        stream: print each event as one JSON line on stdout instead of a line for people.
        since: leave out what happened before.
    """
    readers = [JournalReader(run.journal), JournalReader(run.events)]
    shown = 0
    while True:
        # The state is read before the files, so that what was written before the end is still shown.
        row = status.summary(run)
        events = [event for reader in readers for event in reader.all()]
        for event in sorted(events, key=lambda event: _figure(event, "time") or 0.0):
            if (_figure(event, "time") or since) < since:
                continue
            if stream:
                out.json(event)
                continue
            attempt = event.get("attempt")
            if isinstance(attempt, int) and attempt > shown:
                if shown:
                    out.line(_("attempt {n}").format(n=attempt), "accent")
                shown = attempt
            if text := describe(event):
                out.line(text)
        if row["state"] in ENDED:
            return finish(run, row, out)
        time.sleep(POLL_S)


def code_of(run: RunFolder, row: dict[str, Any]) -> int:
    """The exit code of a run that has ended."""
    told = run.read_state().get("exit_code")
    state = row["state"]
    return told if isinstance(told, int) and state in ("failed", "stopped") and told > 0 else EXIT_CODES[state]


def finish(run: RunFolder, row: dict[str, Any], out: Output) -> int:
    """Say how the run ended and what to type next; return its exit code."""
    state, code = row["state"], code_of(run, row)
    error = row.get("error") or {}
    if state == "done":
        out.note(_("{run} is done at step {step}: {path}").format(run=run.name, step=row["step"], path=run.final), "ok")
    elif state == "stopped" and code == RESUMABLE:
        out.note(
            _("{run} stopped at step {step} with everything saved; `ftui resume {run}` goes on").format(
                run=run.name, step=row["step"]
            ),
            "warning",
        )
    elif state == "stopped":
        out.note(
            _("{run} stopped at step {step}; {lost}").format(run=run.name, step=row["step"], lost=_lost(run)), "warning"
        )
    elif state == "lost":
        text = _("{run} is lost: its supervisor is gone; {fix}").format(run=run.name, fix=error.get("fix") or "")
        out.note(text, "error")
    else:
        out.note(_("{run} failed: {why}").format(run=run.name, why=error.get("message") or _("see the logs")), "error")
        if error.get("where"):
            out.note(_("  at   {where}").format(where=error["where"]))
        if error.get("fix"):
            out.note(_("  fix  {fix}").format(fix=error["fix"]))
    return code


def _lost(run: RunFolder) -> str:
    """What a stop without a save cost, and how to go on."""
    state = run.read_state()
    steps, _seconds = status.unsaved(state)
    saved = (state.get("last_checkpoint") or {}).get("step")
    if saved is None:
        return _("nothing was saved: start it again with `ftui run`")
    text = ngettext(
        "{n} step after checkpoint {step} is lost: `ftui resume {run}` goes on from there",
        "{n} steps after checkpoint {step} are lost: `ftui resume {run}` goes on from there",
        steps,
    )
    return text.format(n=steps, step=saved, run=run.name)


def describe(event: dict[str, Any]) -> str | None:
    """One line for people about a journal line or an event; None for what does not interest them."""
    text = _sentence(event)
    if text is None:
        return None
    moment = _figure(event, "time")
    return f"{clock(moment)}  {text}" if moment is not None else text


def _figure(event: dict[str, Any], key: str) -> float | None:
    """A number of the event; None for anything else (a damaged line must not end the watching)."""
    value = event.get(key)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


WATCHED = frozenset({"hang", "stacks", "guard", "given_up", "drill"})


def watched(event: dict[str, Any]) -> str | None:
    """What the supervisor saw while it watched over the training, in words."""
    name, step = event.get("event"), number(_figure(event, "step") or 0)
    if name == "hang":
        text = _("no sign of life for {time} at step {step}: the ranks hang")
        return text.format(time=duration(_figure(event, "seconds") or 0), step=step)
    if name == "stacks":
        files = event.get("files")
        return _("where they stand: {files}").format(files=", ".join(map(str, files)) if files else "-")
    if name == "guard":
        words = {"nan": _("a loss that is no number"), "spike": _("a spike of the loss")}
        what = words.get(str(event.get("what")), _("an evaluation that only rises"))
        actions = {"stop": _("stopping"), "rollback": _("going back to step {step}")}
        action = actions.get(str(event.get("action")), _("only said")).format(
            step=number(_figure(event, "back_to") or 0)
        )
        return _("step {step}: {what}: {action}").format(step=step, what=what, action=action)
    if name == "given_up":
        reasons = {
            "same_step": _("it failed at step {step} twice: not tried again")
            if _figure(event, "step") is not None
            else _("it failed before training began: not tried again"),
            "limit": _("it was restarted often enough: not tried again"),
            "final": _("another try would end the same way"),
        }
        return reasons.get(str(event.get("reason")), _("not tried again")).format(step=step)
    if event.get("passed"):
        return _("drill from step {step}: a resume works").format(step=step)
    return _("drill from step {step}: a resume does not work: {why}").format(step=step, why=event.get("reason") or "?")


def _sentence(event: dict[str, Any]) -> str | None:
    name = event.get("event")
    if name == "start":
        return _("training from step {step} to {max_steps} on {n} {device}, global batch {batch}").format(
            step=event.get("step") or 0,
            max_steps=event.get("max_steps"),
            n=event.get("world_size"),
            device=event.get("device"),
            batch=event.get("global_batch_size"),
        )
    if name == "log" and (loss := _figure(event, "loss")) is not None:
        parts = [_("step {step}").format(step=event.get("step")), f"loss {number(loss, 4)}"]
        if (rate := _figure(event, "learning_rate")) is not None:
            parts.append(f"lr {rate:.2e}")
        if speed := _figure(event, "tokens_per_s"):
            parts.append(f"{number(speed)} tok/s")
        return "  ".join(parts)
    if name == "eval" and (loss := _figure(event, "eval_loss")) is not None:
        return f"{_('step {step}').format(step=event.get('step'))}  eval loss {number(loss, 4)}"
    if name == "save":
        return _("checkpoint {step} sealed in {time}").format(
            step=event.get("step"), time=duration(_figure(event, "seconds") or 0)
        )
    if name == "save_failed":
        return _("checkpoint {step} could not be saved: {reason}; training goes on").format(
            step=event.get("step"), reason=event.get("reason")
        )
    if name == "restart":
        return _("restarting, attempt {attempt}").format(attempt=event.get("attempt"))
    if name == "resumed":
        return _("resuming from {checkpoint}, attempt {attempt}").format(
            checkpoint=str(event.get("resumed_from") or "").rsplit("/", 1)[-1], attempt=event.get("attempt")
        )
    if name in WATCHED:
        return watched(event)
    if name == "launched":
        return _("starting the training program")
    if name == "phase":
        return {
            "libraries": _("loading libraries"),
            "builtin": _("making the built-in model (once)"),
            "download": _("downloading the model"),
            "data": _("reading and tokenizing the data"),
            "model": _("loading the model"),
        }.get(str(event.get("doing")))
    if name == "left_out" and event.get("rows"):
        first = event["first"][0] if isinstance(event.get("first"), list) and event["first"] else ""
        return _("{n} rows cannot be trained on and are left out; the first: {first}").format(
            n=event["rows"], first=first
        )
    if name == "gpu":
        return _("GPU {index}: {what}").format(index=event.get("index"), what=event.get("what"))
    return None
