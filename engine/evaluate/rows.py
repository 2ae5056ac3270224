"""The rows that are asked: a run's held-out rows, the user's own set, and the regression set."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import orjson

from engine.data import forms, reader, sources
from engine.data.tally import Tally
from engine.errors import UsageError
from engine.recipe import gates
from engine.text import _

REGRESSION = "regression.jsonl"
SHOWN = 20


@dataclass
class Row:
    """One prompt, what is expected, and how the answer is scored."""

    id: str
    set: str  # "held_out", "task" or "regression"
    line: int
    messages: list[dict[str, Any]] | None = None
    text: str | None = None  # a prompt that is no conversation
    reference: str | None = None  # a whole answer, for its loss and for comparison
    expected: Any = None
    metrics: tuple[str, ...] = ()  # the row's own; none means the set's
    extract: str | None = None
    category: str = ""
    language: str = ""
    extra: dict[str, Any] = field(default_factory=dict)

    def for_child(self) -> dict[str, Any]:
        """The part that the models are asked."""
        known = {"id": self.id, "messages": self.messages, "text": self.text, "reference": self.reference}
        return {**known, **self.extra}

    @property
    def prompt(self) -> str:
        """The prompt for people: the last thing said before the answer."""
        if self.messages:
            return str(self.messages[-1].get("content") or "")
        return self.text or ""


def held_out(path: Path) -> list[Row]:
    """The rows that a run kept for evaluation and that ask for an answer (plain texts do not)."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return []
    found = []
    for number, line in enumerate(lines, 1):
        try:
            row = _row(orjson.loads(line), f"held_out:{number}", "held_out", number)
        except ValueError:
            continue
        if row is not None and row.reference is not None:
            found.append(row)
    return found


def task(name: str) -> list[Row]:
    """The user's own set: rows as for training, or prompts with `expected`; each may name its `metric`.

    Raises:
        UsageError: there is none, it is empty, or a row cannot be asked or scored; with its line.
    """
    found: list[Row] = []
    paths = sources.resolve([name])
    for path in paths:
        tally = Tally()
        for number, value in reader.values(reader.blocks(path, tally)):
            where = f"{path}:{number}"
            identity = f"task:{number}" if len(paths) == 1 else f"task:{path.name}:{number}"
            row = _row(value, identity, "task", number) if isinstance(value, dict) else None
            if row is None or (row.reference is None and row.expected is None):
                raise UsageError(
                    _("this row asks nothing, or says not what is expected"),
                    where=where,
                    fix=_('give {"prompt": …, "expected": …}, or messages that end with the expected answer'),
                    kind="bad_row",
                )
            for metric in row.metrics:
                if metric not in gates.SCORES and not gates.FUNCTION.match(metric):
                    raise UsageError(
                        _("there is no metric '{name}'").format(name=metric[:60]),
                        where=where,
                        fix=_("use: {names}").format(names=", ".join((*gates.SCORES, "file.py:function"))),
                        kind="bad_row",
                    )
            found.append(row)
    if not found:
        raise UsageError(
            _("the evaluation set is empty"),
            where=name,
            fix=_("give rows with a prompt and what is expected"),
            kind="empty_set",
        )
    return found


def regression() -> list[Row]:
    """The general prompts that show what was forgotten."""
    content = (files("recipes.data") / REGRESSION).read_bytes()
    rows = (_row(orjson.loads(line), "", "regression", at) for at, line in enumerate(content.splitlines(), 1))
    return [row for row in rows if row is not None]


def sample(rows: list[Row], limit: int | None, seed: int) -> list[Row]:
    """At most `limit` rows, the same ones each time, in their order."""
    if limit is None or len(rows) <= limit:
        return rows
    chosen = set(random.Random(seed).sample(range(len(rows)), limit))  # noqa: S311 - a sample, no secret
    return [row for at, row in enumerate(rows) if at in chosen]


def _row(value: dict[str, Any], identity: str, of: str, line: int) -> Row | None:
    """A row in any form that training takes, or a prompt with `expected`; None when it asks nothing."""
    row = Row(str(value.get("id") or identity) if of == "regression" else identity, of, line)
    row.expected = value.get("expected")
    row.metrics = tuple(_metrics(value))
    row.extract = value.get("extract") if isinstance(value.get("extract"), str) else None
    row.category, row.language = str(value.get("category") or ""), str(value.get("language") or "")
    row.extra = {k: value[k] for k in ("tools", "chat_template_kwargs") if value.get(k) is not None}
    prompt = value.get("prompt")
    if isinstance(prompt, str) and (of == "task" or isinstance(value.get("completion"), str)):
        # Training takes such a row as plain text; a task's prompt without a completion is a question to a chat model.
        if isinstance(value.get("completion"), str):
            row.text, row.reference = prompt, value["completion"]
        else:
            row.messages = [{"role": "user", "content": prompt}]
            if isinstance(value.get("system"), str):
                row.messages.insert(0, {"role": "system", "content": value["system"]})
        return row if prompt.strip() else None
    messages = _messages(value)
    if not messages:
        return None
    if messages[-1].get("role") == "assistant":
        content = messages.pop().get("content")
        row.reference = content if isinstance(content, str) and content else None
    row.messages = messages
    asked = messages and isinstance(messages[-1].get("content"), str)
    return row if asked else None


def _metrics(value: dict[str, Any]) -> Iterator[str]:
    told = value.get("metric")
    for item in told if isinstance(told, list) else [told]:
        if isinstance(item, str):
            yield item


def _messages(value: dict[str, Any]) -> list[dict[str, Any]]:
    if isinstance(value.get("prompt"), list):
        rest = value.get("completion")
        return [m for m in [*value["prompt"], *(rest if isinstance(rest, list) else [])] if isinstance(m, dict)]
    form, _used = forms.recognize(value)
    if form in ("", "text", "preference", "prompt_completion"):
        return []
    row = forms.make_row(value, form, lambda *words, **more: None)
    return [dict(message) for message in row.messages or [] if isinstance(message, dict)]
