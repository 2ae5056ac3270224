"""`ftui data`: check training data, look at its rows."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from engine.errors import UsageError
from engine.findings import has_errors
from engine.text import _, ngettext, number
from tui.commands import data_prepare
from tui.output import Output

if TYPE_CHECKING:
    from engine.data.check import Report


def configure(parser: argparse.ArgumentParser) -> None:
    """The verbs of `ftui data`."""
    verbs = parser.add_subparsers(dest="verb", metavar="check|preview|view|prepare", required=True)
    check = verbs.add_parser("check", help=_("say everything that is wrong with training data"))
    check.add_argument("files", nargs="+", metavar="FILE", help=_("a file, a folder or a glob"))
    check.add_argument("--eval", action="append", default=[], metavar="FILE", help=_("rows kept for evaluation"))
    check.add_argument("--max-length", type=_positive, metavar="N", help=_("where rows are cut, in tokens"))
    check.add_argument("--names", action="store_true", help=_("find names of people with spaCy or natasha (slow)"))
    preview = verbs.add_parser("preview", help=_("show rows as the model will see them"))
    preview.add_argument("file", metavar="FILE", help=_("a file, a folder or a glob"))
    preview.add_argument("-n", type=_positive, default=3, metavar="N", help=_("how many rows (default: 3)"))
    preview.add_argument("--from", dest="start", type=_positive, default=1, metavar="ROW", help=_("the first row"))
    preview.add_argument("--max-length", type=_positive, metavar="N", help=_("mark what is cut after N tokens"))
    view = verbs.add_parser("view", help=_("look at rows, findings and lengths in the terminal app"))
    view.add_argument("files", nargs="+", metavar="FILE", help=_("a file, a folder or a glob"))
    view.add_argument("--max-length", type=_positive, metavar="N", help=_("where rows are cut, in tokens"))
    data_prepare.configure(verbs)
    for verb in (check, preview, view):
        verb.add_argument("--model", metavar="DIR", help=_("a model's folder: count and mark its tokens"))
        verb.add_argument("--delimiter", metavar="SIGN", help=_("between CSV columns (default: found out)"))
        data_prepare.common(verb)


def run(args: argparse.Namespace, out: Output) -> int:
    """Run one verb."""
    out.as_json = out.as_json or args.json
    return {"check": _check, "preview": _preview, "view": _view, "prepare": data_prepare.run}[args.verb](args, out)


def _positive(text: str) -> int:
    value = int(text) if text.isdigit() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(_("'{text}' is not a number of 1 or more").format(text=text))
    return value


def _delimiter(sign: str | None) -> str | None:
    sign = {"tab": "\t", "\\t": "\t"}.get(sign or "", sign)
    if sign is not None and len(sign) != 1:
        raise UsageError(_("a delimiter is one sign"), where="--delimiter", fix=_('for example ";" or tab'))
    return sign


def _check(args: argparse.Namespace, out: Output) -> int:
    from engine.data import drops, names
    from engine.data.check import check
    from engine.workspace import locate

    if args.names:
        out.note(_("names of people are looked for by {package}").format(package=names.needed()))
    report = check(
        args.files,
        held_out=args.eval,
        model=args.model,
        max_length=args.max_length,
        columns=data_prepare.columns(args.column),
        delimiter=_delimiter(args.delimiter),
        dropped=drops.read(locate(args.home).root),
        names=args.names,
    )
    failed = has_errors(report.findings)
    if out.as_json:
        out.json(report.to_json())
        return 1 if failed else 0
    _show(report, out)
    return 1 if failed else 0


def _show(report: Report, out: Output) -> None:
    from tui.commands.recipe import show_findings

    for finding in report.findings:
        show_findings([finding], out, _near(finding.extra.get("file")))
    if report.tokens:
        figures = report.tokens
        text = _("tokens {count}: half of the rows up to {p50}, 90 % up to {p90}, 99 % up to {p99}, longest {max}")
        out.line(text.format(**{key: number(value) for key, value in figures.items() if isinstance(value, int)}))
        text = _("{share} % of the tokens are trained, {cut} % of the rows are cut")
        out.line(
            text.format(share=number(100 * figures["trained_share"]), cut=number(100 * figures["truncated_share"], 1))
        )
    errors = sum(finding.level == "error" for finding in report.findings)
    warnings = sum(finding.level == "warning" for finding in report.findings)
    words = _("{usable} of {rows} rows can be trained on ({format}): {errors}, {warnings}").format(
        usable=number(report.usable),
        rows=number(report.rows),
        format=report.format or "-",
        errors=ngettext("{n} error", "{n} errors", errors).format(n=errors),
        warnings=ngettext("{n} warning", "{n} warnings", warnings).format(n=warnings),
    )
    out.line(words, "error" if errors else "warning" if warnings else "ok")


def _near(file: str | None) -> str | None:
    """A file's path as it is shortest from here."""
    return min(file, os.path.relpath(file), key=len) if file else None


def _preview(args: argparse.Namespace, out: Output) -> int:
    from engine.data.preview import preview

    rows = preview(
        args.file,
        count=args.n,
        start=args.start,
        model=args.model,
        max_length=args.max_length,
        columns=data_prepare.columns(args.column),
        delimiter=_delimiter(args.delimiter),
    )
    if out.as_json:
        out.json({"rows": [row.to_json() for row in rows]})
        return 0
    for row in rows:
        out.line(row.title, "bold")
        colored = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        marks = {} if colored else {"accent": ("«", "»"), "error": ("~~", "~~")}
        texts = []
        for text, style in row.pieces:
            before, after = marks.get(style or "", ("", "")) if row.flowing else ("", "")
            texts.append(out.styled(f"{before}{text}{after}", style, sys.stdout))
        out.line("".join(texts) if row.flowing else "\n".join(texts))
        out.line()
    return 0


def _view(args: argparse.Namespace, out: Output) -> int:
    from engine.workspace import locate
    from tui.terminal import interactive

    if out.as_json or not interactive():
        raise UsageError(
            _("the data screen needs a terminal"),
            fix=_("use `ftui data check` and `ftui data preview` here"),
            kind="no_terminal",
        )
    from tui.app import run as run_app

    how = {"model": args.model, "max_length": args.max_length, "columns": data_prepare.columns(args.column)}
    return run_app(locate(args.home).prepare(), then=lambda app: app.open_data(args.files, **how))
