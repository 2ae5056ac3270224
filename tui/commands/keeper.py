"""`ftui keeper start|stop|status`: the background process of a workspace."""

from __future__ import annotations

import argparse

from engine.text import _
from tui.output import Output


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("do", choices=("start", "stop", "status"), metavar="start|stop|status")


def run(args: argparse.Namespace, out: Output) -> int:
    """Start it, stop it (runs go on), or say how it is."""
    from engine import keeper
    from engine.workspace import locate

    workspace = locate(args.home)
    stopped = False
    if args.do == "start":
        keeper.ensure(workspace)
    elif args.do == "stop":
        stopped = keeper.stop(workspace)
    document = keeper.status(workspace)
    if out.as_json:
        out.json(document)
    elif document["running"]:
        out.line(
            _("the keeper of {home} runs as process {pid} and watches {n} live runs").format(
                home=document["home"], pid=document["pid"], n=document["live_runs"] or 0
            ),
            "ok",
        )
    elif stopped:
        out.line(
            _("the keeper of {home} is stopped; runs go on, and the next one starts it").format(home=document["home"])
        )
    else:
        out.line(_("{home} has no keeper running; it starts with the next run").format(home=document["home"]))
    return 0
