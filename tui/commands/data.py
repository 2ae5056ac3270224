"""`ftui data`: check training data, look at its rows."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.errors import UsageError
from engine.files import user_path
from engine.findings import has_errors
from engine.text import _, ngettext, number
from tui.output import Output

if TYPE_CHECKING:
    from engine.data.check import Report


def configure(parser: argparse.ArgumentParser) -> None:
    """The verbs of `ftui data`."""
    verbs = parser.add_subparsers(dest="verb", metavar="check|preview|prepare", required=True)
    check = verbs.add_parser("check", help=_("say everything that is wrong with training data"))
    check.add_argument("files", nargs="+", metavar="FILE", help=_("a file, a folder or a glob"))
    check.add_argument("--eval", action="append", default=[], metavar="FILE", help=_("rows kept for evaluation"))
    check.add_argument("--max-length", type=_positive, metavar="N", help=_("where rows are cut, in tokens"))
    preview = verbs.add_parser("preview", help=_("show rows as the model will see them"))
    preview.add_argument("file", metavar="FILE", help=_("a file, a folder or a glob"))
    preview.add_argument("-n", type=_positive, default=3, metavar="N", help=_("how many rows (default: 3)"))
    preview.add_argument("--from", dest="start", type=_positive, default=1, metavar="ROW", help=_("the first row"))
    preview.add_argument("--max-length", type=_positive, metavar="N", help=_("mark what is cut after N tokens"))
    prepare = verbs.add_parser("prepare", help=_("clean the data of a recipe, drop duplicates, mask, split, report"))
    prepare.add_argument("recipe", metavar="RECIPE", help=_("a recipe file, or the name of a built-in one"))
    overrides = _("values that replace the recipe's")
    prepare.add_argument("overrides", nargs="*", default=[], metavar="key=value", help=overrides)
    prepare.add_argument("--out", metavar="DIR", help=_("a new folder (default: RECIPE-data here)"))
    prepare.add_argument("--privacy", choices=("mask", "drop", "keep"), default="mask", help=_("personal data (mask)"))
    prepare.add_argument("--keep-near", action="store_true", help=_("drop exact duplicates only"))
    prepare.add_argument("--source", default="", metavar="TEXT", help=_("where the data is from, for the report"))
    prepare.add_argument("--license", default="", metavar="TEXT", help=_("its license, for the report"))
    prepare.add_argument("--right", default="", metavar="TEXT", help=_("what allows training on it, for the report"))
    prepare.add_argument("--dry-run", action="store_true", help=_("say what would be done and write nothing"))
    _common(prepare)
    for verb in (check, preview):
        verb.add_argument("--model", metavar="DIR", help=_("a model's folder: count and mark its tokens"))
        verb.add_argument("--delimiter", metavar="SIGN", help=_("between CSV columns (default: found out)"))
        _common(verb)


def _common(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--column",
        action="append",
        default=[],
        metavar="OURS=THEIRS",
        help=_("a column by another name, for example prompt=question"),
    )
    verb.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help=_("one JSON document on stdout"))


def run(args: argparse.Namespace, out: Output) -> int:
    """Run one verb."""
    out.as_json = out.as_json or args.json
    return {"check": _check, "preview": _preview, "prepare": _prepare}[args.verb](args, out)


def _positive(text: str) -> int:
    value = int(text) if text.isdigit() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(_("'{text}' is not a number of 1 or more").format(text=text))
    return value


def _columns(pairs: list[str]) -> dict[str, str]:
    from engine.data.forms import check_columns

    columns = {}
    for pair in pairs:
        ours, sign, theirs = pair.partition("=")
        if not sign or not theirs:
            raise UsageError(
                _("'{pair}' does not map a column").format(pair=pair), fix=_("write OURS=THEIRS"), kind="bad_column"
            )
        columns[ours] = theirs
    return check_columns(columns)


def _delimiter(sign: str | None) -> str | None:
    sign = {"tab": "\t", "\\t": "\t"}.get(sign or "", sign)
    if sign is not None and len(sign) != 1:
        raise UsageError(_("a delimiter is one sign"), where="--delimiter", fix=_('for example ";" or tab'))
    return sign


def _check(args: argparse.Namespace, out: Output) -> int:
    from engine.data.check import check

    report = check(
        args.files,
        held_out=args.eval,
        model=args.model,
        max_length=args.max_length,
        columns=_columns(args.column),
        delimiter=_delimiter(args.delimiter),
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
        columns=_columns(args.column),
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


def _prepare(args: argparse.Namespace, out: Output) -> int:
    import tempfile

    from engine.data.prepare import Wishes, prepare

    stem, values = _recipe(args)
    folder = user_path(args.out or f"{stem}-data").absolute()
    wishes = Wishes(
        files=[str(values["dataset_path"])],
        held_out=[str(values["eval_dataset_path"])] if values.get("eval_dataset_path") else [],
        share=float(values.get("test_size") or 0.0),
        seed=int(values.get("seed") or 0),
        privacy=args.privacy,
        drop_near=not args.keep_near,
        columns=_columns(args.column),
        statement={"source": args.source, "license": args.license, "right_to_train": args.right},
    )
    if args.dry_run:
        with tempfile.TemporaryDirectory() as scratch:
            document = prepare(wishes, Path(scratch) / folder.name)
    else:
        document = prepare(wishes, folder)
    document = {**document, "out": None if args.dry_run else str(folder)}
    if out.as_json:
        out.json(document)
        return 0
    rows = document["rows"]
    out.line(
        _("{train} rows to train on, {eval} for evaluation, of {read} read").format(
            train=number(rows["train"]), eval=number(rows["eval"]), read=number(rows["read"])
        ),
        "ok",
    )
    for kind, count in {_("unusable"): rows["unusable"], **rows["dropped"]}.items():
        if count:
            out.line(_("  left out: {kind} {n}").format(kind=kind, n=number(count)))
    for kind, count in document["personal_data"].items():
        out.line(_("  personal data ({how}): {kind} {n}").format(how=args.privacy, kind=kind, n=number(count)))
    missing = [name for name, text in document["statement"].items() if not text]
    if missing:
        out.note(
            _("  the report does not say: {names} (--source, --license, --right)").format(names=", ".join(missing))
        )
    if args.dry_run:
        return 0
    used = f"dataset_path={folder / 'train.jsonl'}"
    if rows["eval"]:
        used += f" eval_dataset_path={folder / 'eval.jsonl'}"
    out.line(_("written to {path}; report.md says it all").format(path=folder))
    out.note(_("  next: ftui run {recipe} {values}").format(recipe=args.recipe, values=used))
    return 0


def _recipe(args: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """The recipe's name and values; what is wrong with its data keys stops here."""
    from engine import recipe

    path = recipe.find(args.recipe)
    loaded = recipe.load(path, args.overrides)
    values = loaded.recipe.values
    keys = ("dataset_path", "eval_dataset_path", "test_size", "seed")
    for finding in loaded.findings:
        if finding.level == "error" and (finding.key in keys or not values):
            raise UsageError(finding.detail, where=str(path), fix=finding.fix, kind=finding.kind)
    if not values.get("dataset_path"):
        raise UsageError(
            _("the recipe names no training data"), where=str(path), fix=_("set dataset_path"), kind="no_data"
        )
    if str(values["dataset_path"]).startswith("builtin:"):
        raise UsageError(
            _("the built-in data need no preparation"), where=str(path), fix=_("set dataset_path"), kind="no_data"
        )
    return Path(path).stem, values
