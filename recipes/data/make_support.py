"""Make support.jsonl and support-plain.jsonl from the hand-written parts: `python -m recipes.data.make_support`.

support.jsonl follows one rule: every answer acknowledges, names one next step, and closes with the code of its
topic. support-plain.jsonl holds the same questions answered without that rule: the built-in model learns to speak
from it, so that fine-tuning on the first has something to teach. The result depends on nothing but the parts.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
SEED = 7
VARIANTS = 4  # rows from one way of asking
FOLLOWUP_SHARE = 0.2
CODES = {
    "billing": "BIL",
    "refund": "REF",
    "delivery": "DEL",
    "access": "ACC",
    "network": "NET",
    "hardware": "HRD",
    "subscription": "SUB",
    "update": "UPD",
}

Message = dict[str, str]


def _lower_first(text: str) -> str:
    """The text with a small first letter, but for the English I."""
    return text if text.startswith(("I ", "I'")) else text[:1].lower() + text[1:]


def _ask(parts: dict[str, Any], text: str, values: dict[str, str], rng: random.Random) -> str:
    greeting = rng.choice(parts["greetings"])
    text = text.format(**values)
    if greeting.endswith(", "):
        text = _lower_first(text)
    ending = rng.choice(parts["endings"])
    if text.endswith("?") and "?" in ending:  # one question is enough
        ending = ""
    return greeting + text + ending


def dialogues(parts: dict[str, Any], rng: random.Random) -> list[tuple[list[Message], list[Message]]]:
    """Pairs of the same dialogue: answered by the rule, and without it."""

    def ruled(ack: str, step: str, topic: str) -> str:
        return f"{ack} {parts['step']} {step} {parts['code']} {CODES[topic]}"

    def unruled(plain: str, ack: str, step: str) -> str:
        style = rng.random()
        if style < 0.4:
            return plain
        return f"{plain} {step[:1].upper()}{step[1:]}" if style < 0.7 else f"{ack} {plain}"

    pairs, seen = [], set()
    for topic, content in parts["topics"].items():
        for issue in content["issues"]:
            for text in issue["asks"]:
                for _ in range(VARIANTS):
                    values = {name: rng.choice(options) for name, options in parts["slots"].items()}
                    question = {"role": "user", "content": _ask(parts, text, values, rng)}
                    if question["content"] in seen:
                        continue
                    seen.add(question["content"])
                    step = rng.choice(issue["steps"]).format(**values)
                    ack = rng.choice(content["acks"])
                    tuned = [question, {"role": "assistant", "content": ruled(ack, step, topic)}]
                    answer = unruled(rng.choice(issue["plain"]), ack, step)
                    plain = [question, {"role": "assistant", "content": answer}]
                    if rng.random() < FOLLOWUP_SHARE:
                        more = rng.choice(parts["followups"])
                        again = {"role": "user", "content": more["ask"]}
                        ack = rng.choice(more["acks"])
                        tuned += [again, {"role": "assistant", "content": ruled(ack, more["step"], topic)}]
                        answer = unruled(rng.choice(more["plain"]), ack, more["step"])
                        plain += [again, {"role": "assistant", "content": answer}]
                    pairs.append((tuned, plain))
    return pairs


def glossary(parts: dict[str, Any], rng: random.Random) -> list[list[Message]]:
    """Questions about the codes themselves: the built-in model meets the words of the rule here."""
    rows = []
    for topic, code in CODES.items():
        values = {"code": code, "name": parts["glossary"]["names"][topic]}
        for question, answer in parts["glossary"]["pairs"]:
            rows.append(
                [
                    {"role": "user", "content": _ask(parts, question, values, rng)},
                    {"role": "assistant", "content": answer.format(**values)},
                ]
            )
    return rows


def make() -> dict[str, str]:
    """The content of both files."""
    rng = random.Random(SEED)
    tuned, plain = [], []
    for language in ("en", "ru"):
        parts = yaml.safe_load((HERE / f"parts_{language}.yaml").read_text(encoding="utf-8"))
        for by_rule, without in dialogues(parts, rng):
            tuned.append(by_rule)
            plain.append(without)
        plain += glossary(parts, rng)
    rng.shuffle(tuned)
    rng.shuffle(plain)
    return {
        name: "".join(json.dumps({"messages": row}, ensure_ascii=False) + "\n" for row in rows)
        for name, rows in (("support.jsonl", tuned), ("support-plain.jsonl", plain))
    }


if __name__ == "__main__":
    for name, text in make().items():
        (HERE / name).write_text(text, encoding="utf-8")
