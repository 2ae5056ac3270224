"""The two tiers of a plan side by side: the closed form and the real step, by phase and by part."""

from __future__ import annotations

from engine.plan.dryrun import DryRun
from engine.plan.plan import Result
from engine.text import _, number
from tui import plan_words as words
from tui.output import Output
from tui.plan_text import MARK, STYLE

PARTS = ("weights", "gradients", "optimizer", "activations", "logits", "transients")


def show(result: Result, dry: DryRun, out: Output) -> None:
    """Print both tiers, the verdict of the dry run, and how it was made."""
    closed = result.memory
    names = {
        "weights": _("weights"), "gradients": _("gradients"), "optimizer": _("optimizer"),
        "activations": _("activations"), "logits": _("logits"), "transients": _("transients"),
    }  # fmt: skip
    rows = []
    for phase in dry.phases:
        rows.append(_row(words.phase(phase.name), closed.phase(phase.name).total, phase.total))
    rows.append(_row(_("the peak"), closed.peak.total, dry.peak.total))
    for part in PARTS:
        one, other = closed.phase(dry.peak.name).parts.get(part, 0.0), dry.peak.parts[part]
        if max(one, other) >= 5e6:
            rows.append(_row("  " + names[part], one, other))
    out.line()
    headers = [_("GB ALLOCATED"), _("closed form"), _("dry run"), _("difference")]
    out.table(headers, rows, right=frozenset((1, 2, 3)))
    verdict = dry.verdict(result)
    verdicts = {"fits": _("fits"), "tight": _("tight"), "no": _("does not fit"), None: _("no card to hold it against")}
    line = _("{mark} dry run: {verdict}, needs {needs} GB").format(
        mark=MARK[verdict], verdict=verdicts[verdict], needs=words.gb(dry.needs(result))
    )
    out.line("  " + line, STYLE[verdict])
    out.line("    " + _made(dry), "dim")
    for note in dry.notes:
        out.line("    " + note, "dim")


def _row(name: str, one: float, other: float) -> list[str]:
    difference = f"{number(100 * (one / other - 1), 1)} %" if other else ""
    return [name, words.gb(one, 2), words.gb(other, 2), difference]


def _made(dry: DryRun) -> str:
    versions = f"torch {dry.versions['torch']}, transformers {dry.versions['transformers']}"
    if dry.cached:
        return _("remembered; {versions}").format(versions=versions)
    seconds = number(dry.seconds, 1)
    if len(dry.depths) == 2:
        return _("{layers} layers from {few} and {more}, {seconds} s; {versions}").format(
            layers=dry.layers, few=dry.depths[0], more=dry.depths[1], seconds=seconds, versions=versions
        )
    return _("all {layers} layers, {seconds} s; {versions}").format(
        layers=dry.layers, seconds=seconds, versions=versions
    )
