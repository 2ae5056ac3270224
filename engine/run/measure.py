"""What a run really took, read from its own files at its end, for the plans to come (engine/plan/measured.py)."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from engine.journal import JournalReader
from engine.plan import measured
from engine.run.status import read_plan
from engine.workspace import RunFolder

TAIL = 16 << 20  # of each journal: peaks come again and again, and the end of a run must not wait for gigabytes
LEAST_LINES = 2  # the first line of an attempt has the warming up in it
log = logging.getLogger(__name__)


def keep(run: RunFolder) -> None:
    """Store what a run measured in its workspace; whatever goes wrong is only logged."""
    try:
        record = of(run)
        if record is not None and run.path.parent.name == "runs":
            measured.store(run.path.parent.parent, record)
    except Exception as error:  # noqa: BLE001 - the run has ended well, and stays so
        log.warning("what the run measured is not stored: %s: %s", type(error).__name__, error)


def of(run: RunFolder) -> dict[str, Any] | None:
    """The run's record; None without a plan, or when it ended before there was anything to measure."""
    plan, state = read_plan(run), run.read_state()
    lines = [line for line in _tail(run.journal) if line.get("event") == "log"]
    if plan is None or len(lines) < LEAST_LINES:
        return None
    newest = max(line.get("attempt") or 1 for line in lines)
    newest_lines = [line for line in lines if line.get("attempt") == newest]
    speeds = [line["tokens_per_s"] for line in newest_lines if _positive(line, "tokens_per_s")]
    samples = list(_tail(run.hardware))
    allocated, device = _peak(lines, "memory_allocated"), _device_peak(samples, set(state.get("gpus") or []))
    resident = _highest(sample.get("host") or {} for sample in samples) if state.get("device") == "cpu" else None
    found = {
        "memory": allocated if allocated is not None else resident,
        "reserved": _peak(lines, "memory_reserved"),
        "device": device,
        "tokens_per_s": statistics.median(speeds[1:]) if len(speeds) >= LEAST_LINES else None,
        "batch_tokens": _batch_tokens(plan.get("request") or {}, newest_lines),
    }
    if found["memory"] is None and found["tokens_per_s"] is None:
        return None
    return {
        "run": run.name,
        "request": plan.get("request"),
        "dataset": plan.get("dataset"),
        "card": plan.get("card"),
        "epochs": lines[-1].get("epoch"),
        "steps": lines[-1].get("step"),
        "measured": found,
    }


def _batch_tokens(request: dict[str, Any], lines: list[dict[str, Any]]) -> float | None:
    """Tokens of a micro-batch on one GPU, without padding, on average."""
    first, end = lines[0], lines[-1]
    try:
        each = int(request.get("gradient_accumulation_steps") or 1) * int(request.get("num_gpus") or 1)
        batches = each * int(end["step"] - first["step"])
        return round(float(end["tokens_seen"] - first["tokens_seen"]) / batches, 1)
    except (KeyError, TypeError, ZeroDivisionError):
        return None


def _tail(path: Path) -> Iterable[dict[str, Any]]:
    try:
        return JournalReader(path, max(0, path.stat().st_size - TAIL)).all()
    except OSError:
        return []


def _positive(line: dict[str, Any], key: str) -> bool:
    return isinstance(line.get(key), int | float) and line[key] > 0


def _peak(lines: list[dict[str, Any]], key: str) -> int | None:
    """The highest of all ranks and lines."""
    return max((size for line in lines for size in line.get(key) or ()), default=None)


def _device_peak(samples: list[dict[str, Any]], own: set[str]) -> int | None:
    """The most that the driver showed for the one process on a GPU of the run; None where others were on it too."""
    highest = None
    for sample in samples:
        for gpu in sample.get("gpus") or ():
            processes = gpu.get("processes") or ()
            if gpu.get("uuid") in own and len(processes) > 1:
                return None
            for process in processes if gpu.get("uuid") in own else ():
                highest = max(highest or 0, process.get("memory") or 0)
    return highest or None


def _highest(hosts: Iterable[dict[str, Any]]) -> int | None:
    return max((host.get("memory_ranks") or 0 for host in hosts), default=0) or None
