"""`ftui explain RUN`: why a run ended, where that can be read, and what to do; `--apply N` does it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from engine.text import _
from tui.arguments import at_least
from tui.commands.run import FOLLOW, STREAMS
from tui.output import Output

if TYPE_CHECKING:
    from engine.run.diagnose import Diagnosis
    from engine.workspace import RunFolder

__all__ = ["STREAMS", "configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("--apply", type=at_least(1), metavar="N", help=_("do what fix N says: resume, or start anew"))
    parser.add_argument("--follow", action="store_true", help=FOLLOW)


def run(args: argparse.Namespace, out: Output) -> int:
    """Explain it."""
    import time

    from engine.run import diagnose
    from engine.workspace import locate
    from tui.commands.run import after_start

    folder = locate(args.home).find(args.run)
    found = diagnose.diagnose(folder)
    if args.apply is None:
        if out.as_json:
            out.json({"run": folder.name, "diagnosis": None if found is None else found.to_json()})
        elif found is None:
            from engine.run.status import summary

            out.line(_("{run} is {state}: nothing to explain").format(run=folder.name, state=summary(folder)["state"]))
        else:
            show(found, folder, out)
        return 0
    begin = time.time()
    return after_start(diagnose.apply(folder, found, args.apply), args, out, since=begin)


def show(found: Diagnosis, folder: RunFolder, out: Output) -> None:
    """What happened, the evidence, the fixes with their commands."""
    from engine.run.diagnose import memory_words, where

    out.line(f"{folder.name}  {found.title}", "error")
    out.field(_("what"), found.what)
    if text := where(found):
        out.field(_("where"), text)
    if found.memory and (text := memory_words(found.memory)):
        out.field(_("memory"), text)
    for line in found.evidence:
        place = f"{line.file}:{line.line}" if line.line else line.file
        out.field(_("seen"), f"{place}  {line.text}", "dim")
    for number, fix in enumerate(found.fixes, 1):
        out.field(_("fix {n}").format(n=number), fix.text)
        if fix.command:
            out.line(" " * 11 + fix.command, "accent")
    if any(fix.action for fix in found.fixes):
        out.note(_("  ftui explain {run} --apply N   does it").format(run=folder.name))
