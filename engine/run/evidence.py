"""Where a run's end shows itself: lines of its logs with their numbers, its events, the kernel's messages."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from engine import journal
from engine.text import printable
from engine.workspace import RunFolder

TAIL = 512 * 1024  # of a log: what ended the run stands near its end
LONGEST = 300
DMESG_S = 3.0


@dataclass(frozen=True)
class Line:
    """A line that says something; `line` counts from 1, 0 for a file without numbered lines."""

    file: str
    line: int
    text: str

    def to_json(self) -> dict[str, Any]:
        """As `ftui status --json` has it."""
        return asdict(self)


@dataclass(frozen=True)
class Log:
    """The end of a log: its lines, and the number of the first of them."""

    path: Path
    first: int
    lines: list[str]

    def line(self, index: int) -> Line:
        """One of them as evidence."""
        return Line(f"logs/{self.path.name}", self.first + index, printable(self.lines[index].strip())[:LONGEST])


def read(path: Path) -> Log | None:
    """The end of a log; None where there is nothing to read."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, 2)
            skipped = max(0, size - TAIL)
            file.seek(0)
            first = 1
            while (left := skipped - file.tell()) > 0:
                first += file.read(min(left, 1 << 20)).count(b"\n")
            text = file.read().decode(errors="replace")
    except OSError:
        return None
    return Log(path, first, text.splitlines()) if text.strip() else None


def logs(run: RunFolder) -> list[Log]:
    """The logs of ranks and launcher."""
    try:
        paths = sorted(run.logs.glob("rank-*.log"), key=lambda path: (len(path.name), path.name))
    except OSError:
        paths = []
    return [log for path in [*paths, run.logs / "launcher.log"] if (log := read(path)) is not None]


def find(found: Iterable[Log], patterns: Iterable[re.Pattern[str]]) -> Line | None:
    """The newest line of any log that one of the patterns fits, the surest pattern first."""
    kept = list(found)
    for pattern in patterns:
        for log in kept:
            for index in range(len(log.lines) - 1, -1, -1):
                if pattern.search(log.lines[index]):
                    return log.line(index)
    return None


def rank_of(line: Line) -> int | None:
    """The rank whose log a line stands in."""
    match = re.search(r"rank-(\d+)\.log", line.file)
    return int(match[1]) if match else None


def gpu_events(run: RunFolder) -> list[Line]:
    """What the supervisor saw of the GPUs in the last attempt: lost ones, Xids, memory errors."""
    found: list[Line] = []
    for number, event in enumerate(journal.JournalReader(run.events).all(), 1):
        if event.get("event") == "launched":
            found.clear()
        if event.get("event") == "gpu" and event.get("what") in ("lost", "xid", "ecc"):
            more = f" {event['xid']}" if event.get("xid") is not None else ""
            found.append(Line("events.jsonl", number, f"GPU {event.get('index')}: {event.get('what')}{more}"))
    return found


def kernel(pids: Iterable[int]) -> list[Line]:
    """What the kernel says of these processes being killed, and of the GPUs; nothing where it may not be read."""
    try:
        done = subprocess.run(["dmesg"], capture_output=True, text=True, timeout=DMESG_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return kernel_lines(done.stdout, pids)


def kernel_lines(text: str, pids: Iterable[int]) -> list[Line]:
    """Of a kernel log, the lines that name one of the processes."""
    wanted = {str(pid) for pid in pids}
    pattern = re.compile(r"Killed process (\d+)|Xid \(PCI:[^)]*\): \d+, pid='?(\d+)")
    found = []
    for line in text.splitlines():
        match = pattern.search(line)
        if match and (match[1] or match[2]) in wanted:
            found.append(Line("dmesg", 0, printable(line.strip())[:LONGEST]))
    return found


def killed_pids(found: Iterable[Log]) -> list[int]:
    """The processes that the launcher saw die by SIGKILL, as torchrun writes them down."""
    text = "\n".join(line for log in found for line in log.lines)
    pids = re.findall(r"Signal 9 \(SIGKILL\) received by PID (\d+)", text)
    return [int(pid) for pid in [*pids, *re.findall(r"exitcode\s*: -9 \(pid: (\d+)\)", text)]]


def memory_at_the_end(run: RunFolder) -> Line | None:
    """The host's memory in the last sample, where it was nearly full."""
    sample = journal.last(run.hardware) or {}
    host = sample.get("host")
    host = host if isinstance(host, dict) else {}
    total, free = host.get("memory_limit") or host.get("memory_total"), host.get("memory_available")
    if not isinstance(total, int | float) or not isinstance(free, int | float) or free > 0.05 * total:
        return None
    return Line("hardware.jsonl", 0, f"host memory: {free / 1e9:.1f} GB of {total / 1e9:.1f} GB were left")
