"""`ftui smoke RECIPE`: the small-model rehearsal of the same data, template, method and sharding."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from engine.errors import FtuiError
from engine.text import _, duration
from tui.arguments import at_least
from tui.output import Output

if TYPE_CHECKING:
    from engine.workspace import Workspace


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("recipe", metavar="RECIPE", help=_("a recipe file, or the name of a built-in one"))
    parser.add_argument(
        "overrides", nargs="*", default=[], metavar="key=value", help=_("values that replace the recipe's")
    )
    parser.add_argument("--steps", type=at_least(2), default=20, metavar="N", help=_("optimizer steps (default: 20)"))
    parser.add_argument("--name", help=_("the run's name (default: smoke-RECIPE and a number)"))
    parser.add_argument("--no-drill", action="store_true", help=_("do not try a resume at the end"))


def run(args: argparse.Namespace, out: Output) -> int:
    """Rehearse: make the small model, run, verify the checkpoint, try a resume from it."""
    from engine import recipe
    from engine.checkpoint import ledger
    from engine.run import drill as drills
    from engine.run import launch
    from engine.smoke import rehearsal
    from engine.workspace import locate
    from tui.commands.drill import FAILED, show
    from tui.follow import follow

    workspace = locate(args.home).prepare()
    begin = time.monotonic()
    path = recipe.find(args.recipe)
    loaded = recipe.load(path, args.overrides)
    folder = rehearsal.source(loaded)
    model = None
    if folder is not None:
        out.progress(_("making a small model like {model}").format(model=folder.name))
        model = rehearsal.small_model(workspace, folder)
    replaced = rehearsal.overrides(loaded, model, args.steps)
    name = args.name or _free(workspace, f"smoke-{path.stem}")
    try:
        started = launch.start(workspace, path, [*args.overrides, *replaced], name=name)
    except launch.RecipeError as error:
        from tui.commands.run import shown

        raise (error if out.as_json else shown(error, args.recipe, out)) from error
    code = follow(started.run, out)
    if code:
        told = started.run.read_state().get("error") or {}
        raise FtuiError(
            told.get("message") or _("the rehearsal did not end well"),
            where=told.get("where") or str(started.run.path),
            fix=told.get("fix") or _("`ftui explain {run}` says why").format(run=started.run.name),
            kind=told.get("kind") or "failed",
            exit_code=code,
        )
    if ledger.newest(started.run.checkpoints) is None:
        raise FtuiError(_("the rehearsal left no sealed checkpoint"), where=str(started.run.checkpoints))
    drill = None
    if not args.no_drill:
        out.note(_("trying a resume from its first checkpoint"), "accent")
        drill = drills.drill(started.run, step=max(1, args.steps // 2), say=out.progress)
    seconds = time.monotonic() - begin
    passed = drill is None or drill.passed
    if out.as_json:
        document = {"run": started.run.name, "path": str(started.run.path), "model": str(model) if model else None,
                    "replaced": replaced, "drill": drill.to_json() if drill else None, "passed": passed,
                    "seconds": round(seconds, 1)}  # fmt: skip
        out.json(document)
        return 0 if passed else FAILED
    if drill is not None:
        show(drill, out)
    if passed:
        text = _("the rehearsal passed in {time}: data, template, method and saving work; `ftui run {recipe}` is next")
        out.line(text.format(time=duration(seconds), recipe=args.recipe), "ok")
    return 0 if passed else FAILED


def _free(workspace: Workspace, stem: str) -> str:
    taken = {run.name for run in workspace.runs()}
    return next(name for n in range(1, 10_000) if (name := f"{stem}-{n}") not in taken)
