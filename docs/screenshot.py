"""Take the README's picture: the run screen of a real run, live, as SVG.

ftui run demo --name picture && python docs/screenshot.py picture docs/run-screen.svg --at 130
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from engine.run import status
from engine.workspace import locate
from tui.app import FtuiApp


async def picture(name: str, target: Path, size: tuple[int, int], at: int) -> None:
    """Open the app on the run, wait until it has reached step `at`, and write what the screen shows."""
    workspace = locate()
    run = workspace.find(name)
    app = FtuiApp(workspace, open_run=run.name)
    async with app.run_test(size=size) as pilot:
        while (row := status.summary(run))["state"] in ("starting", "running", "saving") and (row["step"] or 0) < at:
            await pilot.pause(0.1)
        await pilot.pause(1.5)
        target.write_text(app.export_screenshot(title="ftui"), encoding="utf-8")


def main() -> None:
    """Read the arguments and take the picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run")
    parser.add_argument("target", type=Path)
    parser.add_argument("--size", default="112x34", help="columns x rows")
    parser.add_argument("--at", type=int, default=0, help="the step to wait for")
    args = parser.parse_args()
    columns, rows = args.size.split("x")
    asyncio.run(picture(args.run, args.target, (int(columns), int(rows)), args.at))


if __name__ == "__main__":
    main()
