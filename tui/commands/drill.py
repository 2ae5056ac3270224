"""What `ftui resume --drill` says: whether a resume from the checkpoint works, and what was compared."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from engine.text import _, ngettext
from tui.output import Output

if TYPE_CHECKING:
    from engine.run.drill import Drill
    from engine.workspace import RunFolder

FAILED = 4


def drill(folder: RunFolder, args: argparse.Namespace, out: Output) -> int:
    """Do it; 0 where a resume works, 4 where it does not."""
    from engine.run import drill as drills

    found = drills.drill(
        folder, step=args.step, gpus=args.gpus, steps=args.steps, changes=args.changes, say=out.progress
    )
    if out.as_json:
        out.json(found.to_json())
    else:
        show(found, out)
    return 0 if found.passed else FAILED


def show(found: Drill, out: Output) -> None:
    """The losses side by side, and the verdict."""
    from engine.text import duration, number

    for skipped in found.skipped:
        out.line(_("skipped {checkpoint}").format(checkpoint=skipped), "warning")
    if found.compared:
        words = {True: _("equal"), False: _("close enough")}
        rows = [
            [
                number(row["step"]),
                number(row["loss"], 6),
                number(row["journal"], 6),
                words[row["equal"]] if row["passed"] else _("differs"),
            ]
            for row in found.compared
        ]
        out.table([_("step"), _("drill"), _("journal"), ""], rows, right=frozenset({0, 1, 2}))
    elif found.passed:
        text = _("the journal has nothing beyond step {step} to compare with: the losses only go on where they were")
        out.line(text.format(step=number(found.step)), "warning")
        out.note(_("  `--step N` drills an older checkpoint"))
    if not found.passed:
        out.line(_("a resume from step {step} does not work: {why}").format(step=found.step, why=found.reason), "error")
        out.line(_("  logs  {folder}").format(folder=f"{found.scratch}/logs"))
        return
    n = len(found.compared)
    text = _("a resume from step {step} works: {steps} in {time}").format(
        step=number(found.step),
        steps=ngettext("{n} step trained", "{n} steps trained", found.steps).format(n=number(found.steps)),
        time=duration(found.seconds),
    )
    if n and all(row["equal"] for row in found.compared):
        text += ", " + _("every loss equal to the last digit")
    elif n:
        text += ", " + _("the losses within {share} %").format(share=number(100 * found.tolerance, 1))
    out.line(text, "ok")
    if found.differs:
        out.line(_("not exact: {why}").format(why="; ".join(found.differs)), "warning")
