"""A loss that is not a number stops the run: at the end of its step, before anything of it can be saved."""

from __future__ import annotations

import math
from typing import Any

from transformers import TrainerCallback

from engine.errors import FtuiError
from engine.text import _
from engine.train.ranks import Ranks
from engine.train.saving import Saver

KIND = "loss_not_finite"


class WatchedLoss:
    """Mixin for a trainer, before it in the bases: notes the first micro-batch whose loss is not a number."""

    not_finite: tuple[int, float] | None = None  # the micro-batch of this step, from 1, and its loss
    _micro_batch = 0

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """The library's loss. Its value costs no wait: TRL reads figures of the same forward pass anyway."""
        result = super().compute_loss(model, inputs, *args, **kwargs)  # type: ignore[misc]
        if self.model.training:  # type: ignore[attr-defined]
            self._micro_batch += 1
            loss = float((result[0] if isinstance(result, tuple) else result).detach())
            if not math.isfinite(loss) and self.not_finite is None:
                self.not_finite = (self._micro_batch, loss)
        return result


class LossCallback(TrainerCallback):
    """Raises on all ranks when the loss of one was not a number. Must come before what asks for saves."""

    def __init__(self, ranks: Ranks, saver: Saver, trainer: Any) -> None:
        self.ranks = ranks
        self.saver = saver
        self.trainer = trainer

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        bad = self.trainer.not_finite
        self.trainer._micro_batch = 0
        (any_bad,) = self.ranks.highest([int(bad is not None)])
        if any_bad:
            found = self.ranks.gather(bad)
            rank, (micro_batch, loss) = next((i, told) for i, told in enumerate(found) if told is not None)
            kept = self.saver.saved_step
            raise FtuiError(
                _("the loss is {loss} at step {step} (micro-batch {batch} of {total}, rank {rank})").format(
                    loss=loss,
                    step=state.global_step,
                    batch=micro_batch,
                    total=args.gradient_accumulation_steps,
                    rank=rank,
                ),
                where=f"checkpoint-{kept}" if kept else None,
                fix=_(
                    "the checkpoints before are kept: lower learning_rate or max_grad_norm, look at the rows, "
                    "use bf16 instead of fp16; then `ftui resume RUN --step N` or start anew"
                ),
                kind=KIND,
            )
