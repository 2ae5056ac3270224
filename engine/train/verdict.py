"""How the ranks come to one verdict on a save that each of them writes alone, in the background of the training.

Through a key-value store of our own, not through collectives: a collective that times out ends its process group and
with it the training, and one on the training's own groups would have to come at the same place on all ranks. Here a
rank that hangs in its disk is only not heard of in time: the save is given up, and training goes on.
"""

from __future__ import annotations

import datetime
import os
import pickle
import time
from typing import Any

from engine.text import _
from engine.train.ranks import Ranks

POLL_S = 0.5


class Verdicts:
    """Reports go to rank 0, its verdict goes to all. With one rank nothing is sent."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self._store: Any = None
        self._looked = 0.0

    def connect(self) -> None:
        """Meet the other ranks; all must call it, once."""
        if self.ranks.size == 1 or self._store is not None:
            return
        from torch.distributed import TCPStore

        host = os.environ.get("MASTER_ADDR", "127.0.0.1")
        first, size = self.ranks.first, self.ranks.size
        if first:
            self._store = TCPStore(host, 0, size, is_master=True, wait_for_workers=False)
        port = self.ranks.by_first(lambda: int(self._store.port))
        if not first:
            self._store = TCPStore(host, port, size, is_master=False, wait_for_workers=False)

    def report(self, number: int, value: Any, *, failed: bool) -> None:
        """Tell rank 0 what became of this rank's part of save `number`."""
        if self._store is not None:
            if failed:
                self._store.set(f"{number}/given-up", b"1")
            self._store.set(f"{number}/{self.ranks.rank.index}", pickle.dumps(value))

    def given_up(self, number: int) -> bool:
        """Whether some rank failed already; asked of the store now and then only."""
        now = time.monotonic()
        if self._store is None or now - self._looked < POLL_S:
            return False
        self._looked = now
        return bool(self._store.check([f"{number}/given-up"]))

    def collect(self, number: int, own: Any, seconds: float) -> list[Any]:
        """On rank 0: what all ranks report.

        Raises:
            TimeoutError: one of them did not, within this time.
        """
        values = [own]
        until = time.monotonic() + seconds
        for rank in range(1, self.ranks.size):
            told = self._get(f"{number}/{rank}", until - time.monotonic())
            if told is None:
                raise TimeoutError(
                    _("rank {rank} has not written its part in {s} s").format(rank=rank, s=round(seconds))
                )
            values.append(pickle.loads(told))  # noqa: S301 - of our own ranks
        return values

    def publish(self, number: int, reason: str | None) -> None:
        """From rank 0 to all: None when the checkpoint is sealed, else why it is given up."""
        if self._store is not None:
            self._store.set(f"{number}/verdict", pickle.dumps(reason))
            for rank in range(self.ranks.size):
                self._store.delete_key(f"{number}/{rank}")

    def await_verdict(self, number: int, seconds: float) -> str | None:
        """On the other ranks: what rank 0 published."""
        told = self._get(f"{number}/verdict", seconds)
        if told is None:
            return _("rank {rank} has not written its part in {s} s").format(rank=0, s=round(seconds))
        reason: str | None = pickle.loads(told)  # noqa: S301 - of our own rank 0
        return reason

    def _get(self, key: str, seconds: float) -> bytes | None:
        try:
            self._store.wait([key], datetime.timedelta(seconds=max(0.001, seconds)))
            return bytes(self._store.get(key))
        except Exception:  # noqa: BLE001 - a timeout and a lost store are told apart by the training itself
            return None
