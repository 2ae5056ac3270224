"""`ftui save RUN`: a checkpoint now, sealed before the command returns."""

from __future__ import annotations

import argparse

from engine.text import _
from tui.output import Output


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("--no-wait", action="store_true", help=_("return when the request is taken"))


def run(args: argparse.Namespace, out: Output) -> int:
    """Save it."""
    import time

    from engine.errors import FtuiError
    from engine.journal import JournalReader
    from engine.run import control, status
    from engine.text import duration
    from engine.workspace import locate
    from tui.follow import ENDED

    folder = locate(args.home).find(args.run)
    reader = JournalReader(folder.journal)
    for _event in reader.all():
        pass
    answer = control.send(folder, "save")
    if args.no_wait:
        out.json(answer) if out.as_json else out.line(_("asked {run} to save").format(run=folder.name))
        return 0
    out.note(_("asked {run} to save; waiting for the seal").format(run=folder.name))
    at: int | None = None  # the step at which the ranks acted upon it: one that is being written now is another
    while True:
        ended = status.summary(folder)["state"] in ENDED
        for event in reader.all():
            if event.get("event") == "request" and event.get("id") == answer.get("id"):
                at = event.get("step")
            if at is None or event.get("step", at) < at:
                continue
            if event.get("event") == "save":
                if out.as_json:
                    out.json({"run": folder.name, "step": event["step"], "path": event.get("path")})
                else:
                    out.line(
                        _("checkpoint {step} sealed in {time}").format(
                            step=event["step"], time=duration(event.get("seconds") or 0)
                        ),
                        "ok",
                    )
                return 0
            if event.get("event") == "save_failed":
                raise FtuiError(
                    _("the checkpoint could not be saved: {reason}").format(reason=event.get("reason")),
                    where=str(folder.checkpoints),
                    fix=_("free space there; training goes on"),
                    kind="save_failed",
                )
        if ended:
            raise FtuiError(
                _("{run} ended before it saved").format(run=folder.name),
                where=str(folder.path),
                fix=_("`ftui status {run}` says how").format(run=folder.name),
            )
        time.sleep(0.2)
