"""`ftui merge`: an adapter merged into its base model, verified, as a folder that serves."""

from __future__ import annotations

import argparse
import math
import re
from typing import TYPE_CHECKING, Any

from engine.errors import UsageError
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
        "--dtype", choices=["bf16", "fp16", "fp32", "fp8"], help=_("type of the weights (default: the base's)")
    )
    parser.add_argument(
        "--adapter",
        action="append",
        default=[],
        metavar="DIR=WEIGHT",
        help=_("another adapter on the same base, and its weight; may be given again"),
    )
    parser.add_argument("--weight", type=float, default=1.0, metavar="W", help=_("the first adapter's weight (1)"))
    parser.add_argument(
        "--quantized-base",
        nargs="?",
        const="run",
        choices=["run", "nf4", "nf4-double", "fp4", "fp4-double"],
        metavar="KIND",
        help=_("after QLoRA: merge into the 4-bit base that it was trained on (as the run says, or of this kind)"),
    )
    parser.add_argument(
        "--max-shard-size", metavar="SIZE", help=_("divide the weights anew, as 5GB (default: as the base)")
    )
    parser.add_argument(
        "--gguf",
        nargs="?",
        const="auto",
        choices=["auto", "f32", "f16", "bf16", "q8_0"],
        metavar="TYPE",
        help=_("write a GGUF file too, with llama.cpp's converter"),
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

    workspace = locate(args.home)
    adapter = source.find(workspace, args.source, args.step)
    more = [(source.find(workspace, name), weight) for name, weight in map(_weighed, args.adapter)]
    shard = _size(args.max_shard_size) if args.max_shard_size else None
    if not math.isfinite(args.weight):
        raise UsageError(_("--weight {text} is no number").format(text=args.weight), where="--weight")
    converter = _converter(args)
    if not args.ignore_gate:
        from engine.evaluate import gate

        for one in (adapter, *(other for other, _weight in more)):
            if one.run is not None and (warning := gate.require(one.run, one.step)):
                out.note(warning, "warning")
    result = merge(
        adapter,
        user_path(args.out).absolute(),
        base=args.base,
        dtype=args.dtype,
        logits=not args.skip_logits,
        dry_run=args.dry_run,
        more=more,
        weight=args.weight,
        shard=shard,
        quantized=args.quantized_base,
        say=out.progress,
    )
    if converter and not result.code and not args.dry_run:
        from engine.merge import gguf

        result.gguf = str(gguf.convert(converter, result.out, args.gguf, out.progress))
    if not result.code and not args.dry_run and workspace.root.is_dir():
        from engine import journal

        # of what may be lost with this server: `ftui lease check` asks after each merged model
        journal.JournalWriter(workspace.root / "merged.jsonl").append("merged", path=str(result.out))
    if out.as_json:
        out.json(result.to_json())
    else:
        show(result, out)
    return result.code


def _weighed(text: str) -> tuple[str, float]:
    """DIR=WEIGHT."""
    name, equals, weight = text.rpartition("=")
    try:
        value = float(weight)
        if equals and name and math.isfinite(value):
            return name, value
    except ValueError:
        pass
    raise UsageError(
        _("--adapter {text} is not DIR=WEIGHT").format(text=text),
        where="--adapter",
        fix=_("for example --adapter runs/polite-1=0.5"),
    )


def _size(text: str) -> int:
    """Bytes of a size as people write it."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?", text.strip(), re.IGNORECASE)
    if match is None or not (
        size := int(float(match[1]) * (1024 if match[3] else 1000) ** " KMGT".index(match[2].upper() or " "))
    ):
        raise UsageError(
            _("--max-shard-size {text} is no size").format(text=text),
            where="--max-shard-size",
            fix=_("write it as 5GB or 500MB"),
        )
    return size


def _converter(args: argparse.Namespace) -> list[str] | None:
    """llama.cpp's converter, looked for before the work starts."""
    if args.gguf is None:
        return None
    if args.dtype == "fp8":
        raise UsageError(
            _("llama.cpp does not convert FP8 folders"),
            where="--gguf",
            fix=_("merge to bf16 for it, and to fp8 in another folder"),
        )
    from engine.merge import gguf

    return gguf.command()


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
    if result.gguf:
        out.line(_("  as GGUF: {path}").format(path=result.gguf))
    checked = result.checked or {}
    if result.dtype == "fp8":
        text = _("  verified: {equal} of {n} sampled tensors are the exact numbers rounded once")
        out.line(text.format(equal=number(checked.get("equal", 0)), n=number(checked.get("tensors", 0))))
    else:
        _show_equal(checked, out)
    _show_logits(result.logits, out)


def _show_equal(checked: dict[str, Any], out: Output) -> None:
    from engine.text import number

    out.line(
        _("  verified: {equal} of {n} sampled tensors equal to PEFT's to the bit").format(
            equal=number(checked.get("equal", 0)), n=number(checked.get("tensors", 0))
        )
    )


def _show_logits(logits: dict[str, Any] | None, out: Output) -> None:
    from engine.text import number

    if logits and not logits.get("skipped"):
        out.line(
            _(
                "  logits: differ by {difference} at most, {tolerance} tolerated; the adapter's effect is {effect}"
            ).format(
                difference=number(logits["max_abs_diff"], 5),
                tolerance=number(logits["tolerance"], 5),
                effect=number(logits["effect"], 3),
            )
        )
