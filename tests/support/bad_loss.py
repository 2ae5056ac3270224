"""A plugin of the ranks for tests: on rank 1 the loss is no number in the second micro-batch of step 3."""

from __future__ import annotations

import os
from typing import Any

from trl import SFTTrainer

import tests.support.cpu_ranks  # noqa: F401

STEP, MICRO_BATCH = 3, 2
_compute = SFTTrainer.compute_loss


def _spoiled(self: Any, *args: Any, **kwargs: Any) -> Any:
    """TRL's loss, times NaN once."""
    loss = _compute(self, *args, **kwargs)
    there = (self.state.global_step + 1, self._micro_batch + 1) == (STEP, MICRO_BATCH)
    return loss * float("nan") if there and os.environ.get("RANK") == "1" else loss


SFTTrainer.compute_loss = _spoiled
