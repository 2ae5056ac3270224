"""The supervisor's state.json: written at most twice a second, only on change, and never a reason to die."""

from __future__ import annotations

import logging
import os
import time
from typing import Any

import orjson

from engine.files import write_json
from engine.workspace import RunFolder

EVERY_S = 0.5
log = logging.getLogger(__name__)


def fresh(run: str, **fields: Any) -> dict[str, Any]:
    """The state of a run that has just been made."""
    return {
        "format": 1,
        "run": run,
        "state": "starting",
        "phase": "prepare",
        "step": 0,
        "max_steps": None,
        "loss": None,
        "eval_loss": None,
        "epoch": None,
        "eta_s": None,
        "tokens_per_s": None,
        "attempt": 1,
        "restarts": 0,
        "device": None,
        "world_size": 1,
        "gpus": [],
        "supervisor": None,
        "launcher": None,
        "control": None,
        "created": time.time(),
        "started": None,
        "ended": None,
        "updated": time.time(),
        "last_checkpoint": None,
        "unsaved_s": None,
        "earlier_s": 0.0,
        "resumed_from": None,
        "error": None,
        "exit_code": None,
        **fields,
    }


class StateFile:
    """Holds the fields; `set` changes them, `tick` and `flush` write."""

    def __init__(self, run: RunFolder) -> None:
        self.run = run
        self.fields: dict[str, Any] = run.read_state() or fresh(run.name)
        self._dirty = False
        self._written = 0.0
        self._failing = False

    def get(self, key: str) -> Any:
        """One field (None when absent)."""
        return self.fields.get(key)

    def set(self, **fields: Any) -> None:
        """Change fields; nothing is written yet."""
        for key, value in fields.items():
            if self.fields.get(key) != value or key not in self.fields:
                self.fields[key] = value
                self._dirty = True

    def tick(self) -> None:
        """Write what changed, if it is time to.

        Progress is not fsynced: after a power cut the journal has it, and an fsync waits for the checkpoint that a
        rank may be writing to the same disk.
        """
        if self._dirty and time.monotonic() - self._written >= EVERY_S:
            self.flush()

    def flush(self, *, durable: bool = False) -> None:
        """Write now. A failure is logged once, and tried again at the next change or tick."""
        self._written = time.monotonic()
        document = {**self.fields, "updated": time.time()}
        try:
            write_json(self.run.state, document, durable=durable)
        except OSError as error:
            if durable and self._overwrite(document):
                return
            if not self._failing:
                log.warning("state.json not written: %s", error)
            self._failing, self._dirty = True, True
            return
        self._failing = self._dirty = False

    def _overwrite(self, document: dict[str, Any]) -> bool:
        """Write into the file as it is: a full disk takes that, in the room it has already.

        Not atomic, so only for what must be known: without it, a run that ended would be taken for a lost one.
        """
        data = orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS)
        try:
            size = self.run.state.stat().st_size
            with open(self.run.state, "r+b") as file:
                file.write(data.ljust(size))  # blanks behind the object: cutting the file would come as a second step
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            return False
        return True
