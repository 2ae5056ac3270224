"""`ftui merge`: an adapter merged into its base model, verified, as a folder that serves."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from engine.text import _
from tui.output import Output

if TYPE_CHECKING:
    from engine.merge.run import Result


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("source", metavar="RUN_OR_ADAPTER", help=_("a run, or a folder with adapter_config.json"))
    parser.add_argument("--base", metavar="DIR", help=_("the base model (default: what the adapter names)"))
    parser.add_argument("--out", metavar="DIR", required=True, help=_("the folder to be made"))
    parser.add_argument(
        "--dtype", choices=["bf16", "fp16", "fp32"], help=_("type of the weights (default: the base's)")
    )
    parser.add_argument(
        "--step", type=int, metavar="N", help=_("a run's checkpoint (default: its result, or the best)")
    )
    parser.add_argument("--skip-logits", action="store_true", help=_("verify tensors only, load no model"))
    parser.add_argument("--ignore-gate", action="store_true", help=_("merge although an evaluation's gate said no"))
    parser.add_argument("--dry-run", action="store_true", help=_("say what would be done, and do nothing"))


def run(args: argparse.Namespace, out: Output) -> int:
    """Merge; 1 when adapter and base do not allow it, 4 when the result is not what it should be."""
    from engine.files import user_path
    from engine.merge import source
    from engine.merge.run import merge
    from engine.workspace import locate

    adapter = source.find(locate(args.home), args.source, args.step)
    if adapter.run is not None and not args.ignore_gate:
        from engine.evaluate import gate

        if warning := gate.require(adapter.run, adapter.step):
            out.note(warning, "warning")
    result = merge(
        adapter,
        user_path(args.out).absolute(),
        base=args.base,
        dtype=args.dtype,
        logits=not args.skip_logits,
        dry_run=args.dry_run,
        say=out.progress,
    )
    if out.as_json:
        out.json(result.to_json())
    else:
        show(result, out)
    return result.code


def show(result: Result, out: Output) -> None:
    """The result for people."""
    from engine.text import duration, gigabytes, ngettext, number
    from tui.commands.recipe import show_findings

    show_findings(result.findings, out)
    if result.code == 4:
        out.line(_("the merged model is not what it should be, and was not kept"), "error")
        return
    if result.code:
        out.line(_("nothing was merged"), "error")
        return
    count = ngettext("{n} tensor", "{n} tensors", result.tensors_merged).format(n=number(result.tensors_merged))
    size = gigabytes(result.bytes or 0)
    if result.dry_run:
        text = _("would merge {count} into {base} and write {size} ({dtype}) to {out}")
        out.line(text.format(count=count, base=result.base, size=size, dtype=result.dtype, out=result.out), "ok")
        return
    out.line(
        _("{out}: {count} merged, {size} ({dtype}), in {time}, {memory} of memory").format(
            out=result.out,
            count=count,
            size=size,
            dtype=result.dtype,
            time=duration(result.seconds),
            memory=gigabytes(result.peak_rss_bytes or 0),
        ),
        "ok",
    )
    checked = result.checked or {}
    out.line(
        _("  verified: {equal} of {n} sampled tensors equal to PEFT's to the bit").format(
            equal=number(checked.get("equal", 0)), n=number(checked.get("tensors", 0))
        )
    )
    if result.logits and not result.logits.get("skipped"):
        out.line(
            _(
                "  logits: differ by {difference} at most, {tolerance} tolerated; the adapter's effect is {effect}"
            ).format(
                difference=number(result.logits["max_abs_diff"], 5),
                tolerance=number(result.logits["tolerance"], 5),
                effect=number(result.logits["effect"], 3),
            )
        )
