"""Preference training (DPO): pairs of answers."""

from __future__ import annotations

from typing import Any

from trl import DPOConfig, DPOTrainer

from engine.train.batches import Grouping
from engine.train.muon import OwnOptimizer
from engine.train.saving import SealedSaving
from engine.train.tasks import Task
from engine.train.watch import WatchedLoss


class Trainer(SealedSaving, WatchedLoss, OwnOptimizer, Grouping, DPOTrainer):
    """TRL's trainer; its rows come tokenized."""

    def _prepare_dataset(self, dataset: Any, *_args: Any, **_kwargs: Any) -> Any:
        return dataset


TASK = Task(DPOConfig, Trainer)
