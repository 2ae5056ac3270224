"""A sign of life for the supervisor's watchdog: the journal is written every so many steps, and not in evaluations."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

EVERY_S = 1.0


class Heartbeat(TrainerCallback):
    """Touches a file at most once a second: after a micro-batch, a step, a batch of an evaluation. Rank 0 alone."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._last = 0.0

    def _beat(self) -> None:
        now = time.monotonic()
        if now - self._last >= EVERY_S:
            self._last = now
            with contextlib.suppress(OSError):  # a full disk must not end the training; an existing file needs no room
                self.path.touch()

    def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._beat()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._beat()

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._beat()
