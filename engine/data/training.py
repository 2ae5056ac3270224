"""Rows as the trainer takes them, and why it cannot take one.

The look that a start has at the data and the ranks that train on it read through this, so they never disagree.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from engine.data import drops, forms, reader, turns
from engine.data.kinds import lookup
from engine.data.tally import Tally
from engine.data.worker import Block, Options, can_be_kept, check_block
from engine.findings import Finding
from engine.text import _

# The forms of rows that each task trains on.
FORMS = {
    "sft": frozenset(("messages", "sharegpt", "alpaca", "prompt_completion", "text")),
    "dpo": frozenset(("preference",)),
    "pretrain": frozenset(("text",)),
}
# Errors of a file by which no row is lost: it has none, or it was read through a conversion.
HARMLESS = frozenset((("empty_file", ""), ("encoding", "utf")))


class Row(NamedTuple):
    """One row: the columns that the trainer uses, and the form that all rows of a run must share; or neither."""

    line: int
    value: Any
    form: str | None
    columns: dict[str, Any] | None
    dropped: bool = False  # by a person, in the data screen: left out without a word


@dataclass(frozen=True)
class How:
    """How rows are read, beyond what they are."""

    columns: dict[str, str] = field(default_factory=dict)  # our names of columns to those of the data
    dropped: frozenset[str] = frozenset()  # what `drops.read` gave


NO_MORE = How()


def rows(path: Path, tally: Tally, text_field: str = "text", task: str = "sft", how: How = NO_MORE) -> Iterator[Row]:
    """The rows of a file in order, those that cannot be trained on with the form None.

    Args:
        path: the file.
        tally: gets what is wrong with the file itself.
        text_field: the column of plain text.
        task: what the rows are for (see FORMS).
        how: other names of columns, and rows to leave out.

    Raises:
        UsageError: the file may not be read, or needs a package that is missing.
    """
    return taken(reader.blocks(path, tally), text_field, task, how)


def taken(blocks: Iterable[Block], text_field: str = "text", task: str = "sft", how: How = NO_MORE) -> Iterator[Row]:
    """The rows of a file's blocks, as `rows` gives them."""
    for line, value in reader.values(blocks):
        if how.dropped and drops.key(value) in how.dropped:
            yield Row(line, value, None, None, True)
            continue
        found = _take(value, text_field, FORMS[task], how.columns)
        yield Row(line, value, *(found or (None, None)))


def _say(*_words: Any, **_more: Any) -> None:
    """What is wrong with a row is found out when somebody asks: `problem`."""


def _take(
    value: Any, text_field: str, wanted: frozenset[str], columns: dict[str, str]
) -> tuple[str, dict[str, Any]] | None:
    if not isinstance(value, dict):
        return None
    if mapping := options(text_field, columns).columns:
        value = forms.rename(value, mapping)
    form, _used = forms.recognize(value)
    if form not in wanted:
        return None
    row = forms.make_row(value, form, _say)
    turns.check(row, _say)
    if not can_be_kept(row):
        return None
    if row.text is not None:
        return "text", {text_field: row.text}
    assert row.messages is not None
    extra: dict[str, Any] = {"tools": row.tools} if row.tools else {}
    if value.get("chat_template_kwargs") is not None:
        extra["chat_template_kwargs"] = value["chat_template_kwargs"]
    if row.chosen is not None and row.rejected is not None:
        if row.plain:
            texts = {"prompt": value.get("prompt", ""), "chosen": value["chosen"], "rejected": value["rejected"]}
            return "preference", {**texts, **extra}
        return "preference (messages)", {
            "prompt": row.messages, "chosen": row.chosen, "rejected": row.rejected, **extra
        }  # fmt: skip
    if form != "prompt_completion":
        return "messages", {"messages": row.messages, **extra}
    if row.plain:
        return "prompt + completion", {"prompt": value["prompt"], "completion": value["completion"], **extra}
    prompt, completion = row.messages[: row.prompt_length], row.messages[row.prompt_length :]
    return "prompt + completion (messages)", {"prompt": prompt, "completion": completion, **extra}


def options(text_field: str, columns: dict[str, str] | None = None) -> Options:
    """What the checks of rows need to know of the recipe."""
    return Options({**({} if text_field == "text" else {"text": text_field}), **(columns or {})})


def _wrong_form(task: str) -> tuple[str, str]:
    """What is said of a whole row that another task would train on, and what helps."""
    if task == "dpo":
        return _("task: dpo trains on rows with prompt, chosen and rejected"), _("use task: sft for single answers")
    if task == "pretrain":
        return _("task: pretrain trains on rows of plain text"), _('write {"text": …} a row, or use task: sft')
    return _("rows of two answers to choose from cannot be trained with task: sft"), _("give one answer a row")


def problem(row: Row, text_field: str = "text", task: str = "sft", how: How = NO_MORE) -> Finding:
    """Why a row without a form cannot be trained on, in the words of `ftui data check`."""
    tally = check_block(Block(0, 0, [(row.line, row.value)]), options(text_field, how.columns)).tally
    for finding in tally.findings(""):
        if finding.level == "error":
            return finding
    if isinstance(row.value, dict):
        detail, fix = _wrong_form(task)
        return Finding("wrong_form", "error", detail, fix, [row.line])
    detail = _("bytes that are not UTF-8")
    return Finding("encoding", "error", detail, _("convert the file: iconv -f OLD -t UTF-8"), [row.line])


def file_errors(tally: Tally) -> Iterator[tuple[str, str]]:
    """Kind and subtype of what is wrong with a file so that rows of it are missing."""
    for kind, subtype in tally.entries:
        if (kind, subtype) not in HARMLESS and lookup(kind, subtype).level == "error":
            yield kind, subtype
