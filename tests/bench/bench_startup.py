"""Start-up beside the least that could be: `ftui --help` and Python with two modules, the app and an empty Textual app.

    python tests/bench/bench_startup.py [ROUNDS]

CPU time (user + system) of whole processes, interleaved, medians; one JSON line per figure.
"""

from __future__ import annotations

import json
import os
import pty
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

# Both apps end as soon as their first frame is on the terminal.
MINIMAL = """
from textual.app import App
from textual.widgets import Static
class Minimal(App):
    def compose(self):
        yield Static("hello")
    def on_ready(self):
        self.call_after_refresh(self.exit)
Minimal().run()
"""
OURS = """
from pathlib import Path
from engine.workspace import Workspace
from tui.app import FtuiApp
class Ours(FtuiApp):
    def on_ready(self):
        self.call_after_refresh(self.exit)
import os
Ours(Workspace(Path(os.environ["FTUI_HOME"])).prepare()).run()
"""


def cpu(arguments: list[str], env: dict[str, str], *, terminal: bool = False) -> float:
    """CPU seconds of a child process and its own children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    if terminal:
        leader, follower = pty.openpty()
        process = subprocess.Popen(arguments, env=env, stdin=follower, stdout=follower, stderr=follower)
        os.close(follower)
        while True:
            try:
                if not os.read(leader, 65536):
                    break
            except OSError:  # the child closed its end
                break
        code = process.wait()
        os.close(leader)
    else:
        code = subprocess.run(arguments, env=env, capture_output=True).returncode
    if code != 0:
        raise SystemExit(f"{arguments[:4]} ended with {code}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    python = [sys.executable, "-P"]
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        env = {**os.environ, "FTUI_HOME": str(home / "ft"), "XDG_CONFIG_HOME": str(home / "config"), "HOME": folder}
        env |= {"TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"}
        cases = {
            "argparse+json": ([*python, "-c", "import argparse, json"], False),
            "ftui --help": ([*python, "-m", "tui", "--help"], False),
            "minimal textual app": ([*python, "-c", MINIMAL], True),
            "first paint": ([*python, "-c", OURS], True),
        }
        times: dict[str, list[float]] = {name: [] for name in cases}
        for number in range(rounds + 1):
            for name, (arguments, terminal) in cases.items():
                spent = cpu(arguments, env, terminal=terminal)
                if number:  # the first round fills caches
                    times[name].append(spent)
    median = {name: statistics.median(values) for name, values in times.items()}
    for ours, theirs, plus in (("ftui --help", "argparse+json", 0.060), ("first paint", "minimal textual app", 0.150)):
        target = 1.5 * median[theirs] + plus
        figure = {
            "bench": "startup",
            "what": ours,
            "cpu_s": round(median[ours], 4),
            "beside": theirs,
            "beside_cpu_s": round(median[theirs], 4),
            "target_s": round(target, 4),
            "ok": median[ours] <= target,
            "rounds": rounds,
        }
        print(json.dumps(figure))


if __name__ == "__main__":
    main()
