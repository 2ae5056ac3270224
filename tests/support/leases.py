"""A rented server under a fake clock: training runs, an uploader, rates that change, things that fail.

Only the world is made up. What decides in it is the autopilot itself, with its plan, its files and its clock.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.backup.forecast import HASH_RATE, REQUEST_S, Band
from engine.errors import FtuiError
from engine.lease import record, schedule, when
from engine.lease.autopilot import Autopilot
from engine.lease.clock import Now
from engine.lease.schedule import Work
from engine.workspace import Workspace

MB = 1e6
START = 1_790_000_000.0


@dataclass
class Clocks:
    """True time, and what the machine's clocks make of it."""

    true: float = 0.0
    wall_off: float = 0.0
    boot: str = "a"
    boot_at: float = 0.0
    synced: bool | None = None

    def now(self) -> Now:
        return Now(START + self.true + self.wall_off, self.true - self.boot_at + 1000.0, self.boot, self.synced)


@dataclass
class Checkpoint:
    step: int
    best: bool = False
    sent: float = 0.0
    begun: bool = False
    proved: bool = False


@dataclass
class Run:
    """One run: it trains, saves, and wants `best`, `last` and `final` elsewhere."""

    name: str
    step_s: float
    max_steps: int
    every: int
    size: float
    files: int
    save_s: float
    keep: tuple[str, ...]
    step: float = 0.0
    live: bool = True
    stop_at: float | None = None
    checkpoints: list[Checkpoint] = field(default_factory=list)
    final: Checkpoint | None = None
    chance: random.Random = field(default_factory=random.Random)

    def train(self, now: float, seconds: float) -> None:
        if not self.live:
            return
        if self.stop_at is not None:  # it stands at the end of its step, and saves
            if now >= self.stop_at:
                self._seal(int(self.step))
                self.live = False
            return
        before = self.step
        self.step = min(self.max_steps, self.step + seconds / self.step_s)
        first = (int(before) // self.every + 1) * self.every if self.every else self.max_steps + 1
        for at in range(first, int(self.step) + 1, self.every or 1):
            self._seal(at)
        if self.step >= self.max_steps:
            self._seal(self.max_steps)
            self.live, self.final = False, Checkpoint(self.max_steps)

    def _seal(self, step: int) -> None:
        if self.checkpoints and self.checkpoints[-1].step >= step:
            return
        if better := self.chance.random() < 0.5:
            for checkpoint in self.checkpoints:
                checkpoint.best = False
        self.checkpoints.append(Checkpoint(step, best=better or not self.checkpoints))

    def wanted(self) -> list[Checkpoint]:
        """As `items.wanted`: what the policy wants now, and what was begun."""
        found = [c for c in self.checkpoints if "all" in self.keep or (c.best and "best" in self.keep)]
        if self.checkpoints and "last" in self.keep:
            found.append(self.checkpoints[-1])
        found += [c for c in self.checkpoints if c.begun and not c.proved]
        if self.final is not None and "final" in self.keep:
            found.insert(0, self.final)
        return list({id(c): c for c in found}.values())

    @property
    def safe(self) -> bool:
        return not self.live and all(c.proved for c in self.wanted())

    def work(self, band: Band) -> Work:
        open_ = [c for c in self.wanted() if not c.proved]
        left = {id(c): self.size - c.sent for c in open_}
        final = sum(left[id(c)] for c in open_ if c is self.final)
        work = Work(
            self.name,
            "s3:b",
            other=int(final),
            checkpoints=int(sum(left.values()) - final),
            files=len(open_) * self.files,
            band=band,
            safe=self.safe,
        )
        if not self.live:
            return work
        return schedule.training(
            work,
            checkpoint=int(self.size),
            checkpoint_files=self.files,
            stop_s=2 * self.step_s + 1.5 * self.save_s + 10,
            step=int(self.step),
            max_steps=self.max_steps,
            eta_s=(self.max_steps - self.step) * self.step_s,
            save_every=float(self.every),
            keep=self.keep,
        )


class World:
    """A server with some runs; `fail` lets rates fall below the band and uploads die (else only as the band allows)."""

    def __init__(self, home: Path, seed: int, *, fail: bool) -> None:
        self.chance = chance = random.Random(seed)
        self.workspace = Workspace(home).prepare()
        self.fail = fail
        self.tight = chance.random() < 0.6  # nothing is better than what has to be reckoned with
        self.clocks = Clocks(synced=chance.choice([None, False]))
        low = 10 ** chance.uniform(6.5, 8.3)
        self.band = Band(low, low * chance.uniform(1, 3), low * chance.uniform(3, 6))
        self.runs = [self._run(f"run-{i}") for i in range(chance.choice([1, 1, 1, 2, 3]))]
        self.end = self.shortest() * chance.uniform(0.5, 4.0) + chance.choice([0.0, chance.uniform(0, 40 * 3600)])
        self.possible = self.end > self.shortest() * 1.02 + 60
        self.batch: list[tuple[Run, Checkpoint]] = []
        self.dead_until = self.slow_until = 0.0
        self.unread = self.hurried = False
        self.told: list[tuple[float, str, dict[str, Any]]] = []
        self.false_safe: list[str] = []
        relative = chance.random() < 0.5
        at = self.clocks.now()
        record.save(self.workspace, when.When(at.wall + self.end, "test", relative), at)
        self.pilot = self._pilot()

    def shortest(self) -> float:
        """What it takes to stop everything at once and send what that saves at the lowest rate; nothing to spare."""
        sending = sum(run.size / self.band.low + run.files * REQUEST_S + run.size / HASH_RATE for run in self.runs)
        return max(2 * run.step_s + 1.5 * run.save_s + 5 for run in self.runs) + sending

    def _run(self, name: str) -> Run:
        chance = self.chance
        step_s, size = 10 ** chance.uniform(-0.5, 1.5), 10 ** chance.uniform(7, 11)
        return Run(
            name,
            step_s=step_s,
            max_steps=int(chance.uniform(0.5, 60) * 3600 / step_s) + 2,
            every=chance.choice([0, max(1, int(chance.uniform(60, 7200) / step_s))]),
            size=size,
            files=chance.randint(2, 60),
            save_s=size / 300e6 + chance.uniform(0.5, 20),
            keep=chance.choice([("best", "last", "final"), ("last", "final"), ("best", "last", "final", "all")]),
            chance=random.Random(chance.random()),
        )

    def _pilot(self) -> Autopilot:
        return Autopilot(
            self.workspace,
            lambda kind, **fields: self.told.append((self.clocks.true, kind, fields)),
            works=self._works,
            stop=self._stop,
            hurry=lambda on: setattr(self, "hurried", on),
            now=self.clocks.now,
        )

    def _works(self) -> list[Work]:
        if self.unread:
            raise FtuiError("the disk does not answer")
        return [run.work(self.band) for run in self.runs]

    def _stop(self, name: str) -> None:
        run = next(run for run in self.runs if run.name == name)
        if self.chance.random() < 0.2:
            raise FtuiError("it does not listen yet")
        if run.live and run.stop_at is None:
            share = 1.0 if self.tight else self.chance.random()
            run.stop_at = self.clocks.true + share * (2 * run.step_s + 1.5 * run.save_s + 5)

    def go(self) -> None:
        """Live through the lease, and a moment more."""
        while self.clocks.true < self.end + 30:
            if self.clocks.true < self.end or not self.told or self.told[-1][1] != "lease_ended":
                self.pilot.look()
            self._check()
            plan, left = self.pilot._plan, self.end - self.clocks.true
            slack = plan.safe_s if plan and self.pilot.state.get("phase") == "watch" else left / 4
            seconds = min(900.0, max(2.0, slack / 5), max(2.0, (self.end - self.clocks.true) / 3))
            if self.pilot.state.get("phase") == "act" and any(run.live for run in self.runs):
                seconds = 2.0  # as often as the keeper looks
            if any(run.live and run.every and "all" in run.keep for run in self.runs):
                seconds = min(seconds, schedule.PLAN_S)  # each save counts: look about as often as the keeper does
            self._accident()
            self._live(seconds)

    def _check(self) -> None:
        """What was called safe must be."""
        state = self.pilot.state
        if state.get("safe") and not all(run.safe for run in self.runs):
            self.false_safe.append(f"{self.clocks.true:.0f} s: the state says safe")
        for run in self.runs:
            if run.name in (state.get("report") or {}).get("safe", []) and not run.safe:
                self.false_safe.append(f"{run.name}: the report says safe")

    def _live(self, seconds: float) -> None:
        now, end = self.clocks.true, self.clocks.true + seconds
        while now < end - 1e-6:
            piece = min(end - now, 60.0)
            for run in self.runs:
                run.train(now + piece, piece)
            self._upload(now, piece)
            now += piece
        self.clocks.true = end

    def _upload(self, now: float, seconds: float) -> None:
        """One pass after the other; each sends what was wanted when it began, and proves it."""
        if now < self.dead_until:
            return
        speed = (
            self.band.low
            if self.tight or self.chance.random() < 0.7
            else self.chance.uniform(self.band.low, self.band.high)
        )
        if now < self.slow_until:
            speed = self.band.low * self.chance.uniform(0, 0.6)
        while seconds > 0:
            self.batch = [(run, c) for run, c in self.batch if not c.proved]
            if not self.batch:
                self.batch = [(run, c) for run in self.runs for c in run.wanted() if not c.proved]
                if not self.batch:
                    return
                for _run, checkpoint in self.batch:
                    checkpoint.begun = True
                seconds -= 1.0  # a pass starts: list, reconcile
            run, checkpoint = self.batch[0]
            overhead = run.files * REQUEST_S + (run.size / HASH_RATE if speed > HASH_RATE else 0.0)
            speed_all = run.size / (run.size / max(speed, 1.0) + overhead)
            left = (run.size - checkpoint.sent) / speed_all
            if left > seconds:
                checkpoint.sent += max(0.0, seconds) * speed_all
                return
            seconds -= left
            checkpoint.sent, checkpoint.proved = run.size, True

    def _accident(self) -> None:
        chance = self.chance
        if chance.random() < 0.01:  # somebody sets the clock; nobody tells us
            self.clocks.wall_off += chance.uniform(-1, 1) * 40 * 3600
        if chance.random() < 0.02:  # the keeper is killed, and comes back
            self.pilot = self._pilot()
        self.unread = chance.random() < 0.02
        if not self.fail:
            return
        if chance.random() < 0.03:
            for _run, checkpoint in self.batch[:1]:
                checkpoint.sent = max(0.0, checkpoint.sent - schedule.AGAIN)
            self.dead_until = self.clocks.true + chance.uniform(1, 900)
        if chance.random() < 0.02:
            self.slow_until = self.clocks.true + chance.uniform(60, 4 * 3600)
