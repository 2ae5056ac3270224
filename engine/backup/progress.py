"""What a running backup shows: our own completed bytes, a bounded part of what is on its way, the rate as a band."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from engine.backup.forecast import Rate
from engine.files import read_json, write_json
from engine.process import ProcessId

NAME = "progress.json"
EVERY_S = 0.5


class Progress:
    """Counts a pass; rclone's own totals grow with each retry and are never shown."""

    def __init__(self, path: Path, remote: str) -> None:
        self.path = path
        self.remote = remote
        self.total = 0
        self.done = 0
        self.in_flight = 0
        self.files_total = 0
        self.files_done = 0
        self.doing = "hash"
        self.item: str | None = None
        self.state: str | None = None
        self.reason: str | None = None
        self.limit: float | None = None
        self.flying: dict[str, int] = {}  # an item's bytes through so far
        self.rate = Rate()
        self.started = time.monotonic()
        self._moved = self.started
        self._written = 0.0
        self._last = -1

    @property
    def through(self) -> int:
        """Bytes that are there, and those on their way: never more than there are."""
        return min(self.total, self.done + self.in_flight)

    def look(self) -> None:
        """Note the rate, and when a byte moved last."""
        now = time.monotonic()
        if self.through != self._last:
            self._last, self._moved = self.through, now
        self.rate.add(now, self.through)

    def moved(self) -> None:
        """Something else than a byte went on: the watchdog starts anew."""
        self._moved = time.monotonic()

    @property
    def still_s(self) -> float:
        """For how long no byte moved."""
        return time.monotonic() - self._moved

    def to_json(self) -> dict[str, Any]:
        """The document that screens and other commands read."""
        band = self.rate.band()
        left = self.total - self.through
        eta = self.rate.eta(left)
        return {
            "format": 1,
            "remote": self.remote,
            "process": ProcessId.current().to_json(),
            "doing": self.doing,
            "item": self.item,
            "items": self.flying,
            "state": self.state,
            "reason": self.reason,
            "bytes_done": self.through,
            "bytes_total": self.total,
            "files_done": self.files_done,
            "files_total": self.files_total,
            "rate": band.to_json() if band else None,
            "eta_s": round(eta[1], 1) if eta else None,
            "eta_band_s": [round(eta[0], 1), round(eta[2], 1)] if eta else None,
            "limit": self.limit,
            "still_s": round(self.still_s, 1),
            "updated": time.time(),
        }

    def write(self, *, now: bool = False) -> None:
        """Write the document, at most twice a second."""
        if now or time.monotonic() - self._written > EVERY_S:
            self._written = time.monotonic()
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                write_json(self.path, self.to_json(), durable=False)
            except OSError:
                pass  # a full disk stops no upload

    def end(self) -> None:
        """Nothing runs any more."""
        self.path.unlink(missing_ok=True)


def read(folder: Path) -> dict[str, Any] | None:
    """The progress of the backup that runs for a run now; None where none does."""
    value = read_json(folder / NAME)
    if not isinstance(value, dict):
        return None
    process = ProcessId.from_json(value.get("process"))
    return value if process is not None and process.alive() else None
