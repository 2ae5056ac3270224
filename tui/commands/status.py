"""`ftui status RUN`: one run in full."""

from __future__ import annotations

import argparse
from typing import Any

from engine.text import _
from tui.output import Output


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

    state = document["state"]
    style = {"failed": "error", "lost": "error", "stopped": "warning"}.get(state, "ok")
    out.line(f"{document['name']}  {state}", style)
    if document["max_steps"]:
        out.line(_("step       {step} of {max}").format(step=document["step"], max=document["max_steps"]))
    if document["loss"] is not None:
        out.line(_("loss       {loss}").format(loss=number(document["loss"], 4)))
    if document["eval_loss"] is not None:
        out.line(_("eval loss  {loss}").format(loss=number(document["eval_loss"], 4)))
    if document["eta_s"] is not None and state in ("running", "saving"):
        out.line(_("left       {time}").format(time=duration(document["eta_s"])))
    if plan := document.get("plan"):
        out.line(_("plan       {what}").format(what=_planned(plan)))
    if document["step"] and state != "done":
        out.line(_("safety     {risk}").format(risk=safety(document)))
    for gpu in document.get("gpus") or []:
        used, total = gpu.get("memory_used"), gpu.get("memory_total")
        memory = f"{gigabytes(used)} / {gigabytes(total)}" if used is not None and total is not None else "-"
        out.line(f"GPU {gpu.get('index')}      {gpu.get('name')}  {memory}")
    out.line(_("folder     {path}").format(path=document["path"]))
    if error := document.get("error"):
        out.line(_("error      {what}").format(what=error.get("message")), "error")
        for label, key in ((_("at"), "where"), (_("fix"), "fix")):
            if error.get(key):
                out.line(f"{label:<9}  {error[key]}")
    for event in (document.get("events") or [])[-8:]:
        if told := describe(event):
            out.line(told, "dim")


def safety(document: dict[str, Any]) -> str:
    """What is saved and what would be lost, as the screens say it, and its price."""
    from engine.text import money
    from tui.risk import sentences

    lost = document["at_risk"]
    text = sentences((document["last_checkpoint"] or {}).get("step"), lost["steps"], lost["seconds"])[0]
    return f"{text} · {money(**lost['money'])}" if lost["money"] else text


def _planned(plan: dict[str, Any]) -> str:
    """What the run was predicted to take, in one line."""
    from engine.plan.on_cpu import CPU
    from engine.text import duration, number

    result = plan["result"]
    needs = number(result["per_gpu"]["needs_gb"], 1)
    on_cpu = plan["request"].get("gpu") == CPU
    parts = [(_("{gb} GB of host memory") if on_cpu else _("{gb} GB a GPU")).format(gb=needs)]
    time = result["time"]
    if time.get("tokens_per_s_total") and plan.get("useful_share"):
        rate = time["tokens_per_s_total"] * plan["useful_share"]
        parts.append(_("{rate} tokens/s").format(rate=number(rate)))
    if time.get("hours"):
        parts.append(duration(time["hours"] * 3600))
    if correction := result.get("corrected_by"):
        parts.append(_("corrected by {run}").format(run=correction["run"]))
    return ", ".join(parts)
