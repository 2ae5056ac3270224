"""`ftui resume RUN`: go on from the newest good checkpoint, or from a chosen one."""

from __future__ import annotations

import argparse
import time

from engine.text import _
from tui.arguments import at_least
from tui.commands.run import FOLLOW, STREAMS
from tui.output import Output

__all__ = ["STREAMS", "configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("run", metavar="RUN")
    parser.add_argument(
        "--step", type=at_least(0), help=_("the checkpoint to go on from (default: the newest good one)")
    )
    parser.add_argument("--gpus", type=at_least(0), help=_("how many GPUs to use (default: as before)"))
    parser.add_argument("--follow", action="store_true", help=FOLLOW)


def run(args: argparse.Namespace, out: Output) -> int:
    """Resume it."""
    from engine.run import resuming
    from engine.workspace import locate
    from tui.commands.run import after_start

    workspace = locate(args.home)
    begin = time.time()
    started = resuming.resume(workspace.find(args.run), step=args.step, gpus=args.gpus)
    return after_start(started, args, out, since=begin)
