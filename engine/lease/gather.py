"""What the runs of a workspace still have to do before the end, read from their folders: the input of a plan."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine import journal
from engine.backup import forecast, items, progress, worker
from engine.backup.items import Item
from engine.backup.ledger import ItemRecord, Ledger
from engine.backup.policy import Policy
from engine.backup.status import policy_of
from engine.checkpoint import ledger as checkpoints
from engine.errors import FtuiError
from engine.files import read_json
from engine.lease import disks
from engine.lease.schedule import Work, training
from engine.run.status import LIVE, read_plan, state_of
from engine.text import _
from engine.workspace import RunFolder, Workspace

GB = 1e9
SAVE_RATE = 100e6  # bytes a second to a disk that nobody measured
FIRST_STOP_S = 60.0
STEADY_S = 60.0  # of an upload, before its rate says something about a long one
WINDOW_S = 600.0
FLOOR = 0.1  # of the slowest upload so far: an outage must not stop a run days before the end


@dataclass
class _Pace:
    """What one running upload moved, over the last minutes."""

    points: list[tuple[float, int]]

    def add(self, now: float, done: int) -> None:
        if self.points and done < self.points[-1][1]:
            self.points.clear()  # another pass
        self.points.append((now, done))
        while now - self.points[0][0] > WINDOW_S:
            self.points.pop(0)

    def rate(self) -> float | None:
        (start, before), (end, after) = self.points[0], self.points[-1]
        return (after - before) / (end - start) if end - start >= STEADY_S else None


class Gatherer:
    """Reads the runs; one that has ended and is settled is read again only when it changed."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self._paces: dict[str, _Pace] = {}
        self._settled: dict[str, tuple[Any, Work]] = {}

    def works(self) -> list[Work]:
        """The work of every run that has any, or could lose something."""
        return [work for run in self.workspace.folders() if (work := self.work(run)) is not None]

    def work(self, run: RunFolder) -> Work | None:
        """What one run has to do; None: it is no run."""
        state = run.read_state()
        if not state and not run.resolved.exists():
            return None
        name = state_of(state)
        mark = None if name in LIVE else self._mark(run)
        if mark is not None and (known := self._settled.get(run.name)) is not None and known[0] == mark:
            return known[1]
        try:
            policy = policy_of(run)
        except FtuiError as error:
            return Work(run.name, None, live=name in LIVE, stop_s=stop_s(run, state, None), trouble=error.what)
        if policy is None:
            live = name in LIVE
            return Work(run.name, None, live=live, stop_s=stop_s(run, state, None) if live else 0.0)
        work = self._with_remote(run, state, policy, live=name in LIVE)
        if mark is not None and work.safe:
            self._settled[run.name] = (mark, work)
        return work

    def _mark(self, run: RunFolder) -> Any:
        return (worker.signature(run), *(_changed(path) for path in (run.path / "backup", run.journal, run.state)))

    def _with_remote(self, run: RunFolder, state: dict[str, Any], policy: Policy, *, live: bool) -> Work:
        ledger = Ledger(run.path / "backup", policy.remote)
        wanted = items.wanted(run, policy, ledger)
        other = checkpoint_bytes = files = 0
        here = disks.is_here(policy.remote)
        safe = not live and not here
        for item in wanted:
            record = ledger.item(item.name)
            if settled(run, item, record, policy):
                continue
            safe = False
            size, count = missing(item, record)
            files += count
            if item.step is not None and item.name != "final":
                checkpoint_bytes += size
            else:
                other += size
        work = Work(
            run.name,
            policy.remote,
            live=live,
            other=other,
            checkpoints=checkpoint_bytes,
            files=files,
            band=self._band(run, policy),
            full=policy.verify == "full",
            safe=safe,
            trouble=_("its remote is a folder of this server") if here else trouble(run),
        )
        return self._of_live(run, state, policy, work) if live else work

    def _of_live(self, run: RunFolder, state: dict[str, Any], policy: Policy, work: Work) -> Work:
        """What its further training will add."""
        size, count = next_checkpoint(run, policy)
        eta, maximum = state.get("eta_s"), int(state.get("max_steps") or 0)
        changing = sum(_size(run.path / name) for name in (*items.CHANGING, *items.GROWING))
        return training(
            replace(work, other=work.other + changing, started=state.get("started") or state.get("created")),
            checkpoint=size,
            checkpoint_files=count,
            stop_s=stop_s(run, state, size),
            step=int(state.get("step") or 0),
            max_steps=maximum,
            eta_s=float(eta) if isinstance(eta, int | float) else None,
            save_every=save_every(run, maximum),
            keep=policy.keep,
        )

    def _band(self, run: RunFolder, policy: Policy) -> forecast.Band:
        """The remote's rates so far; the upload that runs lowers them when it has been slower for a while."""
        band = forecast.measured(self.workspace, policy.remote)
        running = progress.read(run.path / "backup")
        if running is None or running.get("remote") != policy.remote:
            self._paces.pop(run.name, None)
        else:
            pace = self._paces.setdefault(run.name, _Pace([]))
            pace.add(time.monotonic(), int(running.get("bytes_done") or 0))
            if (rate := pace.rate()) is not None:
                if not band.measured and rate > 0:
                    band = forecast.Band(rate * 0.8, rate, rate * 1.2)
                low = max(min(band.low, rate), FLOOR * band.low)
                band = forecast.Band(low, max(low, min(band.mid, rate)), band.high, band.measured)
        if policy.limit:
            low = min(band.low, policy.limit)
            band = forecast.Band(low, min(band.mid, policy.limit), min(band.high, policy.limit), band.measured)
        return band


def missing(item: Item, record: ItemRecord) -> tuple[int, int]:
    """Of an item: bytes that are not there, and files to send or to prove (at least one: its manifest)."""
    size, count = 0, 1
    for name, source in item.files.items():
        known = record.files.get(name)
        if known is None or not known.uploaded or known.size != source.size:
            size += source.size
        if known is None or not (known.verified or known.full):
            count += 1
    return size, count


def settled(run: RunFolder, item: Item, record: ItemRecord, policy: Policy) -> bool:
    """Whether an item is proved at the remote as it is here now: a file that was written to since is not."""
    if not record.proved(policy.verify):
        return False
    for name, source in item.files.items():
        known = record.files.get(name)
        if known is None or known.size != source.size:
            return False
        try:
            if source.path.stat().st_mtime_ns != known.mtime_ns and item.sealed is None:
                return False
        except OSError:
            return False
    return item.name != items.RUN or not stale_snapshots(run)


def stale_snapshots(run: RunFolder) -> bool:
    """Whether a file that grows or changes has more than its last snapshot, which is what was sent."""
    snapshots = run.path / "backup" / "snapshots"
    for name in (*items.CHANGING, *items.GROWING):
        original, copy = run.path / name, snapshots / name
        if not original.exists():
            continue
        try:
            if name in items.GROWING and copy.stat().st_size < original.stat().st_size:
                return True
            if name in items.CHANGING and copy.read_bytes() != original.read_bytes():
                return True
        except OSError:
            return True
    return False


def next_checkpoint(run: RunFolder, policy: Policy) -> tuple[int, int]:
    """Bytes and files that a further checkpoint takes at the remote: as the newest did, else as the plan says."""
    for entry in reversed(checkpoints.list(run.checkpoints)):
        if entry.state != "complete":
            continue
        item = items.adapter_of(entry) if "adapter_only" in policy.keep else items.checkpoint(entry)
        if item is not None:
            return item.bytes, len(item.files) + 1
    disk = ((read_plan(run) or {}).get("result") or {}).get("disk")
    size = disk.get("checkpoint") if isinstance(disk, dict) else None
    return (int(size * GB), 20) if isinstance(size, int | float) else (0, 20)


def save_every(run: RunFolder, maximum: int) -> float | None:
    """Steps from one regular save to the next; 0: there are none; None: not known."""
    recipe = run.read_resolved().get("recipe")
    recipe = recipe if isinstance(recipe, dict) else {}
    strategy = recipe.get("save_strategy", "steps")
    if strategy == "no":
        return 0
    every = recipe.get("save_steps")
    if strategy != "steps" or not isinstance(every, int | float) or every <= 0:
        return None
    return max(1.0, round(every * maximum)) if every < 1 else float(every)


def stop_s(run: RunFolder, state: dict[str, Any], checkpoint: int | None) -> float:
    """How long a stop with a save may take: twice a step, then the slowest of the last saves and half of it again."""
    step = save = 0.0
    for event in tail(run.journal):
        if event.get("event") == "log" and isinstance(event.get("step_time_s"), int | float):
            step = max(step, float(event["step_time_s"]))
        elif event.get("event") == "save" and isinstance(event.get("seconds"), int | float):
            save = max(save, float(event["seconds"]))
    if not save:
        save = (checkpoint or 0) / SAVE_RATE + FIRST_STOP_S
    return 2 * step + 1.5 * save + 10.0


def tail(path: Path) -> Iterator[dict[str, Any]]:
    """The newest lines of a journal."""
    reader = journal.JournalReader(path)
    try:
        reader.offset = max(0, path.stat().st_size - journal.CHUNK)
    except OSError:
        return iter(())
    return iter(list(reader.all()))


def trouble(run: RunFolder) -> str | None:
    """Why a run's backup does not get further, in the backup's own words."""
    running = progress.read(run.path / "backup")
    if running and running.get("state"):
        return str(running.get("reason") or _("the upload stands still"))
    last = read_json(run.path / "backup" / worker.NOTE)
    return str(last["error"]) if isinstance(last, dict) and last.get("error") else None


def _changed(path: Path) -> tuple[int, int] | None:
    try:
        info = path.stat()
    except OSError:
        return None
    return info.st_mtime_ns, info.st_size


def _size(path: Path) -> int:
    known = _changed(path)
    return known[1] if known else 0
