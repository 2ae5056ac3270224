"""What the planner screen spends on a key, beside the arithmetic alone.

    PYTHONPATH=. python tests/bench/bench_planner_screen.py [KEYS]

CPU time of this process a changed value at 120x40 (echo, plan with advice, paint), and of the same plans without a
screen, in the same run; one JSON line.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

from engine.workspace import Workspace
from tui.app import FtuiApp
from tui.screens.planner import TICK_S, PlannerScreen

LENGTHS = (1024, 2048, 4096, 8192)


async def main() -> None:
    keys = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    with tempfile.TemporaryDirectory() as folder:
        app = FtuiApp(Workspace(Path(folder)).prepare())
        async with app.run_test(size=(120, 40)) as pilot:
            app.open_planner()
            while not isinstance(screen := app.screen, PlannerScreen) or screen._outcome is None:
                await pilot.pause(0.05)
            screen.query_one("#server").value = "8xH100"
            box = screen.query_one("#max_length")
            box.focus()
            await pilot.pause(0.5)
            waits = []
            begin = time.process_time()
            for value in itertools.islice(itertools.cycle(LENGTHS), keys):
                pressed = time.perf_counter()
                box.value = str(value)
                await asyncio.sleep(0)
                while not screen.settled or screen._outcome.result.request.max_length != value:
                    await asyncio.sleep(0.002)
                waits.append(time.perf_counter() - pressed)
            screen_ms = 1e3 * (time.process_time() - begin) / keys
            drafts = [screen._draft.change("max_length", value) for value in LENGTHS]
            begin = time.process_time()
            for draft in itertools.islice(itertools.cycle(drafts), keys):
                draft.plan(app.workspace)
            plan_ms = 1e3 * (time.process_time() - begin) / keys
    figure = {
        "bench": "planner_screen",
        "cpu_ms_per_key": round(screen_ms, 2),
        "beside": "the plan with its advice alone",
        "beside_cpu_ms": round(plan_ms, 2),
        "ratio": round(screen_ms / plan_ms, 2),
        "answer_after_ms": round(1e3 * statistics.median(waits), 1),
        "of_which_tick_ms": round(1e3 * TICK_S, 1),
        "keys": keys,
    }
    print(json.dumps(figure))


if __name__ == "__main__":
    asyncio.run(main())
