"""The run screen on run folders of real files: what it shows, its keys, sizes, and how it stays quiet."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from textual.widget import Widget

from tests.support import fake_run
from tests.support.app import stop_clock, until
from tests.support.run_app import RunApp, ready, text
from tui.screens.home import HomeScreen
from tui.sources.run_source import RunSource
from tui.widgets.gpu_bars import GpuBars
from tui.widgets.key_bar import KeyBar
from tui.widgets.loss_chart import LossChart
from tui.widgets.run_events import RunEvents
from tui.widgets.run_facts import RunHeader, RunNotice, RunNumbers

SIZES = [(80, 24), (120, 40), (200, 50)]


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stop_clock(monkeypatch)
    monkeypatch.setenv("TERM", "xterm-256color")


# What it shows


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
async def test_a_healthy_run(house: Path, size: tuple[int, int]) -> None:
    app = RunApp(fake_run.running(house / "ft").run, price=24.0)
    async with app.run_test(size=size) as pilot:
        await ready(app, pilot)
        header = text(app, RunHeader)
        assert "llama-70b-lora ● running 1,240/4,800" in header
        assert "40 steps (1 min 05) at risk" in header
        assert "train 1.477   ─ eval 1.515" in text(app, LossChart)
        numbers = text(app, RunNumbers)
        for value in ("1,240/4,800", "1.477", "1.515", "10,112", "1.62 s", "1 h 36", "$13.69"):
            assert value in numbers
        gpus = text(app, GpuBars)
        assert all(f" {index} " in gpus for index in range(8))
        assert gpus.count("37.") + gpus.count("36.9") == 8
        assert "16:32:23 checkpoint 1,200 sealed in 2.1 s · 2.9 GB" in text(app, RunEvents)
        assert not app.run_screen.query_one(RunNotice).display
        for widget in app.run_screen.query("CellWidget"):
            assert widget.region.right <= size[0]
            assert widget.region.bottom <= size[1]


async def test_it_follows_the_run(house: Path) -> None:
    fake = fake_run.running(house / "ft")
    app = RunApp(fake.run)
    async with app.run_test(size=(120, 40)) as pilot:
        await ready(app, pilot)
        fake.train([0.5])
        fake.sample(gpu3={"state": "lost"})
        fake.event("gpu", index=3, what="lost")
        await until(lambda: app.run_screen.snapshot.step == 1241, pilot)
        await until(lambda: "GPU 3 no longer answers" in text(app, RunEvents), pilot)
        assert "1,241/4,800" in text(app, RunHeader)
        assert "lost: it no longer answers" in text(app, GpuBars)
        fake.end("done")
        await until(lambda: "done" in text(app, RunHeader), pilot)
        await until(lambda: app.run_screen.query_one(RunNotice).display, pilot)


async def test_a_failed_run_says_what_and_how_to_go_on(house: Path) -> None:
    fake = fake_run.failed(house / "ft")
    app = RunApp(fake.run)
    async with app.run_test(size=(80, 24)) as pilot:
        await ready(app, pilot)
        notice = text(app, RunNotice)
        assert "GPU 0 ran out of memory" in notice
        await until(lambda: "QLoRA: the base in 4 bits" in text(app, RunNotice), pilot)
        assert ("no checkpoint was saved" in notice) == (
            "QLoRA" not in notice
        )  # the post-mortem's fixes take its place
        assert "no checkpoint was saved" not in text(app, RunNotice)
        assert "GPU, last seen" in text(app, GpuBars)
        bar = str(app.run_screen.query_one(KeyBar).render())
        assert "save" not in bar
        assert "resume" not in bar
        fake.checkpoint()
        await until(lambda: "resume from step 311" in text(app, RunNotice), pilot)
        assert "resume" in str(app.run_screen.query_one(KeyBar).render())


async def test_a_lost_run(house: Path) -> None:
    app = RunApp(fake_run.lost(house / "ft").run)
    async with app.run_test(size=(80, 24)) as pilot:
        await ready(app, pilot)
        assert "✗ lost 440/1,000" in text(app, RunHeader)
        notice = text(app, RunNotice)
        assert "its supervisor is gone" in notice
        assert "resume from step 400" in notice


async def test_a_run_that_has_not_begun(house: Path) -> None:
    fake = fake_run.FakeRun(house / "ft", "new-1", state="starting")
    fake.write_state(phase="load")
    app = RunApp(fake.run)
    async with app.run_test(size=(80, 24)) as pilot:
        await ready(app, pilot)
        assert "starting" in text(app, RunHeader)
        assert "loading the model" in text(app, LossChart)
        assert "no hardware sample yet" in text(app, GpuBars)
        await pilot.press("left", "plus", "minus", "0", "l", "y")
        assert len(app.copied) == 1


async def test_losses_that_are_not_numbers(house: Path) -> None:
    fake = fake_run.FakeRun(house / "ft", max_steps=100)
    fake.begin()
    fake.train([2.0, 1.9, math.nan, math.nan])
    app = RunApp(fake.run)
    async with app.run_test(size=(80, 24)) as pilot:
        await ready(app, pilot)
        assert "NaN" in text(app, RunNumbers)
        assert "NaN" in text(app, LossChart)
        assert "✗" in text(app, LossChart)


async def test_a_run_on_the_cpu_shows_the_server(house: Path) -> None:
    app = RunApp(fake_run.running(house / "ft", gpus=0).run)
    async with app.run_test(size=(80, 24)) as pilot:
        await ready(app, pilot)
        bars = text(app, GpuBars)
        assert "9.0 of 25 GB (1.4 ours)" in bars
        assert "34 %" in bars
        assert "GPU" not in bars


async def test_what_a_gpu_does_not_tell_is_a_dash_and_a_prediction_is_a_mark(house: Path) -> None:
    fake = fake_run.running(house / "ft", gpus=2)
    silent = {"memory_used": None, "utilization": None, "temperature": None, "power": None}
    fake.sample(gpu0=silent)
    app = RunApp(fake.run)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(lambda: app.run_screen.snapshot.gpus and app.run_screen.snapshot.gpus[0].power is None, pilot)
        bars = app.run_screen.query_one(GpuBars)
        first = next(line for line in bars.lines() if line.strip().startswith("0"))
        assert first.split()[-4:] == ["-"] * 4
        assert "┃" not in text(app, GpuBars)
        snapshot = app.run_screen.snapshot
        bars.show(snapshot.gpus, snapshot.host, 60 * fake_run.GB)
        assert text(app, GpuBars).count("┃") == 2


async def test_a_run_of_many_gpus_says_how_many_are_not_shown(house: Path) -> None:
    app = RunApp(fake_run.running(house / "ft", gpus=8).run)
    async with app.run_test(size=(60, 24)) as pilot:
        await ready(app, pilot)
        assert "more" in text(app, GpuBars)


# Staying quiet


async def test_nothing_is_drawn_when_nothing_changed(house: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    polls = 0
    poll = RunSource.poll

    def counted(source: RunSource, *args: Any) -> Any:
        nonlocal polls
        polls += 1
        return poll(source, *args)

    monkeypatch.setattr(RunSource, "poll", counted)
    app = RunApp(fake_run.running(house / "ft").run)
    async with app.run_test(size=(120, 40)) as pilot:
        await ready(app, pilot)
        await pilot.pause(0.3)
        refreshed: list[Widget] = []
        refresh = Widget.refresh

        def noted(widget: Widget, *args: Any, **options: Any) -> Any:
            refreshed.append(widget)
            return refresh(widget, *args, **options)

        monkeypatch.setattr(Widget, "refresh", noted)
        before = polls
        await until(lambda: polls > before + 5, pilot)
        assert refreshed == []


async def test_the_list_of_runs_behind_it_does_not_draw_it_again(house: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = fake_run.running(house / "ft")
    app = RunApp(fake.run)
    async with app.run_test(size=(120, 40)) as pilot:
        await ready(app, pilot)
        await until(lambda: app.runs, pilot)
        await pilot.pause(0.3)
        drawn: list[str] = []
        refresh = Widget.refresh

        def noted(widget: Widget, *regions: Any, **options: Any) -> Any:
            drawn.append(type(widget).__name__)
            return refresh(widget, *regions, **options)

        monkeypatch.setattr(Widget, "refresh", noted)
        fake.train([0.5])
        await until(lambda: app.runs and app.runs[0].step == 1241, pilot)
        await pilot.pause(0.3)
        assert set(drawn) == {"RunHeader", "LossChart", "RunNumbers"}
        await pilot.press("escape")
        await until(lambda: isinstance(app.screen, HomeScreen) and app.screen.table.selected.step == 1241, pilot)


async def test_it_does_not_read_while_another_screen_is_in_front(house: Path) -> None:
    fake = fake_run.running(house / "ft")
    app = RunApp(fake.run)
    async with app.run_test(size=(80, 24)) as pilot:
        await ready(app, pilot)
        await app.push_screen(HomeScreen())
        await pilot.pause(0.2)
        fake.train([0.5])
        await pilot.pause(0.3)
        assert app.run_screen.snapshot.step == 1240
        app.pop_screen()
        await until(lambda: app.run_screen.snapshot.step == 1241, pilot)


# Sizes


@pytest.mark.parametrize("make", [fake_run.running, fake_run.failed])
async def test_tiny_terminals(house: Path, make: Callable[[Path], fake_run.FakeRun]) -> None:
    app = RunApp(make(house / "ft").run)
    async with app.run_test(size=(20, 5)) as pilot:
        await ready(app, pilot)
        for size in ((1, 1), (3, 2), (250, 80), (10, 60), (20, 5)):
            await pilot.resize_terminal(*size)
            await pilot.press("left", "o")
        assert app.run_screen.query_one(RunHeader).region.height == 1
