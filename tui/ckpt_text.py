"""What `ftui ckpt` shows people: the verdict on checkpoints, what a prune would do, and how far a long reading is."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from engine.text import _, ngettext
from tui.output import Output

if TYPE_CHECKING:
    from engine.checkpoint import pruning, verify

SHOWN = 70  # characters of the worst problem in the table; all of them follow below it
LEVEL_STYLE = {"error": "error", "warning": "warning", "note": "dim"}


class Progress:
    """A line on the terminal that says how far it is, twice a second; nothing where there is no terminal."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._on = sys.stderr.isatty()
        self._began = self._last = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if not self._on or now - self._began < 1 or now - self._last < 0.5:
            return
        from engine.text import gigabytes

        self._last = now
        text = _("{what} {done} of {total}, {speed}/s").format(
            what=self._what,
            done=gigabytes(done),
            total=gigabytes(total),
            speed=gigabytes(done / (now - self._began), 0),
        )
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()

    def end(self) -> None:
        """Take the line away."""
        if self._last > self._began:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def show_report(report: verify.Report, folder: Path, out: Output) -> None:
    """The table of checkpoints, each problem with its fix, and which one to resume from."""
    from engine.checkpoint.problems import clean
    from engine.text import gigabytes, number

    if not report.checkpoints:
        out.line(_("there are no checkpoints in {folder}").format(folder=clean(str(folder))))
        return
    states = {"complete": _("complete"), "broken": _("broken"), "staging": _("staging"), "foreign": _("foreign")}
    rows = []
    for entry in report.checkpoints:
        state = _("usable, not exact") if entry.state == "broken" and entry.resumable else states[entry.state]
        worst = entry.findings[0].detail if entry.findings else ""
        worst = worst if len(worst) <= SHOWN else worst[: SHOWN - 1] + "…"
        size = gigabytes(entry.bytes) if entry.files else "-"
        mark = ">" if entry is report.resume_from else ""
        rows.append([mark, clean(entry.path.name), state, number(entry.files), size, worst])
    out.table(["", _("checkpoint"), _("state"), _("files"), _("size"), ""], rows, right=frozenset({3, 4}))
    for entry in report.checkpoints:
        told = [finding for finding in entry.findings if finding.level != "note"]
        if not told:
            continue
        out.line()
        out.line(clean(entry.path.name), "bold")
        for finding in told:
            more = finding.count - 1
            text = finding.detail + (
                " " + ngettext("(and {n} more)", "(and {n} more)", more).format(n=number(more)) if more > 0 else ""
            )
            out.line(f"  {finding.kind}: {text}", LEVEL_STYLE[finding.level])
            out.line(_("    fix  {fix}").format(fix=finding.fix))
    out.line()
    if report.resume_from is None:
        out.line(_("nothing here can be resumed from"), "error")
        return
    style = "ok" if report.exit_code == 0 else "warning"
    out.line(_("resume from {name}").format(name=clean(report.resume_from.path.name)), style)
    if not report.resume_from.exact:
        out.line(_("  not exactly the run that it was: see above"), "warning")


def show_plan(plan: pruning.Plan, removed: set[Path], run: str, out: Output, *, done: bool) -> None:
    """Which checkpoints go, of which only the weights stay, and why; `done`: it was carried out."""
    from engine.text import gigabytes, number

    rows = []
    for verdict in plan.verdicts:
        words = {"go": _("goes"), "reduce": _("weights stay"), "stay": _("stays")}
        what = _("removed") if verdict.entry.path in removed else words[verdict.action]
        rows.append([number(verdict.entry.step), gigabytes(verdict.entry.bytes), what, verdict.reason])
    if not rows:
        out.line(_("{run} has no checkpoints yet").format(run=run))
        return
    out.table([_("step"), _("size"), "", _("because")], rows, right=frozenset({0, 1}))
    going = sum(verdict.action != "stay" for verdict in plan.verdicts)
    if done and going:
        out.line(_("{size} freed").format(size=gigabytes(plan.bytes)), "ok")
    elif going:
        out.line(_("{size} would be freed; nothing was removed").format(size=gigabytes(plan.bytes)))
        out.note(_("  ftui ckpt prune {run} --yes   removes them").format(run=run))
    else:
        out.line(_("nothing to remove"), "ok")
