"""`ftui doctor`: check this machine and say how to fix what is wrong."""

from __future__ import annotations

import argparse
import sys

from engine.text import _, ngettext
from tui.output import Output

MARKS = {"ok": "✓", "warn": "!", "fail": "✗"}
ASCII_MARKS = {"ok": "+", "warn": "!", "fail": "x"}
STYLES = {"warn": "warning", "fail": "error"}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument("--quick", action="store_true", help=_("do not load torch"))


def run(args: argparse.Namespace, out: Output) -> int:
    """Print the checks; exit code 1 when something prevents a run."""
    from engine import settings
    from engine.hardware import doctor
    from engine.workspace import locate
    from tui.output import width

    python = settings.training_python()
    if not args.quick:
        out.progress(_("loading torch in {python} …").format(python=python))
    report = doctor.run(locate(args.home), python, torch=not args.quick)
    if args.json:
        out.json(report.to_json())
        return 0 if report.ok else 1
    marks = MARKS if "utf" in (sys.stdout.encoding or "").lower() else ASCII_MARKS
    column = max(width(check.title) for check in report.checks)
    group = None
    for check in report.checks:
        if group not in (None, check.group):
            out.line()
        group = check.group
        space = " " * (column - width(check.title))
        out.line(f" {marks[check.state]} {check.title}{space}  {check.value}", _style(check.state))
        if check.detail:
            out.line(f"   {' ' * column}  {check.detail}", "dim")
        if check.fix:
            out.line(f"   {' ' * column}  " + _("fix: {fix}").format(fix=check.fix))
    out.line()
    failed = sum(check.state == "fail" for check in report.checks)
    warned = sum(check.state == "warn" for check in report.checks)
    if failed:
        text = ngettext("{n} problem prevents a run", "{n} problems prevent a run", failed).format(n=failed)
        out.line(text, "error")
        return 1
    if warned:
        text = ngettext("ready, with {n} remark", "ready, with {n} remarks", warned).format(n=warned)
        out.line(text, "warning")
        return 0
    out.line(_("ready"), "ok")
    return 0


def _style(state: str) -> str | None:
    return STYLES.get(state)
