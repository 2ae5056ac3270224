"""Planning backwards from the end: what is left to do at the worst rate that was measured, and so the last safe stop.

What a stop will have to send is not what is missing now: the stop saves once more, and until then regular saves add
checkpoints of which one may be half sent and another the best. The plan reckons with the most that this can come to, so
that no save in between takes the time away.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from engine.backup.forecast import UNKNOWN, Band, forecast

NEVER_MEASURED = Band(*UNKNOWN, measured=False)
MARGIN_S = 600.0
MARGIN_SHARE = 0.1
PLAN_S = 60.0  # two plans are never further apart
RUN_FILES = 12  # of a run, sent again when it ends
AGAIN = 1 << 30  # bytes that may be on their way and have to be sent again


@dataclass(frozen=True)
class Work:
    """What one run has to do before the end. Sizes in bytes; what is not known is None."""

    run: str
    remote: str | None
    live: bool = False
    stop_s: float = 0.0  # to come to a step's end and save
    other: int = 0  # missing there: the run's files and the final model
    checkpoints: int = 0  # missing there: checkpoints that are wanted now
    files: int = 0  # in how many files, or to be proved
    checkpoint: int = 0  # what a further checkpoint will take there
    checkpoint_files: int = 0
    cap: int = 2  # regular checkpoints that may be unsent at the stop: one half sent, and the best
    keeps_all: bool = False
    ahead: int = 1  # of these, how many may be saved before the next plan is made
    next_save_s: float | None = None
    finish_s: float | None = None  # until it ends by itself
    final: int = 0
    band: Band = NEVER_MEASURED
    full: bool = False  # proved by reading back
    safe: bool = False  # nothing would be lost if the server ended now
    trouble: str | None = None  # why its copies do not get further
    started: float | None = None  # when it was started, by the wall clock

    def size(self, *, saves: bool, finishes: bool) -> int:
        """What may be unsent when it has stopped."""
        size = self.checkpoints
        if self.live and saves:
            more = self.ahead * self.checkpoint if self.keeps_all else 0
            size = max(size + more, min(self.cap, 2) * self.checkpoint)
        if self.live:
            size += self.checkpoint + (self.final if finishes else 0)
        return size + self.other

    def seconds(self, speed: str, *, saves: bool, finishes: bool) -> float:
        """How long that takes to send and to prove; `speed` is `low` or `mid`."""
        if self.remote is None:
            return 0.0
        size = self.size(saves=saves, finishes=finishes)
        files = self.files + (4 * self.checkpoint_files + RUN_FILES if self.live else 0)
        if not size and not files:
            return 0.0
        found = forecast(size, files, self.band, unhashed=size, full=self.full, in_flight=min(size, AGAIN))
        return found.high_s if speed == "low" else found.mid_s


def training(
    work: Work,
    *,
    checkpoint: int,
    checkpoint_files: int,
    stop_s: float,
    step: int,
    max_steps: int,
    eta_s: float | None,
    save_every: float | None,
    keep: Collection[str],
) -> Work:
    """The work of a run with what its further training adds to it.

    Args:
        work: what is missing now.
        checkpoint: bytes of a further checkpoint at the remote.
        checkpoint_files: its files.
        stop_s: how long a stop with a save may take.
        step: where it is.
        max_steps: where it ends.
        eta_s: how long until then; None: not known.
        save_every: steps from one regular save to the next; 0: there are none; None: not known.
        keep: what the policy wants.
    """
    step_s = eta_s / (max_steps - step) if eta_s is not None and max_steps > step else None
    next_save = None
    if save_every == 0:
        next_save = math.inf
    elif save_every is not None and step_s is not None:
        next_save = (save_every - step % save_every) * step_s
    # A checkpoint that is sent before the next save comes leaves one unsent at most; else the best may be another.
    quick = (
        bool(save_every and step_s) and checkpoint / max(work.band.low, 1.0) <= (save_every or 0) * (step_s or 0) / 2
    )
    return replace(
        work,
        live=True,
        stop_s=stop_s,
        checkpoint=checkpoint,
        checkpoint_files=checkpoint_files,
        cap=1 if quick or not {"best", "all"} & set(keep) else 2,
        next_save_s=next_save,
        finish_s=eta_s,
        final=checkpoint if {"final", "all"} & set(keep) else 0,
        keeps_all="all" in keep,
        ahead=1 + (math.ceil(PLAN_S / (save_every * step_s)) if save_every and step_s else 1),
    )


@dataclass(frozen=True)
class Plan:
    """The time that is needed, so the time that is left until the stop.

    `safe_s`: until the last moment at which everything still comes through at the lowest rate, margin included.
    `latest_s`: the same at the usual rate and without the margin: after it not even luck helps.
    """

    remaining_s: float
    need_s: float
    likely_s: float
    measured: bool

    @property
    def safe_s(self) -> float:
        return self.remaining_s - self.need_s

    @property
    def latest_s(self) -> float:
        return self.remaining_s - self.likely_s

    @property
    def fits(self) -> bool:
        """Whether everything comes through at the lowest rate."""
        return self.safe_s >= 0

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "safe_s": self.safe_s, "latest_s": self.latest_s, "fits": self.fits}


def margin(need: float, least: float = MARGIN_S) -> float:
    """The time kept free for what nobody foresaw."""
    return max(least, MARGIN_SHARE * need)


def plan(remaining: float, works: Sequence[Work], least_margin: float = MARGIN_S) -> Plan:
    """When to stop so that everything wanted is proved before the end. Uploads follow each other, so times add up."""
    stop = max((work.stop_s for work in works if work.live), default=0.0)

    def needs(speed: str, saves: bool) -> float:
        total = stop
        for work in works:
            ends = work.live and (work.finish_s is None or work.finish_s < remaining)
            total += work.seconds(speed, saves=saves, finishes=ends)
        return total

    def needed(speed: str, spare: bool) -> float:
        """Without a further regular save, where none comes before the stop that this allows."""

        def whole(saves: bool) -> float:
            need = needs(speed, saves)
            return need + margin(need, least_margin) if spare and (need or any(work.live for work in works)) else need

        without = whole(False)
        coming = [work.next_save_s for work in works if work.live]
        if coming and all(at is not None and at > remaining - without + stop for at in coming):
            return without
        return whole(True)

    measured = all(
        work.band.measured for work in works if work.remote and (work.live or work.size(saves=False, finishes=False))
    )
    return Plan(remaining, needed("low", True), needed("mid", False), measured)


def time_short(remaining: float, run_s: float, works: Sequence[Work], least_margin: float = MARGIN_S) -> float:
    """By how many seconds a run of `run_s` that begins now would miss the last safe stop; 0 where it fits."""
    if not math.isfinite(run_s):
        return 0.0
    return max(0.0, run_s - plan(remaining, works, least_margin).safe_s)
