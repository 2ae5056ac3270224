"""What is trained: the trainer of each task, its arguments, and the shape of its rows.

Imports one task's trainer at a time: TRL's modules take seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from engine.train.job import Job


@dataclass(frozen=True)
class Task:
    """The library classes of a task."""

    arguments: type[Any]
    trainer: type[Any]


def of(job: Job) -> Task:
    """The task of a recipe; pretraining is TRL's supervised training on rows of plain text."""
    if job.task == "dpo":
        from engine.train.tasks import dpo

        return dpo.TASK
    from engine.train.tasks import sft

    return sft.TASK
