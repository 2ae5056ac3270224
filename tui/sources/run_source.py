"""Reads one run folder piece by piece and keeps a store of what it says. For one thread; no widgets."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.journal import CHUNK, JournalReader
from engine.run.status import read_plan, state_of
from engine.workspace import RunFolder
from tui.state.snapshot import RESUMABLE, FixLine, PostMortem, RunSnapshot
from tui.state.store import RunStore

if TYPE_CHECKING:
    from engine.run.diagnose import Diagnosis

PREVIEW_FROM = 4 * 1024 * 1024  # a larger journal is shown coarsely until all of it has been read
PREVIEW_PIECES = 256
PREVIEW_PIECE = 4096
HARDWARE_TAIL = 64 * 1024


class TailReader(JournalReader):
    """Reads only the end of a JSON-lines file: what was missed in between is skipped, not caught up with."""

    def __init__(self, path: Path, tail: int) -> None:
        super().__init__(path)
        self.tail = tail

    def poll(self, limit: int = CHUNK) -> list[dict[str, Any]]:
        """The events within the last `tail` bytes that were not read before."""
        try:
            size = self.path.stat().st_size
        except OSError:
            return []
        if size - self.offset > self.tail:
            self.offset = size - self.tail
            self._drop_partial_line()
        return super().poll(limit)

    def _drop_partial_line(self) -> None:
        with open(self.path, "rb") as file:
            file.seek(self.offset)
            self.offset += len(file.readline(self.tail))


class RunSource:
    """Follows the files of a run.

    A long journal is first sampled over its whole length, so the curve and the newest numbers are there at once,
    and is then read in full by later polls, each within its time budget.
    """

    def __init__(self, run: RunFolder) -> None:
        self.run = run
        self._store = RunStore(run.name)
        self._preview: RunStore | None = None
        self._journal = JournalReader(run.journal)
        self._events = JournalReader(run.events)
        self._hardware = TailReader(run.hardware, HARDWARE_TAIL)
        self._opened = False
        self._plan_stamp: int | None = None
        self._looked_up: tuple[dict[str, Any], int | None] | None = None
        self._more = False
        self._examined: tuple[dict[str, Any], int | None] | None = None
        self._post_mortem: PostMortem | None = None

    @property
    def more(self) -> bool:
        """Whether part of the journal still waits to be read: poll again at once."""
        return self._more

    def poll(self, budget_s: float = 0.2) -> RunSnapshot:
        """Read what is new, for about `budget_s` seconds at most; the same snapshot object when nothing is.

        Raises:
            OSError: a file is there and cannot be read.
        """
        first = not self._opened
        if first:
            self._opened = True
            self._preview = self._make_preview()
        self._poll_small_files()
        if first and self._preview is not None:
            self._more = True
            return self._preview.snapshot()
        self._poll_journal(budget_s)
        if not first:  # it reads logs and plans: not before the first picture
            self._examine()
        return (self._preview or self._store).snapshot()

    def _stores(self) -> Iterator[RunStore]:
        yield self._store
        if self._preview is not None:
            yield self._preview

    def _poll_small_files(self) -> None:
        state = self.run.read_state()
        shown = state_of(state)
        sealed = self._resume_step(state) if shown in RESUMABLE else None
        restarts = self._events.restarts
        events = self._events.poll()
        samples = self._hardware.poll()
        planned = self._new_plan()
        for store in self._stores():
            if planned:
                store.feed_plan(planned[0])
            if self._events.restarts != restarts:
                store.reset_events()
            store.feed_events(events)
            store.feed_hardware(samples)
            store.feed_state(state, shown, sealed)

    def _new_plan(self) -> tuple[dict[str, Any] | None] | None:
        """plan.json where it has changed: a resume on other GPUs plans again."""
        try:
            stamp = self.run.plan.stat().st_mtime_ns
        except OSError:
            stamp = 0
        if stamp == self._plan_stamp:
            return None
        self._plan_stamp = stamp
        return (read_plan(self.run),)

    def _examine(self) -> None:
        """Why the run ended, once for each state.json of one that did not end well."""
        state = self.run.read_state()
        shown = state_of(state)
        seen = (state, self._resume_step(state)) if shown in RESUMABLE else None
        if seen == self._examined:
            return
        self._examined = seen
        self._post_mortem = None
        if seen is not None:
            from engine.run.diagnose import diagnose

            try:
                found = diagnose(self.run)
            except Exception:  # noqa: BLE001 - logs of any content: the rest of the screen stays
                found = None
            self._post_mortem = None if found is None else post_mortem(found)
        for store in self._stores():
            store.feed_post_mortem(self._post_mortem)

    def _resume_step(self, state: dict[str, Any]) -> int | None:
        """The checkpoint that a resume would take; looked up once for each state.json of an ended run."""
        if self._looked_up is None or self._looked_up[0] != state:
            from engine.checkpoint import ledger

            entry = ledger.newest(self.run.checkpoints)
            self._looked_up = (state, None if entry is None else entry.step)
        return self._looked_up[1]

    def _poll_journal(self, budget_s: float) -> None:
        deadline = time.monotonic() + budget_s
        while True:
            restarts = self._journal.restarts
            data, self._more = self._journal.read_chunk()
            if self._journal.restarts != restarts:
                self._store.reset_journal()
                self._preview = None
            self._store.feed(self._journal.parse(data))
            if not self._more or time.monotonic() >= deadline:
                break
        if self._preview is not None:
            if self._more:
                self._preview.set_loading(self._share_read())
            else:
                self._store.revision = max(self._store.revision, self._preview.revision) + 1
                self._preview = None

    def _share_read(self) -> float:
        try:
            return min(1.0, self._journal.offset / max(1, self.run.journal.stat().st_size))
        except OSError:
            return 1.0

    def _make_preview(self) -> RunStore | None:
        """A store fed with pieces from the whole length of the journal; None when it is short enough to read."""
        try:
            size = self.run.journal.stat().st_size
            if size < PREVIEW_FROM:
                return None
            preview = RunStore(self.run.name)
            with open(self.run.journal, "rb", buffering=0) as file:
                for begin in range(0, size - CHUNK, (size - CHUNK) // PREVIEW_PIECES + 1):
                    _feed_piece(preview, os.pread(file.fileno(), PREVIEW_PIECE, begin), whole_from=begin)
                _feed_piece(preview, os.pread(file.fileno(), CHUNK, size - CHUNK), whole_from=size - CHUNK)
        except OSError:
            return None  # the full read names the error, if it lasts
        preview.set_loading(0.0)
        return preview


def post_mortem(found: Diagnosis) -> PostMortem:
    """A diagnosis as the screen shows it."""
    from engine.run.diagnose import where

    line = found.evidence[0] if found.evidence else None
    place = "" if line is None else f"{line.file}:{line.line}" if line.line else line.file
    return PostMortem(
        title=found.title,
        where=where(found),
        seen="" if line is None else f"{place}  {line.text}",
        fixes=tuple(FixLine(fix.text, fix.command, fix.action is not None) for fix in found.fixes),
    )


def _feed_piece(store: RunStore, data: bytes, *, whole_from: int) -> None:
    """Feed the whole lines of a piece of a journal."""
    begin = data.find(b"\n") + 1 if whole_from else 0
    end = data.rfind(b"\n") + 1
    if begin < end:
        store.feed(JournalReader(Path()).parse(data[begin:end]))
