"""The report as one HTML page: no script, no file beside it, nothing from the network."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from engine.evaluate import wording
from engine.evaluate.report import markdown, svg, words
from engine.text import _, number

SHOWN = 40
LONGEST = 1200

STYLE = """
:root { color-scheme: light dark; --ink: #1c1f23; --dim: #6b7280; --line: #d7dbe0; --paper: #fff; --base: #9aa4b2;
  --tuned: #2f6fde; --good: #1a7f4b; --bad: #c0362c; --same: #6b7280; --mark: #fff2b3; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8eb; --dim: #9aa4b2; --line: #343a42; --paper: #15181c;
  --base: #6b7684; --tuned: #6ba1ff; --good: #4cc38a; --bad: #ff7b72; --same: #9aa4b2; --mark: #4a4217; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 70rem; padding: 2rem 1.25rem 4rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .25rem; } h2 { font-size: 1.15rem; margin: 2.25rem 0 .5rem; }
.lead { font-size: 1.1rem; margin: 0 0 1rem; } .lead.no { color: var(--bad); } .lead.yes { color: var(--good); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .6rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
td:first-child { white-space: nowrap; } td:last-child:not(.n) { min-width: 14rem; }
th { font-weight: 600; color: var(--dim); font-size: .85rem; } .n { text-align: right; white-space: nowrap; }
.better { color: var(--good); } .worse { color: var(--bad); } .same, .not_enough_rows { color: var(--same); }
ul { padding-left: 1.2rem; } li { margin: .2rem 0; } .dim { color: var(--dim); }
svg { width: 100%; height: auto; margin: .5rem 0; } svg text { font: 12px system-ui, sans-serif; fill: var(--ink); }
svg text.dim { fill: var(--dim); } svg .grid { stroke: var(--line); }
svg .zero { stroke: var(--dim); stroke-dasharray: 3 3; }
svg rect.base { fill: var(--base); } svg rect.tuned { fill: var(--tuned); } svg .whisker line { stroke: var(--ink); }
svg .range { stroke-width: 3; } svg .better { stroke: var(--good); fill: var(--good); }
svg .worse { stroke: var(--bad); fill: var(--bad); }
svg .same, svg .not_enough_rows { stroke: var(--same); fill: var(--same); }
.legend span::before { content: ""; display: inline-block; width: .7rem; height: .7rem; margin: 0 .35rem 0 .9rem; }
.legend .l-base::before { background: var(--base); } .legend .l-tuned::before { background: var(--tuned); }
details { border-bottom: 1px solid var(--line); padding: .5rem 0; } summary { cursor: pointer; }
.pair { display: grid; grid-template-columns: 1fr 1fr; gap: 1rem; margin: .5rem 0; }
@media (max-width: 40rem) { .pair { grid-template-columns: 1fr; } }
.pair div, .asked { white-space: pre-wrap; overflow-wrap: anywhere; }
.pair h4 { margin: 0; font-size: .85rem; color: var(--dim); }
mark { background: var(--mark); color: inherit; border-radius: 2px; }
"""


def text(document: dict[str, Any], rows: Sequence[dict[str, Any]]) -> str:
    """The whole page."""
    title = escape(words.title(document))
    passed = document["passed"]
    kind = "yes" if passed else "no" if passed is False else ""
    parts = [f"<h1>{title}</h1>", f'<p class="lead {kind}">{escape(words.headline(document))}</p>']
    parts += [_gates(document), _metrics(document), _plots(document), _regression(document), _reading(document)]
    parts += [_harness(document), _findings(document), _samples(rows), _how(document)]
    body = "\n".join(part for part in parts if part)
    return (
        f'<!doctype html>\n<html lang="{escape(wording.html_language())}"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{title}</title>'
        f"<style>{STYLE}</style></head><body>\n{body}\n</body></html>\n"
    )


def _gates(document: dict[str, Any]) -> str:
    if not document["gates"]:
        return ""
    items = "".join(
        f'<li class="{"better" if gate["passed"] else "worse"}">{escape(words.gate_line(gate))}</li>'
        for gate in document["gates"]
    )
    return f"<h2>{escape(_('Gates'))}</h2><ul>{items}</ul>"


def _metrics(document: dict[str, Any]) -> str:
    heads = [
        (_("metric"), ""), (_("rows"), "n"), (_("base"), "n"), (_("tuned"), "n"), (_("difference"), "n"),
        (_("95 % interval"), "n"), ("p", "n"), (_("verdict"), ""),
    ]  # fmt: skip
    lines = []
    for metric in document["metrics"]:
        name, delta = metric["name"], metric["delta"]
        verdict = words.verdict(delta) + (f"; {metric['note']}" if metric["note"] else "")
        cells = [
            (words.label(name), ""), (number(metric["rows"]), "n"), (words.figure(name, metric["base"]["value"]), "n"),
            (words.figure(name, metric["tuned"]["value"]), "n"), (words.figure(name, delta["value"], signed=True), "n"),
            (words.interval(name, delta, signed=True), "n"), (words.chance(delta["p"]), "n"),
            (verdict, delta["verdict"]),
        ]  # fmt: skip
        lines.append(_row(cells))
    return f"<h2>{escape(_('Results'))}</h2>{_table(heads, lines)}"


def _plots(document: dict[str, Any]) -> str:
    shares = [metric for metric in document["metrics"] if words.is_share(metric["name"])]
    legend = (
        f'<p class="legend dim"><span class="l-base">{_("base")}</span><span class="l-tuned">{_("tuned")}</span></p>'
    )
    parts = [svg.differences(document["metrics"])]
    if shares:
        parts += [legend, svg.bars(shares)]
    return f"<h2>{escape(_('Differences'))}</h2>" + "".join(parts)


def _regression(document: dict[str, Any]) -> str:
    if not document["regression"]:
        return ""
    lost = document["forgetting"]
    said = _("Forgotten: {share} of the general prompts, the base's share less the tuned one's.").format(
        share=words.figure("regression", lost)
    )
    return f"<h2>{escape(_('General prompts'))}</h2><p>{escape(said)}</p>{svg.groups(document['regression'])}"


def _reading(document: dict[str, Any]) -> str:
    parts = []
    for key, title in (("reading", _("Read by people")), ("judge", _("Judge"))):
        if found := document.get(key):
            notes = "".join(f"<li>{escape(n['row'])}: {escape(n['note'])}</li>" for n in found.get("notes") or [])
            parts.append(
                f"<h2>{escape(title)}</h2><p>{escape(found['text'])}</p>" + (f"<ul>{notes}</ul>" if notes else "")
            )
    return "".join(parts)


def _harness(document: dict[str, Any]) -> str:
    if not (found := document.get("harness")):
        return ""
    heads = [(_("task"), ""), (_("metric"), ""), (_("base"), "n"), (_("tuned"), "n")]
    keys = ("task", "metric", "base", "tuned")
    rows = [_row([(str(row[key]), "n" if key in keys[2:] else "") for key in keys]) for row in found["rows"]]
    return f"<h2>lm-eval</h2>{_table(heads, rows)}"


def _findings(document: dict[str, Any]) -> str:
    if not document["findings"]:
        return ""
    kinds = {"error": "worse", "warning": "", "note": "dim"}
    items = "".join(
        f'<li class="{kinds[f["level"]]}">{escape(f["detail"])}'
        + (f' <span class="dim">({escape(f["fix"])})</span>' if f["fix"] else "")
        + "</li>"
        for f in document["findings"]
    )
    return f"<h2>{escape(_('To know'))}</h2><ul>{items}</ul>"


def _samples(rows: Sequence[dict[str, Any]]) -> str:
    """Answers side by side: those where the two models' scores differ most come first."""
    asked = [row for row in rows if row.get("base") is not None and row.get("tuned") is not None]
    own = [row for row in asked if row["set"] != "regression"] + [row for row in asked if row["set"] == "regression"]
    if not own:
        return ""
    shown = sorted(own[:500], key=lambda row: (row["set"] == "regression", -_contrast(row)))[:SHOWN]
    head = _("Answers side by side ({n} of {total}; the greatest differences first)").format(
        n=number(len(shown)), total=number(len(own))
    )
    return f"<h2>{escape(head)}</h2>" + "".join(_sample(row) for row in shown)


def _contrast(row: dict[str, Any]) -> float:
    return max((abs(part.get("tuned", 0) - part.get("base", 0)) for part in row["scores"].values()), default=0.0)


def _sample(row: dict[str, Any]) -> str:
    base, tuned = row["base"][:LONGEST], row["tuned"][:LONGEST]
    one, other = wording.marked(base, tuned)
    expected = row.get("reference") if row.get("reference") is not None else row.get("expected")
    wanted = (
        f'<p class="asked dim">{escape(_("expected: {text}").format(text=str(expected)[:LONGEST]))}</p>'
        if expected
        else ""
    )
    return (
        f'<details><summary class="asked">{escape(row["prompt"][:300])}</summary>{wanted}<div class="pair">'
        f"<div><h4>{_('base')}</h4>{_spans(one)}</div><div><h4>{_('tuned')}</h4>{_spans(other)}</div></div></details>"
    )


def _spans(parts: Sequence[tuple[str, bool]]) -> str:
    return "".join(f"<mark>{escape(text)}</mark>" if differs else escape(text) for text, differs in parts)


def _how(document: dict[str, Any]) -> str:
    items = "".join(f"<li>{escape(line)}</li>" for line in markdown.how(document))
    return f'<h2>{escape(_("How"))}</h2><ul class="dim">{items}</ul>'


def _table(heads: Sequence[tuple[str, str]], lines: Sequence[str]) -> str:
    head = "".join(f'<th class="{kind}">{escape(text)}</th>' for text, kind in heads)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'


def _row(cells: Sequence[tuple[str, str]]) -> str:
    return "<tr>" + "".join(f'<td class="{kind}">{escape(text)}</td>' for text, kind in cells) + "</tr>"
