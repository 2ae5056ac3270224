"""Supervised fine-tuning and pretraining: TRL's trainer with sealed saves and a watched loss."""

from __future__ import annotations

from trl import SFTConfig, SFTTrainer

from engine.train.batches import Batches
from engine.train.muon import OwnOptimizer
from engine.train.saving import SealedSaving
from engine.train.tasks import Task
from engine.train.watch import WatchedLoss


class Trainer(SealedSaving, WatchedLoss, OwnOptimizer, Batches, SFTTrainer):
    """TRL's trainer; its rows come tokenized."""


TASK = Task(SFTConfig, Trainer)
