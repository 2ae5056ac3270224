"""`ftui demo`: the main job on the built-in model, through every stage that exists."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from engine.errors import FtuiError
from engine.text import _
from tui.arguments import at_least
from tui.output import Output

if TYPE_CHECKING:
    from engine.evaluate.run import Evaluation
    from engine.run.launch import Started
    from engine.workspace import RunFolder, Workspace

RECIPE = "demo"
T = TypeVar("T")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--steps", type=at_least(1), metavar="N", help=_("training steps (default: the recipe's)"))
    parser.add_argument("--no-tmux", action="store_true", help=_("stay in this terminal"))
    parser.add_argument("--plain", action="store_true", help=_("lines instead of the terminal app"))


def run(args: argparse.Namespace, out: Output) -> int:
    """Go through the stages; with a terminal, the training is shown by the app."""
    from engine.workspace import locate
    from tui.terminal import interactive

    workspace = locate(args.home).prepare()
    demo = Demo(out)
    overrides = [] if args.steps is None else [f"max_steps={args.steps}"]
    started = demo.stage("recipe", lambda: _start(workspace, overrides))
    if interactive() and not args.plain and not out.as_json:
        from tui.terminal import open_app

        return open_app(workspace, run=started.run.name, no_tmux=args.no_tmux)
    demo.stage("train", lambda: _train(started.run, out))
    demo.stage("checkpoint", lambda: _verify(started.run))
    evaluation = demo.stage("evaluate", lambda: _evaluate(workspace, started.run, out))
    gate = demo.stage("gate", lambda: _gate(evaluation, out))
    demo.stage("merge", lambda: _merge(started.run, out))
    if out.as_json:
        out.json({"run": started.run.name, "stages": demo.stages, "gate": gate})
    else:
        out.line(_("all stages ran: {stages}").format(stages=", ".join(s["name"] for s in demo.stages)), "ok")
        out.note(_("  ftui status {run}    ftui recipe new    ftui run RECIPE").format(run=started.run.name))
    return 0


class Demo:
    """The stages and how they went."""

    def __init__(self, out: Output) -> None:
        self.out = out
        self.stages: list[dict[str, Any]] = []

    def stage(self, name: str, work: Callable[[], T]) -> T:
        """Run one stage and note its time."""
        self.out.note(_("stage {name}").format(name=name), "accent")
        begin = time.monotonic()
        state = "failed"
        try:
            result = work()
            state = "done"
            return result
        finally:
            self.stages.append({"name": name, "state": state, "seconds": round(time.monotonic() - begin, 2)})


def _start(workspace: Workspace, overrides: list[str]) -> Started:
    from engine.run import launch

    return launch.start(workspace, RECIPE, overrides)


def _train(run: RunFolder, out: Output) -> None:
    from tui.follow import follow

    code = follow(run, out)
    if code != 0:
        error = run.read_state().get("error") or {}
        raise FtuiError(
            error.get("message") or _("the run did not end well"),
            where=error.get("where") or str(run.path),
            fix=error.get("fix") or _("`ftui logs {run}` shows the log").format(run=run.name),
            exit_code=code,
        )


def _verify(run: RunFolder) -> None:
    from engine.checkpoint import ledger

    entry = ledger.newest(run.checkpoints)
    if entry is None:
        raise FtuiError(_("the run left no sealed checkpoint"), where=str(run.checkpoints))


def _evaluate(workspace: Workspace, run: RunFolder, out: Output) -> Evaluation:
    from engine.evaluate import subject
    from engine.evaluate.run import Evaluator, Wishes
    from tui.commands.eval import show

    evaluation = Evaluator(workspace, subject.find(workspace, run.name), Wishes(), out.progress).run()
    if not out.as_json:
        show(evaluation, out)
    return evaluation


def _gate(evaluation: Evaluation, out: Output) -> dict[str, Any]:
    """The gate's word: told, and not acted upon (`ftui eval` and `ftui merge` do)."""
    from engine.evaluate.report import words

    document = evaluation.document
    out.note(words.headline(document), "ok" if document["passed"] else "warning")
    gates = [{key: gate[key] for key in ("expr", "value", "limit", "passed")} for gate in document["gates"]]
    return {"passed": document["passed"], "gates": gates, "report": str(evaluation.folder)}


def _merge(run: RunFolder, out: Output) -> None:
    from engine.errors import GateError
    from engine.merge.run import merge
    from engine.merge.source import of_run
    from tui.commands.merge import show

    target = run.path / "merged"
    result = merge(of_run(run), target, say=out.progress)
    if not out.as_json:
        show(result, out)
    if result.code:
        reason = next((f.detail for f in result.findings if f.level == "error"), "")
        raise GateError(_("the merge failed: {reason}").format(reason=reason), where=str(target))
