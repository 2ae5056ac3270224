"""The check of all rows as a process of its own, for a screen: it draws while this works, and may end it.

`Child` starts it with its work on standard input; it answers with lines (`rows N`, `error JSON`, `done`) and, after
the last of them, the outcome.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.data import check, suggest
from engine.data.kinds import lookup
from engine.data.suggest import Advice
from engine.data.tally import Tally
from engine.data.worker import Options
from engine.errors import FtuiError, UsageError
from engine.process import die_with_parent
from engine.process.daemon import own_environment
from engine.text import _

BINS = tuple(1 << n for n in range(5, 21))
LEFT_OUT = ("duplicate", "near_duplicate", "train_eval_overlap", "dropped_row")


@dataclass(frozen=True)
class Found:
    """One kind of finding over all files, with the rows where it was seen as (file, line)."""

    kind: str
    subtype: str
    level: str
    count: int
    detail: str
    rows: tuple[tuple[int, int], ...]

    @property
    def name(self) -> str:
        """Kind and subtype."""
        return f"{self.kind} {self.subtype}".strip()


@dataclass(frozen=True)
class Lengths:
    """How long the rows are. `bins` are (up to, rows); `unit` is tokens, or characters where no model counts."""

    values: NDArray[np.int32]
    is_tokens: bool
    bins: tuple[tuple[int, int], ...]
    p50: int = 0
    p90: int = 0
    p99: int = 0
    longest: int = 0
    trained_share: float | None = None

    def beyond(self, length: int) -> float:
        """The share of the rows that is longer."""
        return suggest.share_beyond(self.values, length)


@dataclass(frozen=True)
class Outcome:
    """What a check of all rows said."""

    rows: int
    usable: int
    found: tuple[Found, ...]
    lengths: Lengths
    advice: Advice | None
    left_out: dict[str, int]  # what preparing would leave out, by kind
    masked: int  # rows in which it would mask something

    @property
    def errors(self) -> int:
        """Kinds of errors."""
        return sum(found.level == "error" for found in self.found)


@dataclass(frozen=True)
class Work:
    """What is checked: files, how, and how long a sequence the model takes."""

    files: list[str]
    options: Options
    most: int | None = None


def conclude(work: Work, tell: check.Tell | None = None) -> Outcome:
    """Check the rows, here.

    Raises:
        UsageError: a file or the model cannot be read.
        FtuiError: a process was killed, or `tell` said no.
    """
    is_tokens = work.options.model is not None
    result = check.examine(work.files, work.options, tell=tell)
    found = _found([file.tally for file in result.train])
    counts = {kind: sum(f.count for f in found if f.kind == kind) for kind in LEFT_OUT}
    lengths = _lengths(result, is_tokens=is_tokens)
    dropped = counts.pop("dropped_row")
    unusable = result.report.rows - result.report.usable - dropped
    left_out = {"unusable": unusable, **counts, "dropped": dropped}
    return Outcome(
        result.report.rows, result.report.usable, found, lengths,
        suggest.advise(lengths.values, work.most) if is_tokens else None,
        {kind: count for kind, count in left_out.items() if count > 0},
        sum(f.count for f in found if f.kind in ("pii", "secret") and f.subtype != "name"),
    )  # fmt: skip


class Child:
    """The process.

    Raises:
        FtuiError: it cannot be started.
    """

    def __init__(self, work: Work) -> None:
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "engine.data.examine"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=own_environment(),
            )  # fmt: skip
        except OSError as error:
            raise FtuiError(
                _("the check cannot be started: {reason}").format(reason=error.strerror or error),
                fix=_("free memory"), kind="unstarted",
            ) from error  # fmt: skip
        self._work = work
        self._ended = False

    def outcome(self, tell: Callable[[int], None] | None = None) -> Outcome:
        """Wait for it; `tell` hears how many rows are done.

        Raises:
            FtuiError: what the check raised, or that it was ended.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        with self._process:
            try:
                pickle.dump(self._work, self._process.stdin)
                self._process.stdin.close()
            except OSError:
                pass  # it died; the answer says so
            for line in self._process.stdout:
                word, _space, rest = line.partition(b" ")
                if word == b"rows" and tell is not None:
                    tell(int(rest))
                elif word == b"error":
                    said = json.loads(rest)
                    cls = UsageError if said.pop("usage") else FtuiError
                    raise cls(said.pop("what"), **said)
                elif word == b"done\n":
                    found = pickle.load(self._process.stdout)  # noqa: S301 - our own process wrote it
                    assert isinstance(found, Outcome)
                    return found
        if self._ended:
            raise stopped()
        raise FtuiError(
            _("the process that checks the data was killed, probably for want of memory"),
            fix=_("free memory, or check fewer files at once"), kind="worker_lost",
        )  # fmt: skip

    def end(self) -> None:
        """End it; its own processes end with it."""
        self._ended = True
        self._process.kill()


def stopped() -> FtuiError:
    """The error of a check that nobody waits for."""
    return FtuiError(_("the check was stopped"), kind="stopped")


def _found(tallies: Sequence[Tally]) -> tuple[Found, ...]:
    """The findings of all files by kind, errors first, then the most frequent."""
    rows: dict[tuple[str, str], list[tuple[int, int]]] = {}
    counts: dict[tuple[str, str], int] = {}
    details: dict[tuple[str, str], str] = {}
    for file, tally in enumerate(tallies):
        for finding in tally.findings(""):
            key = (finding.kind, finding.subtype or "")
            rows.setdefault(key, []).extend((file, line) for line in tally.entries[key].lines)
            counts[key] = counts.get(key, 0) + finding.count
            details.setdefault(key, finding.detail)
    found = [
        Found(kind, subtype, lookup(kind, subtype).level, counts[kind, subtype], details[kind, subtype], tuple(lines))
        for (kind, subtype), lines in rows.items()
    ]
    order = ("error", "warning", "note")
    return tuple(sorted(found, key=lambda f: (order.index(f.level), -f.count, f.name)))


def _lengths(result: check.Examined, *, is_tokens: bool) -> Lengths:
    parts = [part for file in result.train for part in (file.lengths if is_tokens else file.sizes)]
    values = np.concatenate([np.zeros(0, np.int32), *parts])
    if not len(values):
        return Lengths(values, is_tokens, ())
    edges = [edge for edge in BINS if edge < 2 * int(values.max())]
    edges = [edge for at, edge in enumerate(edges) if at + 1 >= len(edges) or int((values <= edge).sum()) > 0]
    edges = edges or [BINS[0]]
    if edges[-1] < int(values.max()):
        edges.append(int(values.max()))
    upto = [int((values <= edge).sum()) for edge in edges]
    bins = tuple((edge, count - before) for edge, count, before in zip(edges, upto, [0, *upto], strict=False))
    p50, p90, p99 = (int(np.percentile(values, share, method="inverted_cdf")) for share in (50, 90, 99))
    kept = sum(file.kept for file in result.train)
    trained = sum(file.trained for file in result.train) / kept if is_tokens and kept else None
    return Lengths(values, is_tokens, bins, p50, p90, p99, int(values.max()), trained)


def main() -> int:
    """Do the work that stands on standard input."""
    die_with_parent()
    work = pickle.load(sys.stdin.buffer)  # noqa: S301 - the process that started us wrote it
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever else prints must not get between

    def tell(rows: int) -> bool:
        answer.write(b"rows %d\n" % rows)
        answer.flush()
        return True

    try:
        outcome = conclude(work, tell)
    except FtuiError as error:
        said = {
            "what": error.what, "where": error.where, "fix": error.fix, "kind": error.kind,
            "usage": isinstance(error, UsageError),
        }  # fmt: skip
        answer.write(b"error " + json.dumps(said).encode() + b"\n")
    else:
        answer.write(b"done\n")
        pickle.dump(outcome, answer)
    answer.close()
    return 0


if __name__ == "__main__":
    # Under its own name, so that what is pickled here is what the other side knows.
    from engine.data.examine import main as run

    sys.exit(run())
