"""`ftui run RECIPE [key=value …]`: start a run and return at once, or stay with it."""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from engine.text import _, ngettext
from tui.output import Output

if TYPE_CHECKING:
    from engine.errors import FtuiError
    from engine.run.launch import Started
    from engine.run.prepare import RecipeError
    from engine.workspace import Workspace


STREAMS = "one JSON document on stdout; with --follow one JSON object a line"
FOLLOW = _("stay, print what happens, exit with the run's code (with --json: one JSON object a line)")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("recipe", metavar="RECIPE", help=_("a recipe file, or the name of a built-in one"))
    parser.add_argument(
        "overrides", nargs="*", default=[], metavar="key=value", help=_("values that replace the recipe's")
    )
    parser.add_argument("--name", help=_("the run's name (default: the recipe's name and a number)"))
    parser.add_argument("--follow", action="store_true", help=FOLLOW)
    parser.add_argument(
        "--force", action="store_true", help=_("leave bad rows out, take GPUs in use, ignore a bad plan")
    )
    parser.add_argument(
        "--plan-only", action="store_true", help=_("show whether it fits, how long, how much; start nothing")
    )
    parser.add_argument("--dry-run", action="store_true", help=_("check and show the resolved recipe, start nothing"))


def run(args: argparse.Namespace, out: Output) -> int:
    """Start it."""
    from engine.workspace import locate

    if args.dry_run:
        return _dry_run(args, out)
    workspace = locate(args.home).prepare()
    if args.plan_only:
        return _plan_only(workspace, args, out)
    from engine.run import launch

    if not out.as_json and sys.stdin.isatty():
        _offer_download(args, out, workspace)
    try:
        started = launch.start(workspace, args.recipe, args.overrides, name=args.name, force=args.force)
    except launch.RecipeError as error:
        raise (error if out.as_json else shown(error, args.recipe, out)) from error
    return after_start(started, args, out)


def _offer_download(args: argparse.Namespace, out: Output, workspace: Workspace) -> None:
    """Ask whether to fetch a base model that is not here, before anything holds a GPU."""
    from engine import recipe
    from engine.recipe import hub, paths

    loaded = recipe.load(recipe.find(args.recipe), args.overrides)
    name = loaded.recipe.get("model_name_or_path")
    if not isinstance(name, str) or paths.source("model_name_or_path", name) != "hub" or hub.offline():
        return
    revision = str(loaded.recipe.get("model_revision") or "main")
    if next(hub.snapshots(name, None if revision == "main" else revision), None) is not None:
        return
    answer = input(_("{name} is not on this server. Fetch it now? [Y/n] ").format(name=name))
    if answer.strip().lower() in ("", "y", "yes"):
        from tui.commands.model import fetch

        fetch(name, revision, workspace, out)


def shown(error: RecipeError, recipe: str, out: Output) -> FtuiError:
    """Print all findings of a refused start; what is left to say."""
    from engine.errors import UsageError
    from engine.recipe import find
    from tui.commands.recipe import show_findings

    show_findings(error.findings, out, recipe if Path(recipe).exists() else find(recipe))
    n = sum(finding.level == "error" for finding in error.findings)
    what = ngettext("nothing was started: {n} error", "nothing was started: {n} errors", n).format(n=n)
    return UsageError(what, fix=error.hint, kind=error.kind)


def after_start(started: Started, args: argparse.Namespace, out: Output, *, since: float = 0.0) -> int:
    """Report a started run, and follow it where asked; shared with `ftui resume`.

    Args:
        started: the run.
        args: what the command was given.
        out: where it is said.
        since: what happened before is not shown: it is the history of earlier attempts.
    """
    from tui.commands.recipe import show_findings
    from tui.follow import follow

    name, state = started.run.name, started.run.read_state()
    what = _("{run} started").format(run=name)
    if checkpoint := state.get("resumed_from"):
        what = _("{run} resumed from step {step} (attempt {attempt})").format(
            run=name, step=Path(checkpoint).name.rpartition("-")[2], attempt=state.get("attempt")
        )
    if not out.as_json:
        show_findings(started.findings, out)
    if not args.follow:
        if out.as_json:
            document = {"run": name, "path": str(started.run.path), "pid": started.pid}
            out.json(document if started.resumed is None else document | {"resume": started.resumed})
        else:
            out.line(_("{what}; it goes on without this terminal").format(what=what), "ok")
            out.note(_("  ftui watch {run}    ftui status {run}    ftui stop {run}").format(run=name))
        return 0
    out.note(_("{what}; leaving (ctrl-c) does not stop it").format(what=what))
    return follow(started.run, out, stream=out.as_json, since=since)


def _plan_only(workspace: Workspace, args: argparse.Namespace, out: Output) -> int:
    """The plan that the run would start with; exit 3 where that would be refused."""
    from engine.errors import DoesNotFit, FtuiError
    from engine.findings import has_errors
    from engine.run.prepare import prepare
    from tui.commands.recipe import show_findings

    ready = prepare(workspace, args.recipe, args.overrides, force=args.force, in_use=True)
    ready.placement.release()
    plan = ready.planned
    if plan.result is None:
        (why,) = plan.findings
        raise FtuiError(why.detail, where=str(ready.source), fix=why.fix or None, kind=why.kind)
    if out.as_json:
        out.json(plan.result.to_json() | {"findings": [finding.to_json() for finding in ready.findings]})
    else:
        from tui.plan_text import show

        show(plan.result, out)
        show_findings(ready.findings, out)
    return DoesNotFit.exit_code if has_errors(plan.findings) else 0


def _dry_run(args: argparse.Namespace, out: Output) -> int:
    from engine import recipe
    from engine.findings import has_errors
    from engine.run import datacheck
    from engine.run.prepare import RecipeError, refuse_errors
    from tui.commands.recipe import resolve_here, show_findings

    path = recipe.find(args.recipe)
    loaded = recipe.load(path, args.overrides)
    findings = recipe.check(loaded, run=True)
    values = resolve_here(loaded, findings)
    if not has_errors(findings):
        findings += datacheck.look(loaded.recipe)
    with contextlib.suppress(RecipeError):
        refuse_errors(findings, str(path), force=args.force)
    resolved = {} if has_errors(findings) else values
    if out.as_json:
        out.json({"findings": [f.to_json() for f in findings], "recipe": resolved})
    else:
        show_findings(findings, out, args.recipe if Path(args.recipe).exists() else path)
        for key in sorted(resolved):
            if loaded.origin.get(key) in ("recipe", "override"):
                out.line(f"{key}: {resolved[key]}")
    return 2 if has_errors(findings) else 0
