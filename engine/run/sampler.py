"""One line a second about GPUs, host and disk; what fails here never touches the run."""

from __future__ import annotations

import contextlib
import logging
import time
from typing import Any

from engine.journal import JournalWriter
from engine.workspace import RunFolder

EVERY_S = 1.0
ROTATE_AT = 64 * 1024 * 1024
log = logging.getLogger(__name__)


class Sampler:
    """Writes hardware.jsonl and returns what happened to the GPUs since the sample before."""

    def __init__(self, run: RunFolder) -> None:
        self.run = run
        self._next = 0.0
        self._writer: JournalWriter | None = None
        self._probe: Any = None
        self._before: dict[str, dict[str, Any]] = {}
        self._complaint = ""

    def tick(self, launcher: int | None) -> list[dict[str, Any]]:
        """Take a sample when one is due.

        Returns:
            Events for events.jsonl: a GPU lost or back, a new Xid, new ECC errors.
        """
        now = time.monotonic()
        if now < self._next:
            return []
        self._next = now + EVERY_S
        try:
            return self._sample(launcher)
        except Exception as error:  # noqa: BLE001 - a driver or a disk may fail in any way; training goes on
            if str(error) != self._complaint:
                self._complaint = str(error)
                log.warning("no hardware sample: %s: %s", type(error).__name__, error)
            return []

    def close(self) -> None:
        """Let go of the driver and the file."""
        if self._probe is not None:
            with contextlib.suppress(Exception):
                self._probe.close()
        if self._writer is not None:
            self._writer.close()

    def _sample(self, launcher: int | None) -> list[dict[str, Any]]:
        from engine.hardware import disk, gpus, host

        if self._probe is None:
            self._probe = gpus.Probe()
        samples = self._probe.sample()
        fields = {
            "gpus": samples,
            "host": host.sample([launcher] if launcher is not None else []),
            "disk": disk.sample(self.run.path),
        }
        events = self.compare(samples)
        self._write(fields)
        return events

    def _write(self, fields: dict[str, Any]) -> None:
        path = self.run.hardware
        if self._writer is not None and path.exists() and path.stat().st_size > ROTATE_AT:
            self._writer.close()
            path.replace(path.with_name(path.name + ".1"))
            self._writer = None
        if self._writer is None:
            self._writer = JournalWriter(path)
        self._writer.append("sample", **fields)

    def compare(self, samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """What changed on the GPUs since the last call."""
        events = []
        for sample in samples:
            old = self._before.get(sample["uuid"])
            self._before[sample["uuid"]] = sample
            about = {"event": "gpu", "index": sample["index"], "uuid": sample["uuid"]}
            if (xid := sample.get("xid")) is not None:  # a sample carries what the driver said since the one before
                events.append({**about, "what": "xid", "xid": xid})
            if sample["state"] == "lost":
                if old is None or old["state"] != "lost":
                    events.append({**about, "what": "lost"})
                continue
            if old is not None and old["state"] == "lost":
                events.append({**about, "what": "back"})
            errors = sample.get("ecc_errors")
            if old is not None and errors and errors > (old.get("ecc_errors") or 0):
                events.append({**about, "what": "ecc", "errors": errors})
        return events
