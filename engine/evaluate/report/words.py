"""What the numbers are called, and how they are written."""

from __future__ import annotations

import math
from typing import Any

from engine.text import _, number

SHARES = ("token_accuracy", "regression", "judge_win_rate")


def label(name: str) -> str:
    """A metric's name for people."""
    known = {
        "eval_loss": _("held-out loss"),
        "perplexity": _("perplexity"),
        "token_accuracy": _("token accuracy"),
        "exact_match": _("exact match"),
        "contains": _("contains"),
        "regex": _("pattern"),
        "numeric": _("right number"),
        "json": _("valid JSON"),
        "json_schema": _("JSON by its schema"),
        "f1": _("words in common (F1)"),
        "rouge1": "ROUGE-1",
        "rouge2": "ROUGE-2",
        "rougeL": "ROUGE-L",
        "bleu": "BLEU",
        "chrf": "chrF",
        "answer_loss": _("loss of the expected answers"),
        "regression": _("general prompts solved"),
        "regression_loss": _("loss on general answers"),
        "judge_win_rate": _("judge prefers it"),
        "judge_score": _("judge's score"),
    }
    return known.get(name, name)


def role(name: str) -> str:
    """Which of the two models."""
    return {"base": _("base"), "tuned": _("tuned")}.get(name, name)


def group(part: dict[str, Any]) -> str:
    """The name of a group of general prompts."""
    known = {
        "instruction": _("following instructions"),
        "arithmetic": _("arithmetic"),
        "refusal": _("refusing what does harm"),
        "no_refusal": _("not refusing what does none"),
        "formatting": _("formatting"),
        "knowledge": _("knowledge"),
        "en": _("English"),
        "ru": _("Russian"),
        "tr": _("Turkish"),
    }
    return known.get(part["name"], str(part["name"]))


def is_share(name: str) -> bool:
    """Whether a metric is written in percent."""
    return not name.endswith("loss") and name != "perplexity"


def figure(name: str, value: float | None, *, signed: bool = False) -> str:
    """A metric's value as people read it."""
    if value is None or not math.isfinite(value):
        return "-"
    sign = "+" if signed and value > 0 else ""
    if is_share(name):
        return f"{sign}{number(100 * value, 1)} %"
    return f"{sign}{number(value, 2 if name == 'perplexity' else 4)}"


def interval(name: str, part: dict[str, Any], *, signed: bool = False) -> str:
    """Low to high."""
    if part.get("low") is None or part.get("high") is None:
        return "-"
    return _("{low} to {high}").format(
        low=figure(name, part["low"], signed=signed), high=figure(name, part["high"], signed=signed)
    )


def chance(p: float | None) -> str:
    """A p-value; small ones as a bound."""
    if p is None:
        return "-"
    return "< 0.001" if p < 0.001 else number(p, 3)


def verdict(delta: dict[str, Any]) -> str:
    """What the difference says."""
    if delta["verdict"] == "not_enough_rows":
        needed = delta.get("rows_needed")
        if needed and needed > delta["n"]:
            return _("not enough rows to tell (about {n} would do)").format(n=number(needed))
        return _("not enough rows to tell")
    return {
        "better": _("better"),
        "worse": _("worse"),
        "same": _("no difference that matters"),
    }[delta["verdict"]]


def forgotten(lost: float, metric: dict[str, Any]) -> str:
    """How many of the general prompts that the base solved are lost on balance, and whether that says anything."""
    n = number(metric["rows"])
    if lost <= 0:
        text = _("forgotten: none on balance, of {n} general prompts").format(n=n)
    else:
        text = _("forgotten: {share} of {n} general prompts").format(share=figure("regression", lost), n=n)
    delta = metric["delta"]
    return f"{text}; {verdict(delta)}" if delta["verdict"] == "not_enough_rows" else text


def gate_line(gate: dict[str, Any]) -> str:
    """A gate and what became of it."""
    name = gate["metric"]
    if gate.get("reason"):
        return _("{expr}: failed, {reason}").format(expr=gate["expr"], reason=gate["reason"])
    word = _("passed") if gate["passed"] else _("failed")
    text = _("{expr}: {word} with {value} (limit {limit})").format(
        expr=gate["expr"], word=word, value=figure(name, gate["value"]), limit=figure(name, gate["limit"])
    )
    if gate["sure"] is False:
        text += _("; with so few rows it could have gone the other way")
    return text


def headline(document: dict[str, Any]) -> str:
    """The one sentence at the top."""
    if document["passed"] is True:
        return _("All gates passed.")
    if document["passed"] is False:
        failed = [gate["expr"] for gate in document["gates"] if not gate["passed"]]
        return _("The gate says no: {gates}.").format(gates=", ".join(failed))
    verdicts = {metric["delta"]["verdict"] for metric in document["metrics"] if metric["set"] != "regression"}
    if verdicts == {"not_enough_rows"}:
        return _("Not enough rows to tell.")
    return _("No gate was set.")


def title(document: dict[str, Any]) -> str:
    """What was evaluated."""
    name = document["run"] or document["model"]["tuned"]
    return _("{run}, {label} against its base").format(run=name, label=document["label"])
