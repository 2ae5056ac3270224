"""What the run screen costs: CPU and bytes per update through a real tmux, and opening a long journal.

    python tests/bench/bench_run_screen.py [--seconds 20] [--points 100000] [--lines 1000000]

Prints one JSON line a figure. The same run, at the same rate, is also shown by a plain screen (textual-plotext where
it can be imported, and a Static with the same text), so the figures are ratios of one machine at one time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import pty
import select
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from fcntl import ioctl
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from engine.workspace import RunFolder  # noqa: E402
from tests.support import fake_run  # noqa: E402
from tests.support.run_app import RunApp  # noqa: E402
from tui.screens.run import RunScreen  # noqa: E402
from tui.widgets.loss_chart import LossChart  # noqa: E402

SIZE = (200, 50)
HZ = 2.0
TICKS = os.sysconf("SC_CLK_TCK")


def report(name: str, **figures: object) -> None:
    print(json.dumps({"bench": name, **figures}), flush=True)


# The screens, each in a process of its own inside tmux


def child(kind: str, run: Path) -> None:
    folder = RunFolder(run)
    if kind == "ours":
        RunApp(folder, refresh_hz=HZ).run()
        return
    plain_app(kind, folder).run()


def plain_app(kind: str, folder: RunFolder):
    from textual.app import App
    from textual.widgets import Static

    from tui.sources.run_source import RunSource

    class Plain(App):
        """Everything is drawn again at each tick, as a first version would."""

        def compose(self):
            if kind == "plotext":
                from textual_plotext import PlotextPlot

                yield PlotextPlot()
            else:
                yield Static(id="chart")
            yield Static(id="numbers")

        def on_mount(self):
            self.source = RunSource(folder)
            while True:
                self.source.poll()
                if not self.source.more:
                    break
            self.set_interval(1 / HZ, self.tick)

        def tick(self):
            snapshot = self.source.poll()
            self.query_one("#numbers", Static).update(str(snapshot.numbers) + "\n" + str(snapshot.gpus))
            if kind == "plotext":
                from textual_plotext import PlotextPlot

                plot = self.query_one(PlotextPlot)
                plot.plt.clear_data()
                plot.plt.plot(snapshot.train.steps.tolist(), snapshot.train.values.tolist())
                plot.plt.plot(snapshot.train.steps.tolist(), snapshot.train.ema.tolist())
                plot.refresh()
            else:
                self.query_one("#chart", Static).update(self.draw(snapshot))

        def draw(self, snapshot):
            from tui.state.decimate import columns
            from tui.widgets.plot import fill, pack, rows

            width, height = self.size.width, max(2, self.size.height - 6)
            end = float(snapshot.train.steps[-1])
            part = columns(snapshot.train, 0, end, width * 2)
            low, high = part.extent() or (0.0, 1.0)
            dots = fill(rows(part.high, low, high, height * 4), rows(part.low, low, high, height * 4), height * 4)
            codes, _where = pack(dots, "braille")
            return "\n".join(row.tobytes().decode("utf-32-le") for row in codes)

    return Plain()


# Measuring them


class Client:
    """A tmux client on a pseudo-terminal; counts what tmux sends to it."""

    def __init__(self, socket: str) -> None:
        self.count = 0
        pid, self.fd = pty.fork()
        if pid == 0:
            os.environ["TERM"] = "xterm-256color"
            os.execvp("tmux", ["tmux", "-L", socket, "attach"])
        self.pid = pid
        ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", SIZE[1], SIZE[0], 0, 0))
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while True:
            try:
                select.select([self.fd], [], [])
                data = os.read(self.fd, 65536)
            except OSError:
                return
            if not data:
                return
            self.count += len(data)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def measure(kind: str, points: int, seconds: float) -> dict[str, float]:
    socket = f"runscreen-bench-{os.getpid()}"
    with tempfile.TemporaryDirectory() as folder:
        fake = fake_run.FakeRun(Path(folder), "bench", max_steps=points * 2)
        fake.begin()
        fake.train(fake_run.losses(points), eval_every=points // 40)
        fake.sample()
        python = [sys.executable, __file__, "--child", kind, str(fake.run.path)]
        tmux = ["tmux", "-L", socket, "-f", "/dev/null"]
        environment = {**os.environ, "COLORTERM": "truecolor", "PYTHONPATH": os.pathsep.join(sys.path)}
        start = [*tmux, "new-session", "-d", "-x", str(SIZE[0]), "-y", str(SIZE[1]), *python]
        subprocess.run(start, check=True, env=environment)
        try:
            subprocess.run([*tmux, "set", "-g", "status", "off"], check=True)
            subprocess.run([*tmux, "set", "-sa", "terminal-features", ",xterm-256color:RGB"], check=True)
            client = Client(socket)
            pane = subprocess.run(
                [*tmux, "list-panes", "-F", "#{pane_pid}"], check=True, capture_output=True, text=True
            )
            pid = int(pane.stdout)
            time.sleep(6)  # tmux itself still sends a few bytes until then
            idle = client.count
            idle_cpu = cpu_seconds(pid)
            time.sleep(5)
            idle, idle_cpu = client.count - idle, cpu_seconds(pid) - idle_cpu
            before, cpu = client.count, cpu_seconds(pid)
            updates = int(seconds * HZ)
            noise = fake_run.losses(updates, floor=1.0, drop=0.0)
            for index in range(updates):
                fake.train(noise[index : index + 1])
                if index % 2:
                    fake.sample(used=(36 + index % 7 / 5) * fake_run.GB)
                time.sleep(1 / HZ)
            sent, used = client.count - before, cpu_seconds(pid) - cpu
        finally:
            subprocess.run([*tmux, "kill-server"], check=False, capture_output=True)
            time.sleep(0.3)
        return {
            "cpu_ms_per_update": round(used / updates * 1000, 2),
            "kib_per_s": round(sent / seconds / 1024, 2),
            "idle_bytes": idle,
            "idle_cpu_percent": round(idle_cpu / 5 * 100, 2),
        }


def opening(lines: int) -> None:
    """From the key press to the first curve, and to the whole journal read; against json.loads of every line."""
    with tempfile.TemporaryDirectory() as folder:
        fake = fake_run.FakeRun(Path(folder), "long", max_steps=lines)
        fake_run.write_journal(fake.run.journal, lines)
        fake.sample()
        usable, complete = asyncio.run(_open(fake.run))
        began = time.monotonic()
        with open(fake.run.journal, encoding="utf-8") as file:
            losses = [json.loads(line)["loss"] for line in file]
        naive = time.monotonic() - began
        report(
            "open_journal",
            lines=len(losses),
            usable_s=round(usable, 3),
            complete_s=round(complete, 3),
            json_loads_s=round(naive, 3),
            ratio=round(complete / naive, 2),
        )


async def _open(run: RunFolder) -> tuple[float, float]:
    empty = fake_run.FakeRun(run.path.parents[1], "empty")
    app = RunApp(empty.run, refresh_hz=HZ)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause()
        began = time.monotonic()
        screen = RunScreen(run)
        await app.push_screen(screen)
        while not (len(screen.snapshot.train) and screen.query_one(LossChart).lines()):
            await asyncio.sleep(0.002)
        usable = time.monotonic() - began
        while screen.snapshot.loading is not None:
            await asyncio.sleep(0.01)
        return usable, time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--child", nargs=2)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--points", type=int, default=100_000)
    parser.add_argument("--lines", type=int, default=1_000_000)
    options = parser.parse_args()
    if options.child:
        child(options.child[0], Path(options.child[1]))
        return
    kinds = ["ours", "static"]
    try:
        import textual_plotext  # noqa: F401

        kinds.append("plotext")
    except ImportError:
        pass
    results = {}
    for kind in kinds:
        results[kind] = measure(kind, options.points, options.seconds)
        report(f"screen_{kind}", points=options.points, hz=HZ, **results[kind])
    for kind in kinds[1:]:
        report(
            f"ratio_to_{kind}",
            cpu=round(results["ours"]["cpu_ms_per_update"] / results[kind]["cpu_ms_per_update"], 2),
            bytes=round(results["ours"]["kib_per_s"] / results[kind]["kib_per_s"], 2),
        )
    opening(options.lines)


if __name__ == "__main__":
    main()
