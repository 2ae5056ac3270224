"""What follows on an attempt that ended badly: another one, from which checkpoint and when, or the run's end."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from engine.process.child import Restart
from engine.run import choice, failure
from engine.run.choice import Choice


class Recovery:
    """Counts crashes and rollbacks of one run."""

    def __init__(self, max_restarts: int, max_rollbacks: int) -> None:
        self.restart = Restart(max_restarts, first=1.0, longest=60.0)
        self.rollbacks_left = max_rollbacks
        self.crashed_at: int | None = -1  # the step of the crash before; None: before training began; -1: no crash
        self.at_most: int | None = None  # after a rollback: what was saved beyond this step is not gone on from

    def after_crash(
        self, error: dict[str, Any], step: int | None, lived: float, *, rolled_back: bool = False
    ) -> tuple[float | None, str]:
        """Seconds until the next attempt, or None with the reason why there is none.

        Args:
            error: what state.json will say.
            step: the last step of the attempt; None when it did not begin to train.
            lived: its length in seconds.
            rolled_back: it goes on from an earlier checkpoint: then also an error that would come again is tried once.
        """
        again = step == self.crashed_at or (step is None and self.crashed_at == -1)
        self.crashed_at = step
        if failure.is_final(error) and not rolled_back:
            return None, "final"
        if again:
            return None, "same_step"
        delay = self.restart.next_delay(lived)
        return delay, "" if delay is not None else "limit"

    def rollback(self, at_most: int) -> bool:
        """Note a rollback to a checkpoint of this step or an earlier one; False when there were enough of them."""
        if self.rollbacks_left <= 0:
            return False
        self.rollbacks_left -= 1
        self.at_most = at_most if self.at_most is None else min(at_most, self.at_most)
        return True

    def saved(self) -> None:
        """The present attempt has sealed a checkpoint: it is the newest by its attempt."""
        self.at_most = None


class Search:
    """Reads checkpoints in a thread, so that the control socket answers meanwhile."""

    def __init__(self, checkpoints: Path, at_most: int | None) -> None:
        self._found: tuple[Choice | None, list[str]] = (None, [])
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._read, args=(checkpoints, at_most), daemon=True)
        self._thread.start()

    def _read(self, checkpoints: Path, at_most: int | None) -> None:
        try:
            self._found = choice.choose(checkpoints, at_most=at_most)
        except Exception as error:  # noqa: BLE001 - a disk may fail in any way; the loop says it
            self._error = error

    def result(self) -> tuple[Choice | None, list[str]] | None:
        """The choice and what was skipped; None while it reads. The thread is gone then: the loop may fork.

        Raises:
            Exception: reading failed.
        """
        if self._thread.is_alive():
            return None
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._found
