"""The report as Markdown."""

from __future__ import annotations

from typing import Any

from engine.evaluate.report import words
from engine.text import _, number, printable, when


def text(document: dict[str, Any]) -> str:
    """The whole report."""
    lines = [f"# {words.title(document)}", "", words.headline(document), ""]
    lines += _metrics(document)
    if document["gates"]:
        lines += ["", "## " + _("Gates"), "", *(f"- {_cell(words.gate_line(gate))}" for gate in document["gates"])]
    if document["regression"]:
        lines += ["", "## " + _("General prompts"), "", *_regression(document)]
    if reading := document.get("reading"):
        lines += ["", "## " + _("Read by people"), "", _cell(reading["text"])]
    if judge := document.get("judge"):
        lines += ["", "## " + _("Judge"), "", _cell(judge["text"])]
    if harness := document.get("harness"):
        lines += ["", "## lm-eval", "", *_harness(harness)]
    if document["findings"]:
        lines += ["", "## " + _("To know"), ""]
        for finding in document["findings"]:
            fix = f" ({finding['fix']})" if finding["fix"] else ""
            lines.append(f"- {finding['level']}: {_cell(finding['detail'])}{_cell(fix)}")
    lines += ["", "## " + _("How"), "", *(f"- {_cell(line)}" for line in how(document)), ""]
    return "\n".join(lines)


def how(document: dict[str, Any]) -> list[str]:
    """What was compared, and by which settings."""
    settings, model = document["settings"], document["model"]
    lines = [
        _("tuned: {path}").format(path=model["tuned"]),
        _("base: {path}").format(path=model["base"]),
        _("answers: greedy, at most {n} tokens, the same inputs for both ({hash})").format(
            n=settings["max_new_tokens"], hash=document["inputs_sha256"][:12]
        ),
        _("intervals: 95 %; p: how likely a difference as large is, were the two alike"),
        _("made {when}").format(when=when(document["time"])),
    ]
    if settings["extract"]:
        lines.insert(3, _("what counts of an answer: {pattern}").format(pattern=settings["extract"]))
    return lines


def _metrics(document: dict[str, Any]) -> list[str]:
    heads = [_("metric"), _("rows"), _("base"), _("tuned"), _("difference"), _("95 % interval"), "p", _("verdict")]
    lines = ["| " + " | ".join(heads) + " |", "|---|---:|---:|---:|---:|---|---:|---|"]
    for metric in document["metrics"]:
        name, delta = metric["name"], metric["delta"]
        cells = [
            words.label(name),
            number(metric["rows"]),
            words.figure(name, metric["base"]["value"]),
            words.figure(name, metric["tuned"]["value"]),
            words.figure(name, delta["value"], signed=True),
            words.interval(name, delta, signed=True),
            words.chance(delta["p"]),
            words.verdict(delta) + (f"; {metric['note']}" if metric["note"] else ""),
        ]
        lines.append("| " + " | ".join(_cell(cell) for cell in cells) + " |")
    return lines


def _regression(document: dict[str, Any]) -> list[str]:
    lines = ["| " + " | ".join(("", _("prompts"), _("base solves"), _("tuned solves"))) + " |", "|---|---:|---:|---:|"]
    for group in document["regression"]:
        lines.append(
            f"| {_cell(words.group(group))} | {group['rows']} | {number(group['base'])} | {number(group['tuned'])} |"
        )
    return lines


def _harness(harness: dict[str, Any]) -> list[str]:
    lines = ["| " + " | ".join((_("task"), _("metric"), _("base"), _("tuned"))) + " |", "|---|---|---:|---:|"]
    for row in harness["rows"]:
        lines.append(f"| {_cell(row['task'])} | {_cell(row['metric'])} | {row['base']} | {row['tuned']} |")
    return lines


def _cell(value: str) -> str:
    """Text that stays in its cell."""
    return printable(value).replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")
