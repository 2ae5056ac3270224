"""The report on prepared data, for people."""

from __future__ import annotations

from typing import Any

from engine.data import border
from engine.text import _, number


def markdown(document: dict[str, Any]) -> str:
    """The report as Markdown: what came in, what was left out and why, what was masked, what came out."""
    rows = document["rows"]
    lines = [f"# {_('Prepared data')}", ""]
    lines += [f"## {_('Where it is from')}", ""]
    names = {"source": _("source"), "license": _("license"), "right_to_train": _("right to train on it")}
    for key, word in names.items():
        lines.append(f"- {word}: {document['statement'][key] or _('not stated')}")
    lines += ["", *_files(document["inputs"]), "", f"## {_('Rows')}", ""]
    lines += [f"| {_('step')} | {_('rows')} |", "|---|---:|", f"| {_('read')} | {number(rows['read'])} |"]
    lines.append(f"| {_('unusable, left out')} | {number(rows['unusable'])} |")
    lines += [f"| {_('dropped')}: {kind} | {number(count)} |" for kind, count in rows["dropped"].items()]
    lines += [
        f"| {_('to train on')} | {number(rows['train'])} |",
        f"| {_('for evaluation')} | {number(rows['eval'])} |",
    ]
    if document["by_source"]:
        lines += ["", f"| {_('source')} | {_('to train on')} | {_('for evaluation')} |", "|---|---:|---:|"]
        for source, counts in document["by_source"].items():
            lines.append(f"| {_cell(source)} | {number(counts.get('train', 0))} | {number(counts.get('eval', 0))} |")
    lines += ["", f"## {_('Personal data and secrets')}", "", *_personal(document)]
    lines += ["", f"## {_('What was found')}", ""]
    for finding in document["findings"]:
        kind = finding["kind"] + (f" ({finding['subtype']})" if finding["subtype"] else "")
        lines.append(f"- {finding['level']}: {kind}: {number(finding['count'])}")
    lines += ["", f"## {_('Files written')}", "", *_files(document["outputs"]), ""]
    return "\n".join(lines)


def _files(files: list[dict[str, Any]]) -> list[str]:
    head = [f"| {_('file')} | {_('bytes')} | SHA-256 |", "|---|---:|---|"]
    return head + [f"| {_cell(f['path'])} | {number(f['bytes'])} | `{f['sha256']}` |" for f in files]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _personal(document: dict[str, Any]) -> list[str]:
    found = document["personal_data"]
    if not found:
        return [_("None was found. Names of people are not looked for reliably.")]
    done = {
        "mask": _("It was replaced by placeholders, the same value by the same one within a row."),
        "drop": _("The rows with it were dropped."),
        "keep": _("It was left as it is."),
    }[document["settings"]["privacy"]]
    lines = [f"- {kind}: {number(count)}" for kind, count in found.items()]
    return [*lines, "", done, "", border.sentence(document["border"])]
