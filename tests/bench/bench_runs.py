"""What `ftui runs` costs with 200 run folders, and what a supervisor costs beside its run.

    PYTHONPATH=. python tests/bench/bench_runs.py [--runs 200] [--repeat 15] [--seconds 20]

Prints one JSON line a figure. The commands are compared with `python -c "import argparse, json"` of the same
interpreter, started in turn; medians.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from engine.files import write_json
from engine.process import ProcessId
from engine.run import control
from engine.run.statefile import fresh
from engine.workspace import Workspace
from tests.support.runs import StandIn, at_step, ended, supervisor_of

Command = list[str]


def cost(command: Command, env: dict[str, str]) -> tuple[float, float]:
    """CPU and wall seconds of one command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.perf_counter()
    subprocess.run(command, env=env, stdout=subprocess.DEVNULL, check=True)
    wall = time.perf_counter() - begin
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall


def compare(commands: dict[str, Command], env: dict[str, str], repeat: int) -> dict[str, tuple[float, float]]:
    """Median CPU and wall seconds of each command; they take turns, so that all meet the same machine."""
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    for number in range(repeat + 1):
        for name, command in commands.items():
            figures = cost(command, env)
            if number:  # the first round warms the page cache
                taken[name].append(figures)
    return {
        name: (statistics.median(cpu for cpu, _ in all_), statistics.median(wall for _, wall in all_))
        for name, all_ in taken.items()
    }


def make_runs(home: Path, count: int) -> None:
    """Run folders as they are after some weeks: most ended, some lost, one alive."""
    workspace = Workspace(home).prepare()
    for number in range(count):
        folder = workspace.runs_dir / f"run-{number}"
        folder.mkdir()
        state = {"state": ("done", "failed", "stopped", "running")[number % 4], "step": 100, "max_steps": 200}
        supervisor = ProcessId.current() if number == 3 else ProcessId(number + 2, 1, "")
        write_json(
            folder / "state.json",
            fresh(folder.name, **state, loss=1.0, created=1e9 + number, supervisor=supervisor.to_json()),
            durable=False,
        )
        (folder / "resolved.json").write_text("{}")


def bench_listing(count: int, repeat: int) -> None:
    """`ftui runs` against the bare interpreter."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "ft"
        make_runs(home, count)
        env = {**os.environ, "FTUI_HOME": str(home), "HOME": folder, "XDG_CONFIG_HOME": folder}
        script = str(Path(sys.executable).with_name("ftui"))
        commands = {
            "bare": [sys.executable, "-c", "import argparse, json"],
            "runs": [script, "runs"],
            "runs --json": [script, "runs", "--json"],
        }
        found = compare(commands, env, repeat)
    bare_cpu, bare_wall = found["bare"]
    for name in ("runs", "runs --json"):
        cpu, wall = found[name]
        figures = {"cpu_s": cpu, "wall_s": wall, "bare_cpu_s": bare_cpu, "bare_wall_s": bare_wall}
        line = {"bench": f"ftui {name}", "runs": count, **{key: round(value, 4) for key, value in figures.items()}}
        print(json.dumps({**line, "cpu_ratio": round(cpu / bare_cpu, 2), "wall_limit_s": 0.4}), flush=True)


def bench_supervisor(seconds: float) -> None:
    """A supervisor's CPU share and memory while its (stand-in) ranks take 50 steps a second."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", folder)
        stand_in = StandIn(Path(folder) / "ft", patch)
        run = stand_in.start("bench", steps=10**6, step_time=0.02)
        at_step(run, 20)
        process = supervisor_of(run)
        begin, used = time.monotonic(), cpu_of(process.pid)
        time.sleep(seconds)
        share = (cpu_of(process.pid) - used) / (time.monotonic() - begin)
        status = Path(f"/proc/{process.pid}/status").read_text()
        rss = int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) * 1024
        control.send(run, "stop_now")
        ended(run)
    print(json.dumps({"bench": "supervisor", "cpu_share": round(share, 4), "rss_bytes": rss, "seconds": seconds}))


def cpu_of(pid: int) -> float:
    """CPU seconds of a process so far."""
    content = Path(f"/proc/{pid}/stat").read_text()
    fields = content[content.rfind(")") + 2 :].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--repeat", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=20)
    arguments = parser.parse_args()
    bench_listing(arguments.runs, arguments.repeat)
    bench_supervisor(arguments.seconds)
