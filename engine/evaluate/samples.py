"""What a run answered to fixed prompts at each evaluation: samples.jsonl, by prompt over the steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from engine.journal import read_all
from engine.workspace import RunFolder

FILE = "samples.jsonl"


@dataclass(frozen=True)
class Prompt:
    """One prompt, with what was said to it at each step; steps that a resume repeated count once."""

    prompt: str
    reference: str | None
    answers: tuple[tuple[int, str], ...]


def read(run: RunFolder) -> list[Prompt]:
    """The prompts in their order; [] where the run made no samples."""
    prompts: dict[int, dict[str, Any]] = {}
    answers: dict[int, dict[int, str]] = {}
    for line in read_all(run.path / FILE):
        number, step, text = line.get("prompt_id"), line.get("step"), line.get("text")
        if not isinstance(number, int) or not isinstance(step, int) or not isinstance(text, str):
            continue
        prompts.setdefault(number, line)
        mine = answers.setdefault(number, {})
        for later in [known for known in mine if known > step]:
            del mine[later]  # the run went back
        mine[step] = text
    return [
        Prompt(str(prompts[n].get("prompt") or ""), prompts[n].get("reference"), tuple(sorted(answers[n].items())))
        for n in sorted(prompts)
    ]
