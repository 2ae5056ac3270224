"""Preference training (DPO): pairs of answers, tokenized once by rank 0 as TRL's trainer does it in its constructor."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from datasets import Dataset
from trl import DPOConfig, DPOTrainer

from engine.errors import UsageError
from engine.text import _
from engine.train.saving import SealedSaving
from engine.train.tasks import Task
from engine.train.watch import WatchedLoss

COLUMNS = ("prompt_ids", "chosen_ids", "rejected_ids")


class Trainer(SealedSaving, WatchedLoss, DPOTrainer):
    """TRL's trainer; its rows come tokenized."""

    def _prepare_dataset(self, dataset: Any, *_args: Any, **_kwargs: Any) -> Any:
        return dataset


TASK = Task(DPOConfig, Trainer)


def tokenize(dataset: Dataset, arguments: DPOConfig, tokenizer: Any, name: str) -> Dataset:
    """Rows of prompt, chosen and rejected as token ids.

    Raises:
        UsageError: they are conversations, and the tokenizer has no chat template.
    """
    if isinstance(dataset[0]["prompt"], list) and not tokenizer.chat_template:
        raise UsageError(
            _("the tokenizer has no chat template, and the rows are conversations"),
            where="chat_template_path",
            fix=_("set chat_template_path to a .jinja file or to the tokenizer of the chat version of the model"),
            kind="no_chat_template",
        )
    trainer = SimpleNamespace(_tokenizer=tokenizer)
    ready = DPOTrainer._prepare_dataset(trainer, dataset, tokenizer, arguments, name)
    # An answer that is cut off whole teaches nothing, and two that are cut off alike are one.
    limit = arguments.max_length
    if limit is not None and arguments.truncation_mode == "keep_start":
        ready = ready.filter(lambda row: _differ(row, limit))
    return ready.select_columns(list(COLUMNS))


def _differ(row: dict[str, Any], limit: int) -> bool:
    room = limit - len(row["prompt_ids"])
    return room > 0 and row["chosen_ids"][:room] != row["rejected_ids"][:room]
