"""Requests to the ranks through request.json, one at a time: each waits until the one before was acted upon."""

from __future__ import annotations

import contextlib
import logging
from collections import deque

from engine import journal
from engine.errors import FtuiError
from engine.files import read_json, write_json
from engine.text import _
from engine.workspace import RunFolder

log = logging.getLogger(__name__)


class Requests:
    """Hands requests out with rising ids; what waits for the ranks to be up waits here."""

    def __init__(self, run: RunFolder) -> None:
        self.run = run
        old = read_json(run.request)
        answered = journal.last(run.journal, {"event": "request"}) or {}
        ids = [value.get("id") for value in (old, answered) if isinstance(value, dict)]
        self.last_id = max((number for number in ids if isinstance(number, int)), default=0)
        self._waiting: deque[tuple[int, str]] = deque()
        self._sent = 0

    def reset(self) -> None:
        """A new attempt begins: what was asked of the last one must not be done by this one."""
        self._waiting.clear()
        self._sent = 0
        with contextlib.suppress(OSError):
            self.run.request.unlink(missing_ok=True)

    def add(self, do: str, *, first: bool = False) -> int:
        """Queue a request and return its id; the same one waiting already is not queued twice.

        Args:
            first: it replaces whatever waits, and goes out without an answer to the one before.

        Raises:
            FtuiError: there is nothing to evaluate on.
        """
        if do == "evaluate":
            self._refuse_without_data()
        if first:
            self._waiting.clear()
            self._sent = 0
        for number, waiting in self._waiting:
            if waiting == do:
                return number
        self.last_id += 1
        self._waiting.append((self.last_id, do))
        return self.last_id

    def _refuse_without_data(self) -> None:
        recipe = self.run.read_resolved().get("recipe")
        if isinstance(recipe, dict) and not recipe.get("eval_dataset_path") and recipe.get("test_size") == 0:
            raise FtuiError(
                _("the run has no data to evaluate on"), fix=_("set test_size or eval_dataset_path in the next recipe")
            )

    def send_next(self, answered: int) -> None:
        """Write the next request when the ranks have acted upon the one before."""
        if not self._waiting or answered < self._sent:
            return
        number, do = self._waiting[0]
        try:
            write_json(self.run.request, {"format": 1, "id": number, "do": do}, durable=False)
        except OSError as error:  # a full disk: tried again at the next tick
            log.warning("request.json not written: %s", error)
            return
        self._waiting.popleft()
        self._sent = number
