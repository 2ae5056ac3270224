"""How the run screen looks, at three sizes and in two themes; in 16 colors and in ASCII; failed, lost, on the CPU.

`pytest tests/tui/test_run_snapshots.py --snapshot-update` takes new pictures: look at them before they are committed.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import fake_run
from tests.support.app import stop_clock, until
from tests.support.run_app import RunApp
from tui import themes

SIZES = [(80, 24), (120, 40), (200, 50)]


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stop_clock(monkeypatch)
    monkeypatch.setenv("TERM", "xterm-256color")


def picture(snap_compare, app: RunApp, size: tuple[int, int], *keys: str) -> bool:
    async def before(pilot) -> None:
        await until(lambda: app.run_screen.snapshot.revision > 0, pilot)
        await until(lambda: app.run_screen.snapshot.live or app.run_screen.snapshot.post_mortem is not None, pilot)
        await pilot.press(*keys)
        await pilot.pause(0.2)

    return snap_compare(app, terminal_size=size, run_before=before)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("theme", [themes.DARK, themes.LIGHT])
def test_running(snap_compare, house: Path, theme: str, size: tuple[int, int]) -> None:
    app = RunApp(fake_run.running(house / "ft").run, theme=theme, price=24.0)
    assert picture(snap_compare, app, size)


def test_running_in_16_colors(snap_compare, house: Path) -> None:
    app = RunApp(fake_run.running(house / "ft").run, theme=themes.ANSI)
    assert picture(snap_compare, app, (80, 24))


def test_running_in_ascii(snap_compare, house: Path) -> None:
    app = RunApp(fake_run.running(house / "ft").run, ascii_only=True)
    assert picture(snap_compare, app, (80, 24))


def test_inspected(snap_compare, house: Path) -> None:
    app = RunApp(fake_run.running(house / "ft").run)
    keys = ["l", "left", *["shift+left"] * 3, "plus", "o"]
    assert picture(snap_compare, app, (120, 40), *keys)


def test_on_the_cpu(snap_compare, house: Path) -> None:
    app = RunApp(fake_run.running(house / "ft", gpus=0, name="demo-1").run)
    assert picture(snap_compare, app, (120, 40))


def test_failed(snap_compare, house: Path) -> None:
    assert picture(snap_compare, RunApp(fake_run.failed(house / "ft").run), (80, 24))


def test_lost(snap_compare, house: Path) -> None:
    assert picture(snap_compare, RunApp(fake_run.lost(house / "ft").run), (120, 40))
