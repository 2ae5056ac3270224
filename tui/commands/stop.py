"""`ftui stop RUN`: stop with everything saved; `--now` without the save."""

from __future__ import annotations

import argparse

from engine.text import _
from tui.output import Output


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("--now", action="store_true", help=_("at once: the steps since the last save are lost"))
    parser.add_argument("--no-wait", action="store_true", help=_("return when the request is taken"))


def run(args: argparse.Namespace, out: Output) -> int:
    """Stop it."""
    import time

    from engine.run import control, status
    from engine.workspace import locate
    from tui.follow import ENDED, RESUMABLE, code_of, finish

    folder = locate(args.home).find(args.run)
    answer = control.send(folder, "stop_now" if args.now else "stop")
    if args.no_wait:
        out.json(answer) if out.as_json else out.line(_("asked {run} to stop").format(run=folder.name))
        return 0
    out.note(_("asked {run} to stop; waiting until it has").format(run=folder.name))
    while (row := status.summary(folder))["state"] not in ENDED:
        time.sleep(0.2)
    if out.as_json:
        out.json(row)
        code = code_of(folder, row)
    else:
        code = finish(folder, row, out)
    asked = row["state"] in ("stopped", "done") and (args.now or code in (0, RESUMABLE))
    return 0 if asked else 1  # without --now, a stop that lost steps is not what was asked for
