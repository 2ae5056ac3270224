"""`ftui recipe`: write a recipe to start from, check one, list the built-in ones, import and export."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.errors import UsageError
from engine.findings import MAX_LINES, Finding, has_errors
from engine.text import _, ngettext
from tui.commands import recipe_interop
from tui.output import Output

if TYPE_CHECKING:
    from engine.recipe.model import Loaded

METHODS = ("lora", "qlora", "full")
STYLE = {"error": "error", "warning": "warning", "note": "dim"}


def configure(parser: argparse.ArgumentParser) -> None:
    """The verbs of `ftui recipe`."""
    verbs = parser.add_subparsers(dest="verb", metavar="new|check|list|import|export", required=True)
    new = verbs.add_parser("new", help=_("write a commented recipe to start from"))
    new.add_argument("name", nargs="?", metavar="NAME", help=_("the file's name without .yaml (default: the method's)"))
    new.add_argument("--method", choices=METHODS, default="lora", help=_("what is trained (default: lora)"))
    new.add_argument("--out", metavar="FILE", help=_("where to write it (default: NAME.yaml here)"))
    new.add_argument("--dry-run", action="store_true", help=_("print it instead of writing it"))
    check = verbs.add_parser("check", help=_("say everything that is wrong with a recipe"))
    check.add_argument("file", metavar="FILE", help=_("a recipe file, or the name of a built-in one"))
    check.add_argument(
        "overrides", nargs="*", default=[], metavar="key=value", help=_("values that replace the recipe's")
    )
    listing = verbs.add_parser("list", help=_("list the built-in recipes"))
    # --json also after the verb; SUPPRESS keeps what stood before it
    for verb in (new, check, listing, *recipe_interop.configure(verbs)):
        verb.add_argument(
            "--json", action="store_true", default=argparse.SUPPRESS, help=_("one JSON document on stdout")
        )


def run(args: argparse.Namespace, out: Output) -> int:
    """Run one verb."""
    verbs = {
        "new": _new,
        "check": _check,
        "list": _list,
        "import": recipe_interop.run_import,
        "export": recipe_interop.run_export,
    }
    return verbs[args.verb](args, out)


def show_findings(findings: Iterable[Finding], out: Output, file: str | Path | None = None) -> None:
    """Print findings for people: where, what, and the fix below."""
    for finding in findings:
        place = ",".join(str(line) for line in finding.lines[:MAX_LINES])
        own = finding.extra.get("file") or file  # findings about data name its lines
        named = f"{own}:{place}" if own and place else str(own or place)
        if override := finding.extra.get("override"):
            given = _("{override} (command line)").format(override=override)
            named = f"{named}, {given}" if place else given
        text = _("{level} {detail}").format(level=_level(finding.level), detail=finding.detail)
        more = f" ({finding.count}x)" if finding.count > max(1, len(finding.lines)) else ""
        out.line(f"{named}: {text}{more}" if named else text + more, STYLE[finding.level])
        if finding.fix:
            out.line(_("  fix  {fix}").format(fix=finding.fix))


def _level(level: str) -> str:
    return {"error": _("error:"), "warning": _("warning:")}.get(level, _("note:"))


def _check(args: argparse.Namespace, out: Output) -> int:
    from engine import recipe
    from engine.recipe.disk import NEEDED_TO_RUN

    path = recipe.find(args.file)
    loaded = recipe.load(path, args.overrides)
    findings = recipe.check(loaded)
    resolved = resolve_here(loaded, findings)
    failed = has_errors(findings)
    if out.as_json:
        out.json({"findings": [finding.to_json() for finding in findings], "recipe": resolved})
        return 2 if failed else 0
    show_findings(findings, out, args.file if Path(args.file).exists() else path)
    errors = sum(finding.level == "error" for finding in findings)
    if failed:
        out.line(ngettext("{n} error", "{n} errors", errors).format(n=errors), "error")
    elif refused := sum(finding.kind in NEEDED_TO_RUN for finding in findings):
        text = ngettext(
            "{file} is in order, but a run of it is refused until {n} warning is put right",
            "{file} is in order, but a run of it is refused until {n} warnings are put right",
            refused,
        )
        out.line(text.format(file=args.file, n=refused), "warning")
    else:
        out.line(_("{file} can be run").format(file=args.file), "ok")
    return 2 if failed else 0


def resolve_here(loaded: Loaded, findings: list[Finding]) -> dict[str, Any]:
    """The recipe with the defaults that it gets on this machine (precision follows the GPUs), as a run has them.

    What only this machine contradicts (a batch that its GPUs cannot share) becomes a finding. With errors: the recipe
    as far as it could be read.
    """
    from engine import recipe
    from engine.run.gpus import here

    if has_errors(findings):
        return loaded.recipe.values
    count, bf16 = here(loaded.recipe)
    try:
        return recipe.resolve(loaded, num_gpus=count, bf16_available=bf16)
    except UsageError as error:
        keys = (error.where,) if error.where else ()
        findings.append(loaded.recipe.finding("conflict", "error", error.what, error.fix or "", keys))
        return loaded.recipe.values


def _list(args: argparse.Namespace, out: Output) -> int:
    from engine import recipe

    rows = [(name, _summary(recipe.find(name))) for name in recipe.names()]
    if out.as_json:
        out.json([{"name": name, "summary": text, "path": str(recipe.find(name))} for name, text in rows])
    else:
        out.table([_("name"), _("what it is for")], rows)
    return 0


def _summary(path: Path) -> str:
    """A recipe's first comment line."""
    with open(path, encoding="utf-8") as file:
        return file.readline().lstrip("# ").strip()


def _new(args: argparse.Namespace, out: Output) -> int:
    from engine import recipe
    from engine.files import user_path, write_atomic

    text = recipe.find(f"{args.method}-sft").read_text(encoding="utf-8")
    name = args.name or f"{args.method}-sft"
    path = user_path(args.out or (name if name.endswith((".yaml", ".yml")) else f"{name}.yaml"))
    if args.dry_run:
        if out.as_json:
            out.json({"path": str(path.absolute()), "written": False, "text": text})
        else:
            out.line(text.rstrip())
        return 0
    if os.path.lexists(path):
        raise UsageError(
            _("{path} is there already, and nothing is overwritten").format(path=path),
            where=str(path),
            fix=_("give another name, or --out FILE"),
            kind="exists",
        )
    try:
        write_atomic(path, text.encode(), durable=False)
    except OSError as error:
        raise UsageError(
            _("the recipe cannot be written: {reason}").format(reason=error.strerror or error),
            where=str(path),
            fix=_("choose a folder that is there and writable"),
            kind="unwritable",
        ) from error
    if out.as_json:
        out.json({"path": str(path.absolute()), "written": True})
    else:
        out.line(_("{path} written").format(path=path), "ok")
        out.note(_("  set the model and the data in it, then: ftui recipe check {path}").format(path=path))
    return 0
