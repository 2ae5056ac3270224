"""`ftui compare`: runs beside each other, with what differs in their settings and their losses in one plot."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from typing import TYPE_CHECKING, Any

from engine.errors import UsageError
from engine.text import _
from tui.output import Output

if TYPE_CHECKING:
    from engine.workspace import RunFolder, Workspace

HEIGHT = 14
SHOWN_SETTINGS = 40


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("runs", nargs="+", metavar="RUN", help=_("two runs or more"))


def run(args: argparse.Namespace, out: Output) -> int:
    """Compare them."""
    from engine.evaluate.compare import compare
    from engine.workspace import locate

    runs = _found(locate(args.home), args.runs)
    document = compare(runs)
    if out.as_json:
        out.json(document)
    else:
        _results(document, out)
        _paired(document, out)
        _settings(document, out)
        _curves(document, out)
    return 0


def _found(workspace: Workspace, names: list[str]) -> list[RunFolder]:
    runs = [workspace.find(name) for name in names]
    if len({found.path for found in runs}) < 2:
        raise UsageError(_("there is nothing to compare with"), fix=_("name two different runs: ftui compare RUN RUN"))
    return list({found.path: found for found in runs}.values())


def _results(document: dict[str, Any], out: Output) -> None:
    from engine.evaluate.report import words
    from engine.text import duration, number

    rows = document["runs"]
    names = list(dict.fromkeys(name for row in rows for name in row["evaluation"] or {}))
    names = [name for name in names if name != "eval_loss" or any(row["evaluation"] for row in rows)]

    def figure(value: float | None, digits: int = 4) -> str:
        return "-" if value is None else number(value, digits)

    heads = [_("run"), _("state"), _("step"), _("loss"), _("best eval"), _("tokens/s"), _("trained for"), _("gate")]
    cells = []
    for row in rows:
        gate = {True: _("passed"), False: _("failed")}.get(row["gate"], "-")
        step = f"{number(row['step'] or 0)}/{number(row['max_steps'])}" if row["max_steps"] else "-"
        cells.append(
            [row["name"], row["state"], step, figure(row["loss"], 3), figure(row["best_eval_loss"], 3),
             figure(row["tokens_per_s"], 0), duration(row["seconds"]), gate]
        )  # fmt: skip
        cells[-1] += [words.figure(name, (row["evaluation"] or {}).get(name)) for name in names]
    heads += [words.label(name) for name in names]
    out.table(heads, cells, right=frozenset(range(2, 7)) | frozenset(range(8, len(heads))))


def _paired(document: dict[str, Any], out: Output) -> None:
    """Two runs that were asked the same: whose answers are better, and how sure that is."""
    from engine.evaluate.report import words
    from engine.text import number

    if not document["paired"]:
        return
    out.line()
    second, first = document["runs"][1]["name"], document["runs"][0]["name"]
    out.line(_("{second} less {first}, on the rows that both answered").format(second=second, first=first), "bold")
    rows = [
        [
            words.label(pair["metric"]),
            words.figure(pair["metric"], pair["value"], signed=True),
            words.verdict(pair),
            words.interval(pair["metric"], pair, signed=True),
            words.chance(pair["p"]),
            number(pair["rows"]),
        ]
        for pair in document["paired"]
    ]
    heads = [_("metric"), _("difference"), _("verdict"), _("95 % interval"), "p", _("rows")]
    out.table(heads, rows, right=frozenset((1, 4, 5)))


def _settings(document: dict[str, Any], out: Output) -> None:
    out.line()
    settings = document["settings"]
    if not settings:
        out.line(_("their settings are the same"), "dim")
        return
    rows = [[item["key"], *(_shown(value) for value in item["values"])] for item in settings[:SHOWN_SETTINGS]]
    out.table([_("setting"), *(row["name"] for row in document["runs"])], rows)
    if (more := len(settings) - SHOWN_SETTINGS) > 0:
        out.line(_("{n} further settings differ; --json lists all").format(n=more), "dim")


def _shown(value: Any) -> str:
    text = "-" if value is None else ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= 40 else text[:39] + "…"


def _curves(document: dict[str, Any], out: Output) -> None:
    from tui import overlay
    from tui.widgets.glyphs import Mode

    plain = not sys.stdout.isatty() or bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    mode: Mode = "braille" if sys.stdout.isatty() and os.environ.get("TERM") != "dumb" else "ascii"
    width = min(160, shutil.get_terminal_size((100, 24)).columns)
    names = [curve["run"] for curve in document["curves"]]
    for key, steps, title in (("loss", "steps", _("loss")), ("eval_loss", "eval_steps", _("held-out loss"))):
        views = [overlay.view(curve[steps], curve[key]) for curve in document["curves"]]
        lines = overlay.draw(views, width, HEIGHT if key == "loss" else HEIGHT - 5, mode=mode, color=not plain)
        if not lines:
            continue
        out.line()
        out.line(f"{title}   {overlay.legend(names, mode=mode, color=not plain)}")
        for line in lines:
            sys.stdout.write(line + "\n")  # colored here; the names come from folders' names, which have no controls
