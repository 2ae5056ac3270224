"""`ftui runs`: the list of runs, newest first."""

from __future__ import annotations

import argparse

from engine.text import _
from tui.arguments import at_least
from tui.output import Output


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("-n", type=at_least(0), metavar="N", help=_("show the newest N only"))


def run(args: argparse.Namespace, out: Output) -> int:
    """List them."""
    from engine.run import status
    from engine.workspace import locate

    workspace = locate(args.home)
    rows = status.listing(workspace)
    if args.n is not None:
        rows = rows[: args.n]
    if out.as_json:
        out.json(rows)
        return 0
    from engine.text import duration, number

    if not rows:
        out.line(_("no runs yet in {home}").format(home=workspace.root))
        out.note(_("  ftui demo            fine-tune the built-in model"))
        out.note(_("  ftui recipe new      make a recipe of your own"))
        return 0

    def value(x: float | None, digits: int) -> str:
        return "-" if x is None else number(x, digits)

    cells = [
        [
            row["name"],
            row["state"],
            f"{number(row['step'] or 0)}/{number(row['max_steps'])}" if row["max_steps"] else "-",
            value(row["loss"], 3),
            value(row["eval_loss"], 3),
            duration(row["eta_s"]) if row["eta_s"] is not None and row["state"] in ("running", "saving") else "-",
            " ".join(str((row["error"] or {}).get("message") or "").split()),
        ]
        for row in rows
    ]
    headers = [_("run"), _("state"), _("step"), _("loss"), _("eval loss"), _("ETA"), _("error")]
    out.table(headers, cells, right=frozenset({2, 3, 4, 5}), kept=6)
    return 0
