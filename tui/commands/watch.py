"""`ftui watch RUN`: the run screen where there is a terminal, else one line an event."""

from __future__ import annotations

import argparse

from engine.text import _
from tui.output import Output

STREAMS = "one JSON object a line on stdout: the run's events and its journal, until it ends"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("--no-tmux", action="store_true", help=_("stay in this terminal"))
    parser.add_argument("--plain", action="store_true", help=_("lines instead of the run screen"))


def run(args: argparse.Namespace, out: Output) -> int:
    """Watch it."""
    from engine.workspace import locate
    from tui.terminal import interactive, open_app

    workspace = locate(args.home)
    folder = workspace.find(args.run)
    if interactive() and not args.plain and not out.as_json:
        inside = folder.path.parent == workspace.runs_dir
        return open_app(workspace, run=folder.name if inside else str(folder.path), no_tmux=args.no_tmux)
    from tui.follow import follow

    return follow(folder, out, stream=out.as_json)
