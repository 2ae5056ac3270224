"""`ftui status RUN`: one run in full."""

from __future__ import annotations

import argparse
from typing import Any

from engine.text import _, ngettext
from tui.output import Output

DAY = 86_400
LIVE = ("starting", "running", "saving")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("run", metavar="RUN")


def run(args: argparse.Namespace, out: Output) -> int:
    """Show it."""
    from engine.run import status
    from engine.workspace import locate

    document = status.status(locate(args.home).find(args.run))
    if out.as_json:
        out.json(document)
    else:
        _show(document, out)
    return 0


def _show(document: dict[str, Any], out: Output) -> None:
    from engine.text import duration, gigabytes, number
    from tui.follow import describe

    state, phase = document["state"], document.get("phase")
    style = {"failed": "error", "lost": "error", "stopped": "warning"}.get(state, "ok")
    out.line(f"{document['name']}  {state}" + (f" ({phase})" if phase and phase != "train" else ""), style)
    if document["max_steps"]:
        text = _("{step} of {max}").format(step=number(document["step"] or 0), max=number(document["max_steps"]))
        if (document.get("attempt") or 1) > 1:
            text += _(", attempt {n}").format(n=document["attempt"])
        out.field(_("step"), text)
    if document["loss"] is not None:
        out.field(_("loss"), number(document["loss"], 4))
    if document["eval_loss"] is not None:
        out.field(_("eval loss"), number(document["eval_loss"], 4))
    if document["device"]:
        out.field(_("device"), _device(document))
    if document["elapsed_s"]:
        out.field(_("elapsed"), duration(document["elapsed_s"]))
    if document["eta_s"] is not None and state in ("running", "saving"):
        out.field(_("ETA"), _eta(document["eta_s"]))
    if plan := document.get("plan"):
        out.field(_("plan"), _planned(plan))
    _show_saved(document, out)
    for gpu in document.get("gpus") or []:
        used, total = gpu.get("memory_used"), gpu.get("memory_total")
        memory = f"{gigabytes(used)} / {gigabytes(total)}" if used is not None and total is not None else "-"
        out.field(f"GPU {gpu.get('index')}", f"{gpu.get('name')}  {memory}")
    out.field(_("folder"), document["path"])
    if error := document.get("error"):
        out.field(_("error"), str(error.get("message")), "error")
        for label, key in ((_("at"), "where"), (_("fix"), "fix")):
            if error.get(key) and error[key] != document["path"]:
                out.field(label, str(error[key]))
    if diagnosis := document.get("diagnosis"):
        out.field(_("why"), diagnosis["title"])
        out.note(_("  ftui explain {run}   shows where that can be read, and what to do").format(run=document["name"]))
    if drill := document.get("drill"):
        text = _("a resume from step {step} works") if drill.get("passed") else _("a resume from step {step} fails")
        out.field(_("drilled"), text.format(step=number(drill.get("step") or 0)), "ok" if drill["passed"] else "error")
    for event in (document.get("events") or [])[-8:]:
        if event.get("event") == "launched" and state != "starting":
            continue  # the lines of the training program itself are not here: this one would look like the newest
        if told := describe(event):
            out.line(told, "dim")


def _device(document: dict[str, Any]) -> str:
    n = document["world_size"] or 1
    if document["device"] == "cpu":
        return _("CPU")
    return ngettext("{n} GPU", "{n} GPUs", n).format(n=n)


def _eta(seconds: float) -> str:
    """How long, and at what time of day that is."""
    import time

    from engine.text import clock, duration, when

    end = time.time() + seconds
    return _("{time}, at {clock}").format(time=duration(seconds), clock=clock(end) if seconds < DAY else when(end))


def _show_saved(document: dict[str, Any], out: Output) -> None:
    """What is saved, what is not, and how to go on."""
    from engine.text import duration, number

    state, run, saved = document["state"], document["name"], document["last_checkpoint"] or {}
    step = saved.get("step")
    if type(step) is not int:  # of a damaged state.json
        step = None
    if step is not None:
        out.field(_("checkpoint"), _("step {step}: {path}").format(step=number(step), path=saved.get("path")))
    _show_elsewhere(document["at_risk"], out)
    if state == "done":
        out.field(_("result"), f"{document['path']}/final")
        return
    if document["step"] and state in LIVE:
        out.field(_("safety"), safety(document))
    if state in LIVE or state == "queued":
        return
    lost = document["unsaved"]
    if lost["steps"]:
        text = ngettext("{n} step was not saved", "{n} steps were not saved", lost["steps"])
        text = text.format(n=number(lost["steps"]))
        out.field(_("lost"), f"{text} ({duration(lost['seconds'])})" if lost["seconds"] else text)
    if state == "lost":  # the fix of its error says how to go on
        return
    if step is not None:
        text = _("`ftui resume {run}` goes on from step {step}").format(run=run, step=number(step))
        out.field(_("next"), text)
    else:
        from pathlib import Path

        from engine.run.status import start_again
        from engine.workspace import RunFolder

        text = start_again(RunFolder(Path(document["path"])))
        out.field(_("next"), _("no checkpoint to go on from; {start_again}").format(start_again=text))


def _show_elsewhere(risk: dict[str, Any], out: Output) -> None:
    """What is proved at the run's remote, where it has one."""
    from engine.text import number

    if "safe_step" not in risk:
        return
    text = _("nothing is proved at the remote yet")
    if risk["safe_step"] is not None:
        text = _("proved at the remote to step {step}").format(step=number(risk["safe_step"]))
    if risk["steps"]:
        lost = ngettext(
            "{n} step would be lost with this server", "{n} steps would be lost with this server", risk["steps"]
        )
        text += " · " + lost.format(n=number(risk["steps"]))
    out.field(_("backup"), text, "warning" if risk["steps"] else "ok")


def safety(document: dict[str, Any]) -> str:
    """What is saved and what would be lost, as the screens say it, and its price."""
    from engine.text import money
    from tui.risk import sentences

    lost = document["unsaved"]
    text = sentences((document["last_checkpoint"] or {}).get("step"), lost["steps"], lost["seconds"])[0]
    return f"{text} · {money(**lost['money'])}" if lost["money"] else text


def _planned(plan: dict[str, Any]) -> str:
    """What the run was predicted to take, in one line."""
    from engine.plan.on_cpu import CPU
    from engine.text import duration, number

    result = plan["result"]
    on_cpu = plan.get("request", {}).get("gpu") == CPU
    parts = []
    if (needs := (result.get("per_gpu") or {}).get("needs_gb")) is not None:
        text = _("{gb} GB of host memory") if on_cpu else _("{gb} GB a GPU")
        parts.append(text.format(gb=number(needs, 1)))
    time = result.get("time") or {}
    if time.get("tokens_per_s_total") and plan.get("useful_share"):
        rate = time["tokens_per_s_total"] * plan["useful_share"]
        parts.append(_("{rate} tokens/s").format(rate=number(rate)))
    if time.get("hours"):
        parts.append(duration(time["hours"] * 3600))
    if correction := result.get("corrected_by"):
        parts.append(_("corrected by {run}").format(run=correction.get("run")))
    return ", ".join(parts)
