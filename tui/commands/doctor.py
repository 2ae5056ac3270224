"""`ftui doctor`: check this machine and say how to fix what is wrong."""

from __future__ import annotations

import argparse
import shutil
import sys
import textwrap
from typing import TYPE_CHECKING

from engine.text import _, ngettext
from tui.output import Output, width

if TYPE_CHECKING:
    from engine.hardware.doctor import Check

MARKS = {"ok": "✓", "warn": "!", "fail": "✗"}
ASCII_MARKS = {"ok": "+", "warn": "!", "fail": "x"}
STYLES = {"warn": "warning", "fail": "error"}
WIDEST = 110  # longer lines are hard to read


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument("--quick", action="store_true", help=_("do not load torch"))


def run(args: argparse.Namespace, out: Output) -> int:
    """Print the checks; exit code 1 when something prevents a run."""
    from engine import settings
    from engine.hardware import doctor
    from engine.workspace import locate

    python = settings.training_python()
    workspace = locate(args.home)
    if not args.quick:
        out.progress(_("loading torch in {python} …").format(python=python))
    report = doctor.run(workspace, python, torch=not args.quick)
    if args.json:
        out.json(report.to_json())
        return 0 if report.ok else 1
    column = max(width(check.title) for check in report.checks)
    group = report.checks[0].group
    for check in report.checks:
        if check.group != group:
            out.line()
        group = check.group
        _show(check, column, out)
    out.line()
    _summary(report.checks, out)
    return 0 if report.ok else 1


def _show(check: Check, column: int, out: Output) -> None:
    """One check: mark, title, value; the detail behind it where it fits, else below; the fix below."""
    marks = MARKS if "utf" in (sys.stdout.encoding or "").lower() else ASCII_MARKS
    room = min(WIDEST, shutil.get_terminal_size((WIDEST, 24)).columns)
    indent = " " * (column + 5)
    head = f" {marks[check.state]} {check.title}{' ' * (column - width(check.title))}  {check.value}"
    detail = check.detail
    style = STYLES.get(check.state)
    if detail and width(head) + 2 + width(detail) <= room:
        out.line(out.styled(head, style, sys.stdout) + "  " + out.styled(detail, "dim", sys.stdout))
        detail = ""
    else:
        out.line(head, style)
    for text, shade in ((detail, "dim"), (_("fix: {fix}").format(fix=check.fix) if check.fix else "", None)):
        for line in textwrap.wrap(text, max(30, room - len(indent)), break_long_words=False, break_on_hyphens=False):
            out.line(indent + line, shade)


def _summary(checks: list[Check], out: Output) -> None:
    failed = sum(check.state == "fail" for check in checks)
    warned = sum(check.state == "warn" for check in checks)
    if failed:
        text = ngettext("{n} problem prevents a run", "{n} problems prevent a run", failed)
        out.line(text.format(n=failed), "error")
    elif warned:
        out.line(ngettext("ready, with {n} remark", "ready, with {n} remarks", warned).format(n=warned), "warning")
    else:
        out.line(_("ready"), "ok")
