"""A block of a file's rows in tokens: what a worker process does, and the processes that do it side by side."""

from __future__ import annotations

import gc
import hashlib
import json
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import orjson
from numpy.typing import NDArray

from engine.data import training
from engine.data.worker import Block
from engine.errors import FtuiError
from engine.process import die_with_parent
from engine.text import _
from engine.train.tokenize.encode import IGNORED, Encoder, Problem, Result, Spec, Tokens

AHEAD = 2  # blocks a worker may be behind: what waits is in memory
MAX_WORKERS = 32
ROWS_AT_ONCE = 500  # rows whose texts are tokenized together: more only take more memory


class Encodes(Protocol):
    """What turns rows into tokens."""

    def encode(self, rows: Sequence[dict[str, Any]]) -> list[Result]:
        """Tokens and labels of rows, in their order."""


@dataclass
class Bad:
    """A row without tokens that can be trained; `cut` when only max_length is to blame."""

    line: int
    what: str
    fix: str = ""
    cut: bool = False


@dataclass
class Part:
    """The rows of a block in tokens: of each column all values one after another, and how many each row has."""

    values: dict[str, NDArray[Any]]
    lengths: dict[str, NDArray[np.int32]]
    places: NDArray[np.int64]  # which rows of the block
    keys: NDArray[np.uint64]  # a hash of each row's content
    rows: int  # in the block, good and bad
    form: str | None  # of the good rows
    truncated: int
    offset: int  # of the block in its file, in bytes
    bad: list[Bad] = field(default_factory=list)


@dataclass(frozen=True)
class Work:
    """What a worker is told once."""

    spec: Spec
    seed: int
    keyed: bool  # whether rows are told apart, to hold some of them out
    how: training.How = training.NO_MORE


class Worker:
    """Turns blocks into parts."""

    def __init__(self, work: Work, encoder: Encodes | None = None) -> None:
        self.work = work
        self.encoder = encoder or Encoder(work.spec)
        self._salt = work.seed.to_bytes(8, "little", signed=True)

    def part(self, block: Block, form: str | None) -> Part:
        """A block's rows in tokens.

        Args:
            block: rows of one file.
            form: what the rows before it were; None takes that of its first row.
        """
        spec, how = self.work.spec, self.work.how
        bad: list[Bad] = []
        good: list[tuple[int, int, dict[str, Any]]] = []
        count = 0
        for place, row in enumerate(training.taken([block], spec.text_field, spec.task, how)):
            count += 1
            if row.dropped:
                continue
            if row.form is None:
                why = training.problem(row, spec.text_field, spec.task, how)
                bad.append(Bad(row.line, why.detail, why.fix))
            elif form is not None and row.form != form:
                what = _("this row is of the form {own}, the rows before are {form}")
                bad.append(Bad(row.line, what.format(own=row.form, form=form)))
            else:
                form = row.form
                assert row.columns is not None
                good.append((place, row.line, row.columns))
        return self._encoded(good, count, form, bad, block.offset)

    def _encoded(
        self, good: list[tuple[int, int, dict[str, Any]]], count: int, form: str | None, bad: list[Bad], offset: int
    ) -> Part:
        names = ("prompt", "chosen", "rejected") if self.work.spec.task == "dpo" else ("ids", "trained")
        values: dict[str, list[NDArray[Any]]] = {name: [] for name in names}
        places: list[int] = []
        keys: list[int] = []
        truncated = 0
        for first in range(0, len(good), ROWS_AT_ONCE):
            some = good[first : first + ROWS_AT_ONCE]
            for (place, line, columns), result in zip(
                some, self.encoder.encode([columns for _place, _line, columns in some]), strict=True
            ):
                if isinstance(result, Problem):
                    bad.append(Bad(line, result.what, cut=result.cut))
                    continue
                if isinstance(result, Tokens):
                    values["ids"].append(result.ids)
                    values["trained"].append(result.labels != IGNORED)
                else:
                    for name, ids in zip(names, (result.prompt, result.chosen, result.rejected), strict=True):
                        values[name].append(ids)
                truncated += result.truncated
                places.append(place)
                keys.append(self._key(columns) if self.work.keyed else 0)
        bad.sort(key=lambda one: one.line)
        return Part(
            {name: np.concatenate(arrays) if arrays else np.zeros(0, np.int32) for name, arrays in values.items()},
            {name: np.array([len(array) for array in arrays], np.int32) for name, arrays in values.items()},
            np.array(places, np.int64),
            np.array(keys, np.uint64),
            count,
            form,
            truncated,
            offset,
            bad,
        )

    def _key(self, columns: dict[str, Any]) -> int:
        try:
            text = orjson.dumps(columns)
        except (TypeError, orjson.JSONEncodeError):  # a number of more than 64 bits
            text = json.dumps(columns).encode("utf-8", "replace")
        return int.from_bytes(hashlib.blake2b(text, digest_size=8, salt=self._salt).digest(), "little")


_worker: Worker | None = None


def _start(work: Work) -> None:
    """A worker ends with its parent, however that ends, and leaves the signals that stop a run to it."""
    global _worker
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    die_with_parent()
    _worker = Worker(work)
    gc.disable()  # a search for cycles through a block's texts, again and again, costs a twentieth; once a block does


def _part(block: Block, form: str | None) -> Part:
    assert _worker is not None
    try:
        return _worker.part(block, form)
    finally:
        gc.collect()


def cores() -> int:
    """The cores that this process may use."""
    return max(1, min(len(os.sched_getaffinity(0)), MAX_WORKERS))


class Pool:
    """Encodes blocks in order, in other processes where there is more than one to use."""

    def __init__(self, work: Work, workers: int, encoder: Encodes | None = None) -> None:
        """Make the pool; `encoder` encodes here, where there are no other processes."""
        self._work = work
        self._workers = workers
        self._own = Worker(work, encoder)
        self._executor: ProcessPoolExecutor | None = None

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._executor is not None:
            self._executor.shutdown(wait=True, cancel_futures=True)

    def parts(self, blocks: Iterable[Block], form: str | None) -> Iterator[Part]:
        """The parts of a file's blocks, in order; a few are in memory at a time.

        Until a good row tells the form of all, blocks are done here, one by one.

        Raises:
            FtuiError: a worker was killed.
        """
        waiting: deque[Future[Part]] = deque()
        try:
            for block in blocks:
                if form is None or self._workers < 2:
                    part = self._own.part(block, form)
                    form = part.form
                    yield part
                    continue
                waiting.append(self._there().submit(_part, block, form))
                if len(waiting) > AHEAD * self._workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool as error:
            raise FtuiError(
                _("a process that tokenized data was killed, probably for want of memory"),
                fix=_("free memory, or set dataset_num_proc: 1"),
                kind="worker_lost",
            ) from error

    def _there(self) -> ProcessPoolExecutor:
        if self._executor is None:
            # spawn: this process has loaded torch, and may have threads whose locks a fork would copy
            self._executor = ProcessPoolExecutor(
                self._workers,
                mp_context=multiprocessing.get_context("spawn"),
                initializer=_start,
                initargs=(self._work,),
            )
        return self._executor
