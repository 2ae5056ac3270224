"""The rows of a run as the ranks see them: mapped from its data folder, which `engine.train.tokenize` made before.

Columns: `input_ids` and `labels` (-100 where no loss is taken), and `seq_lengths` where rows are packed; of
preferences `prompt_ids`, `chosen_ids` and `rejected_ids`.
"""

from __future__ import annotations

from typing import Any

from datasets import Dataset, load_from_disk

from engine.errors import FtuiError
from engine.text import _
from engine.train.job import Job
from engine.train.tokenize.prepare import made


def document(job: Job) -> dict[str, Any]:
    """data.json.

    Raises:
        FtuiError: the data is not there, or was made for another recipe.
    """
    found = made(job)
    if found is None:
        raise FtuiError(
            _("the tokenized data of this run is not there"),
            where=str(job.run.data),
            fix=_("run `python -m engine.train.tokenize RUN` first, as the launcher does"),
            kind="data_lost",
        )
    return found


def load(job: Job) -> tuple[Dataset, Dataset | None]:
    """The tokenized training and evaluation rows, mapped from the disk."""
    evaluation = job.run.data / "eval"
    return (
        load_from_disk(str(job.run.data / "train")),
        load_from_disk(str(evaluation)) if evaluation.is_dir() else None,
    )


def lengths(dataset: Dataset) -> Any:
    """How many tokens each row takes in a batch, without reading the tokens."""
    import numpy as np
    import pyarrow.compute as compute

    def of(column: str) -> Any:
        return compute.list_value_length(dataset.data[column]).to_numpy()

    if "input_ids" in dataset.column_names:
        return of("input_ids")
    return of("prompt_ids") + np.maximum(of("chosen_ids"), of("rejected_ids"))
