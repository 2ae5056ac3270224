"""The run's journal as the ranks write it: rank 0 alone, and never at the price of the training."""

from __future__ import annotations

import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

from engine.journal import JournalReader, JournalWriter

PENDING = 10_000  # lines kept in memory while the disk takes none


class Events:
    """Appends to journal.jsonl on rank 0 and does nothing elsewhere.

    A full disk does not stop the training: lines wait in memory, with their time, until there is room. A save in the
    background tells of itself from its own thread.
    """

    def __init__(self, path: Path | None, attempt: int) -> None:
        self._writer = JournalWriter(path, attempt=attempt) if path else None
        self._pending: deque[tuple[str, dict[str, Any]]] = deque(maxlen=PENDING)
        self._lock = threading.Lock()

    def append(self, event: str, **fields: Any) -> None:
        """Append one event."""
        if self._writer is None:
            return
        with self._lock:
            self._pending.append((event, {"time": time.time(), **fields}))
            try:
                while self._pending:
                    name, values = self._pending[0]
                    self._writer.append(name, **values)
                    self._pending.popleft()
            except OSError as error:
                print(f"journal: {error}; {len(self._pending)} lines wait", flush=True)  # noqa: T201 - the rank's log

    def sync(self) -> None:
        """Make the lines durable."""
        if self._writer is not None:
            try:
                self._writer.sync()
            except OSError as error:
                print(f"journal: {error}", flush=True)  # noqa: T201


def answered(journal: Path) -> int:
    """The highest request that an earlier attempt acted upon: it must not stop this one again."""
    highest = 0
    reader = JournalReader(journal)
    while True:
        data, more = reader.read_chunk()
        for line in data.splitlines():
            if b'"event":"request"' in line:
                highest = max([highest, *(int(event.get("id", 0)) for event in reader.parse(line))])
        if not more:
            return highest
