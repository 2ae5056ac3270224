"""How home and the modals look, at three sizes and in two themes (and one in 16 colors).

`pytest tests/tui/test_app_snapshots.py --snapshot-update` takes new pictures: look at them before they are committed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from engine import settings
from engine.errors import FtuiError
from engine.workspace import Workspace
from tests.support.app import some_runs, stop_clock, until, workspace_at
from tui import themes
from tui.app import FtuiApp

SIZES = [(80, 24), (120, 40), (200, 50)]
Step = Callable[..., Awaitable[None]]


@pytest.fixture
def workspace(house: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    stop_clock(monkeypatch)
    here = house / "home" / "here"  # shown as ~/here, wherever the test runs
    here.mkdir(parents=True)
    (here / "mine.yaml").write_text("method: lora\nmodel_name_or_path: builtin:tiny\nlearning_rte: 2e-4\n")
    monkeypatch.chdir(here)
    return workspace_at(house)


def picture(snap_compare, workspace: Workspace, size: tuple[int, int], then: Step | None = None) -> bool:
    app = FtuiApp(workspace)

    async def before(pilot) -> None:
        await until(lambda: app.runs is not None, pilot)
        await pilot.pause(0.1)
        if then is not None:
            await then(app, pilot)

    return snap_compare(app, terminal_size=size, run_before=before)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("theme", [themes.DARK, themes.LIGHT])
def test_home(snap_compare, workspace: Workspace, theme: str, size: tuple[int, int]) -> None:
    settings.save(theme=theme, price=2.5)
    some_runs(workspace)
    assert picture(snap_compare, workspace, size)


def test_home_in_16_colors(snap_compare, workspace: Workspace) -> None:
    settings.save(theme=themes.ANSI)
    some_runs(workspace)

    async def failed_run(_app, pilot) -> None:
        await pilot.press("down", "down")

    assert picture(snap_compare, workspace, (80, 24), failed_run)


def test_home_in_ascii(snap_compare, workspace: Workspace) -> None:
    settings.save(ascii=True)
    some_runs(workspace)
    assert picture(snap_compare, workspace, (80, 24))


@pytest.mark.parametrize("size", [(80, 24), (40, 10)], ids=lambda size: f"{size[0]}x{size[1]}")
def test_no_runs_yet(snap_compare, workspace: Workspace, size: tuple[int, int]) -> None:
    assert picture(snap_compare, workspace, size)


@pytest.mark.parametrize("size", [(80, 24), (120, 40)], ids=lambda size: f"{size[0]}x{size[1]}")
def test_new_run(snap_compare, workspace: Workspace, size: tuple[int, int]) -> None:
    some_runs(workspace)

    async def broken_recipe(app, pilot) -> None:
        await pilot.press("n", "down")
        await until(lambda: "learning_rate" in str(app.screen.query_one("#findings").content), pilot)
        await pilot.pause(0.1)

    assert picture(snap_compare, workspace, size, broken_recipe)


def test_help(snap_compare, workspace: Workspace) -> None:
    settings.save(theme=themes.LIGHT)

    async def searched(_app, pilot) -> None:
        await pilot.press("question_mark", *"re")

    assert picture(snap_compare, workspace, (80, 24), searched)


def test_error(snap_compare, workspace: Workspace) -> None:
    some_runs(workspace)

    async def error(app, pilot) -> None:
        app.report(
            FtuiError(
                "the run folder cannot be made: No space left on device",
                where="/data/ft/runs/demo-3",
                fix="make room on that disk, or choose another place with --home DIR",
            )
        )
        await pilot.pause(0.1)

    assert picture(snap_compare, workspace, (80, 24), error)
