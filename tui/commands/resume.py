"""`ftui resume RUN`: go on from the newest good checkpoint; `--drill` proves that it would work."""

from __future__ import annotations

import argparse
import time
from typing import Any

from engine.text import _
from tui.arguments import at_least
from tui.commands.run import FOLLOW, STREAMS
from tui.output import Output

__all__ = ["STREAMS", "configure", "run", "show_resume"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("run", metavar="RUN")
    parser.add_argument(
        "changes",
        nargs="*",
        default=[],
        metavar="key=value",
        help=_("values to go on with: those that neither rows nor weights depend on, such as the micro-batch"),
    )
    parser.add_argument(
        "--step", type=at_least(0), help=_("the checkpoint to go on from (default: the newest good one)")
    )
    parser.add_argument("--gpus", type=at_least(0), help=_("how many GPUs to use (default: as before)"))
    parser.add_argument("--force", action="store_true", help=_("go on though loading the checkpoint does not fit"))
    parser.add_argument(
        "--drill",
        action="store_true",
        help=_(
            "train a few steps from the checkpoint in a scratch folder and compare the losses; the run is not touched"
        ),
    )
    parser.add_argument("--steps", type=at_least(1), default=None, metavar="N", help=_("how many steps a drill trains"))
    parser.add_argument("--follow", action="store_true", help=FOLLOW)


def run(args: argparse.Namespace, out: Output) -> int:
    """Resume it."""
    from engine.run import resuming
    from engine.workspace import locate
    from tui.commands.run import after_start

    folder = locate(args.home).find(args.run)
    if args.drill:
        from tui.commands.drill import drill

        return drill(folder, args, out)
    begin = time.time()
    started = resuming.resume(folder, step=args.step, gpus=args.gpus, changes=args.changes, force=args.force)
    if started.resumed is not None and not out.as_json:
        show_resume(started.resumed, out)
    return after_start(started, args, out, since=begin)


def show_resume(report: dict[str, Any], out: Output) -> None:
    """The checkpoints that were passed over, what is different from before, and whether the resume is exact."""
    from engine.run import comparison

    for skipped in report["skipped"]:
        out.line(_("skipped {checkpoint}").format(checkpoint=skipped), "warning")
    if report["changed"]:
        rows = [list(row) for row in comparison.rows(report)]
        out.table(["", _("before"), _("now")], rows, right=frozenset({1, 2}))
    if report["exact"]:
        out.line(_("exact: the losses will be those of the run without a break"), "ok")
    else:
        out.line(_("not exact: {why}").format(why="; ".join(report["differs"])), "warning")
