"""`ftui eval`: the tuned model against its base on the same rows; exit 4 when a gate says no."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from engine.text import _
from tui.arguments import at_least
from tui.output import Output

if TYPE_CHECKING:
    from engine.evaluate.judge import Endpoint
    from engine.evaluate.run import Evaluation

STYLES = {"better": "ok", "worse": "error", "same": None, "not_enough_rows": "dim"}


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("source", metavar="RUN_OR_DIR", help=_("a run, an adapter's folder, or that of a tuned model"))
    parser.add_argument("--step", type=int, metavar="N", help=_("a run's checkpoint (default: its result)"))
    parser.add_argument("--base", metavar="DIR", help=_("the base model (default: what the run or the adapter names)"))
    parser.add_argument("--run", metavar="RUN", help=_("of a folder: the run whose held-out rows are meant"))
    parser.add_argument("--gate", action="append", default=[], metavar="EXPR", help=_("e.g. 'exact_match >= 0.8'"))
    parser.add_argument("--data", metavar="FILE", help=_("rows to ask (default: the recipe's, else the held-out rows)"))
    parser.add_argument(
        "--metric", action="append", metavar="NAME", help=_("how answers are scored: a name, or file.py:function")
    )
    parser.add_argument("--extract", metavar="REGEX", help=_("the part of an answer that counts: its last group"))
    parser.add_argument("--max-new-tokens", type=at_least(1), metavar="N", help=_("tokens that an answer may have"))
    parser.add_argument("--limit", type=at_least(1), metavar="N", help=_("rows to ask at most (default: 500)"))
    parser.add_argument("--no-answers", action="store_true", help=_("held-out loss only, no answers are made"))
    parser.add_argument("--no-regression", action="store_true", help=_("leave the general prompts out"))
    parser.add_argument(
        "--judge", metavar="URL", help=_("an OpenAI-compatible endpoint whose model compares the answers")
    )
    parser.add_argument("--judge-model", metavar="NAME", help=_("the judge's model"))
    parser.add_argument("--rubric", metavar="FILE", help=_("the judge gives points by this text instead of comparing"))
    parser.add_argument(
        "--lm-eval", action="append", default=[], metavar="TASK", help=_("a task of lm-eval, or a task's YAML file")
    )
    parser.add_argument("--out", metavar="DIR", help=_("where the report goes (default: the run's evaluation folder)"))


def run(args: argparse.Namespace, out: Output) -> int:
    """Evaluate; the exit code is the gate's word."""
    from engine.evaluate import subject
    from engine.evaluate.run import LIMIT, Evaluator, Wishes
    from engine.files import user_path
    from engine.workspace import locate

    workspace = locate(args.home)
    found = subject.find(workspace, args.source, step=args.step, base=args.base, run=args.run)
    wishes = Wishes(
        gates=args.gate,
        data=args.data,
        metrics=args.metric,
        extract=args.extract,
        max_new_tokens=args.max_new_tokens,
        limit=args.limit or LIMIT,
        answers=not args.no_answers,
        regression=not args.no_regression,
        judge=_judge(args),
        lm_eval=args.lm_eval,
        out=user_path(args.out).absolute() if args.out else None,
    )
    evaluation = Evaluator(workspace, found, wishes, out.progress).run()
    if out.as_json:
        out.json({**evaluation.document, "report": str(evaluation.folder)})
    else:
        show(evaluation, out)
    return evaluation.code


def _judge(args: argparse.Namespace) -> Endpoint | None:
    from engine.errors import UsageError
    from engine.evaluate.judge import Endpoint
    from engine.files import user_path

    if args.judge is None:
        if args.rubric or args.judge_model:
            raise UsageError(
                _("--rubric and --judge-model need --judge"), fix=_("name the judge's endpoint: --judge URL")
            )
        return None
    if not args.judge_model:
        raise UsageError(_("--judge needs a model"), fix=_("name it with --judge-model"))
    rubric = None
    if args.rubric:
        try:
            rubric = user_path(args.rubric).read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            raise UsageError(
                _("the rubric cannot be read: {reason}").format(reason=getattr(error, "strerror", None) or error),
                where=args.rubric,
                fix=_("give a text file"),
            ) from error
    return Endpoint(args.judge, args.judge_model, rubric or None)


def show(evaluation: Evaluation, out: Output) -> None:
    """The result for people: the table, the gates, what to know, where the report is."""
    from engine.evaluate.report import words

    document = evaluation.document
    rows = [_cells(metric) for metric in document["metrics"]]
    heads = [_("metric"), _("base"), _("tuned"), _("difference"), _("verdict"), _("95 % interval"), "p", _("rows")]
    out.table(heads, rows, right=frozenset((1, 2, 3, 6, 7)))
    for metric in document["metrics"]:
        if metric["note"]:
            out.line(f"{words.label(metric['name'])}: {metric['note']}", "dim")
    for group in document["findings"]:
        out.line(group["detail"], {"error": "error", "warning": "warning"}.get(group["level"], "dim"))
        if group["fix"]:
            out.line(_("  fix  {fix}").format(fix=group["fix"]))
    if document["forgetting"] is not None:
        general = next(metric for metric in document["metrics"] if metric["name"] == "regression")
        out.line(words.forgotten(document["forgetting"], general))
    if document.get("harness"):
        keys = ("task", "metric", "base", "tuned")
        heads = [_("task"), _("metric"), _("base"), _("tuned")]
        out.table(heads, [[row[key] for key in keys] for row in document["harness"]["rows"]], right=frozenset((2, 3)))
    if document.get("judge"):
        out.line(document["judge"]["text"])
    for gate in document["gates"]:
        out.line(words.gate_line(gate), "ok" if gate["passed"] else "error")
    out.note(_("report: {path}").format(path=evaluation.folder / "report.html"))


def _cells(metric: dict[str, Any]) -> list[str]:
    from engine.evaluate.report import words
    from engine.text import number

    name, delta = metric["name"], metric["delta"]
    return [
        words.label(name),
        words.figure(name, metric["base"]["value"]),
        words.figure(name, metric["tuned"]["value"]),
        words.figure(name, delta["value"], signed=True),
        words.verdict(delta),
        words.interval(name, delta, signed=True),
        words.chance(delta["p"]),
        number(metric["rows"]),
    ]
