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
VARIANTS = 3  # rows from one way of asking
FOLLOWUP_SHARE = 0.2
CODES = {
    "billing": "BIL-10",
    "refund": "REF-20",
    "delivery": "DEL-30",
    "access": "ACC-40",
    "network": "NET-50",
    "hardware": "HRD-60",
    "subscription": "SUB-70",
    "update": "UPD-80",
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
                    answer = ruled(rng.choice(content["acks"]), step, topic)
                    tuned = [question, {"role": "assistant", "content": answer}]
                    plain = [question, {"role": "assistant", "content": rng.choice(issue["plain"])}]
                    if rng.random() < FOLLOWUP_SHARE:
                        more = rng.choice(parts["followups"])
                        again = {"role": "user", "content": more["ask"]}
                        answer = ruled(rng.choice(more["acks"]), more["step"], topic)
                        tuned += [again, {"role": "assistant", "content": answer}]
                        plain += [again, {"role": "assistant", "content": rng.choice(more["plain"])}]
                    pairs.append((tuned, plain))
    return pairs


def make() -> dict[str, str]:
    """The content of both files."""
    rng = random.Random(SEED)
    pairs = []
    for language in ("en", "ru"):
        pairs += dialogues(yaml.safe_load((HERE / f"parts_{language}.yaml").read_text(encoding="utf-8")), rng)
    rng.shuffle(pairs)
    names = ("support.jsonl", "support-plain.jsonl")
    return {
        name: "".join(json.dumps({"messages": pair[i]}, ensure_ascii=False) + "\n" for pair in pairs)
        for i, name in enumerate(names)
    }


if __name__ == "__main__":
    for name, text in make().items():
        (HERE / name).write_text(text, encoding="utf-8")
