"""`ftui run RECIPE [key=value …]`: start a run and return at once, or stay with it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from engine.text import _
from tui.output import Output

if TYPE_CHECKING:
    from engine.run.launch import Started


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("recipe", metavar="RECIPE", help=_("a recipe file, or the name of a built-in one"))
    parser.add_argument("overrides", nargs="*", metavar="key=value", help=_("values that replace the recipe's"))
    parser.add_argument("--name", help=_("the run's name (default: the recipe's name and a number)"))
    parser.add_argument("--follow", action="store_true", help=_("stay, print what happens, exit with the run's code"))
    parser.add_argument("--force", action="store_true", help=_("go on in spite of data errors and of GPUs in use"))
    parser.add_argument("--dry-run", action="store_true", help=_("check and show the resolved recipe, start nothing"))


def run(args: argparse.Namespace, out: Output) -> int:
    """Start it."""
    from engine.workspace import locate

    if args.dry_run:
        return _dry_run(args, out)
    from engine.run import launch

    workspace = locate(args.home).prepare()
    started = launch.start(workspace, args.recipe, args.overrides, name=args.name, force=args.force)
    return after_start(started, args, out)


def after_start(started: Started, args: argparse.Namespace, out: Output) -> int:
    """Report a started run, and follow it where asked; shared with `ftui resume`."""
    from tui.commands.recipe import show_findings
    from tui.follow import follow

    name = started.run.name
    if not out.as_json:
        show_findings(started.findings, out)
    if not args.follow:
        if out.as_json:
            out.json({"run": name, "path": str(started.run.path), "pid": started.pid})
        else:
            out.line(_("{run} started; it goes on without this terminal").format(run=name), "ok")
            out.note(_("  ftui watch {run}    ftui status {run}    ftui stop {run}").format(run=name))
        return 0
    out.note(_("{run} started; leaving (ctrl-c) does not stop it").format(run=name))
    return follow(started.run, out, stream=out.as_json)


def _dry_run(args: argparse.Namespace, out: Output) -> int:
    from engine import recipe
    from engine.findings import has_errors
    from tui.commands.recipe import show_findings

    loaded = recipe.load(recipe.find(args.recipe), args.overrides)
    findings = recipe.check(loaded)
    resolved = {} if has_errors(findings) else recipe.resolve(loaded, num_gpus=1)
    if out.as_json:
        out.json({"recipe": resolved, "findings": [f.to_json() for f in findings]})
    else:
        show_findings(findings, out)
        for key in sorted(resolved):
            if loaded.origin.get(key) in ("recipe", "override"):
                out.line(f"{key}: {resolved[key]}")
    return 2 if has_errors(findings) else 0
