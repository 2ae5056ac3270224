"""The run screen on run folders of real files: what it shows, its keys, sizes, and how it stays quiet."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from textual.widget import Widget

from engine.errors import FtuiError
from tests.support import fake_run
from tests.support.app import stop_clock, until
from tests.support.run_app import RunApp
from tui.modals.confirm import Confirm
from tui.screens.home import HomeScreen
from tui.sources.run_source import RunSource
from tui.widgets.gpu_bars import GpuBars
from tui.widgets.key_bar import KeyBar
from tui.widgets.loss_chart import LossChart
from tui.widgets.run_events import RunEvents
from tui.widgets.run_facts import RunHeader, RunNotice, RunNumbers
from tui.widgets.run_log import RunLog

SIZES = [(80, 24), (120, 40), (200, 50)]


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stop_clock(monkeypatch)
    monkeypatch.setenv("TERM", "xterm-256color")


def shown(app: RunApp) -> bool:
    """Whether the run was read and drawn."""
    return bool(app.screen_stack) and any(app.run_screen.query(RunHeader)) and app.run_screen.snapshot.revision > 0


def text(app: RunApp, kind: type[Any]) -> str:
    return "\n".join(app.run_screen.query_one(kind).lines())


async def ready(app: RunApp, pilot: Any) -> None:
    await until(lambda: shown(app), pilot)
    await pilot.pause(0.05)


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
        assert "halve per_device_train_batch_size" in notice
        assert "no checkpoint was saved" in notice
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


# Keys


async def test_the_charts_keys(house: Path) -> None:
    app = RunApp(fake_run.running(house / "ft").run)
    async with app.run_test(size=(120, 40)) as pilot:
        await ready(app, pilot)
        chart = app.run_screen.query_one(LossChart)
        await pilot.press("l")
        assert chart.log_y
        await pilot.press("left", "shift+left")
        assert chart.cursor is not None
        assert chart.cursor < 1240
        whole = chart.window
        await pilot.press("plus")
        assert chart.window.width == whole.width / 2
        await pilot.press("minus")
        assert chart.window == whole
        await pilot.press("equals_sign", "0")
        assert chart.window == whole
        assert chart.cursor is None


async def test_the_log_pane_goes_through_the_logs_and_closes(house: Path) -> None:
    fake = fake_run.running(house / "ft")
    fake.log("launcher says\n", rank=None)
    app = RunApp(fake.run)
    async with app.run_test(size=(120, 40)) as pilot:
        await ready(app, pilot)
        log = app.run_screen.query_one(RunLog)
        assert not log.display
        await pilot.press("o")
        await until(lambda: "training starts" in log.lines, pilot)
        assert log.display
        assert log.border_title == "rank-0.log"
        fake.log("\x1b[31mstep 7\x1b[0m\n")
        await until(lambda: "step 7" in log.lines, pilot)
        await pilot.press("o")
        await until(lambda: log.border_title == "launcher.log", pilot)
        await until(lambda: list(log.lines) == ["launcher says"], pilot)
        await pilot.press("o")
        await pilot.pause(0.05)
        assert not log.display


async def test_escape_takes_the_cursor_away_before_it_leaves(house: Path) -> None:
    app = RunApp(fake_run.running(house / "ft").run)
    async with app.run_test(size=(120, 40)) as pilot:
        await ready(app, pilot)
        await pilot.press("left", "escape")
        assert app.run_screen.query_one(LossChart).cursor is None
        await pilot.press("escape")
        await until(lambda: isinstance(app.screen, HomeScreen), pilot)


async def test_the_logs_long_lines_are_marked_and_its_keys_scroll(house: Path) -> None:
    fake = fake_run.running(house / "ft")
    fake.log("\n".join(f"line {number}" for number in range(100)) + "\n" + "x" * 100 + "the end of it\n")
    app = RunApp(fake.run)
    async with app.run_test(size=(80, 24)) as pilot:
        await ready(app, pilot)
        await pilot.press("o")
        log = app.run_screen.query_one(RunLog)

        def rows() -> list[str]:
            return [log.render_line(y).text.rstrip() for y in range(log.size.height)]

        await until(lambda: rows()[-1].endswith("x…"), pilot)
        await until(lambda: log.virtual_size.width > 100, pilot)
        await pilot.press("greater_than_sign", "greater_than_sign")
        assert rows()[-1].endswith("the end of it")
        await pilot.press("less_than_sign", "less_than_sign", "pageup")
        assert rows()[-1] == "line 94" and log.scroll_x == 0  # one line of the page before stays
        fake.log("one more\n")
        await until(lambda: "one more" in log.lines, pilot)
        assert rows()[-1] == "line 94"  # reading is not disturbed
        await pilot.press("pagedown", "pagedown")
        assert rows()[-1] == "one more"


async def test_a_text_that_is_cut_says_so(house: Path) -> None:
    fake = fake_run.failed(house / "ft", name="a-run-with-a-long-name-for-a-narrow-terminal")
    fake.write_state(error={**fake.state["error"], "message": "word " * 200})
    app = RunApp(fake.run)
    async with app.run_test(size=(60, 40)) as pilot:
        await ready(app, pilot)
        assert text(app, RunEvents).strip().splitlines()[0].endswith("…")
        assert text(app, RunNotice).splitlines()[2].endswith("…")
        assert "…" in text(app, RunHeader)


@pytest.mark.parametrize("size", [(50, 14), (60, 12), (40, 10), (50, 16)], ids=str)
async def test_a_low_terminal_has_a_chart_or_the_room_for_it(house: Path, size: tuple[int, int]) -> None:
    app = RunApp(fake_run.running(house / "ft", gpus=1).run)
    async with app.run_test(size=size) as pilot:
        await ready(app, pilot)
        chart = app.run_screen.query_one(LossChart)
        rows = [line.strip() for line in chart.lines()]
        assert all(rows), rows
        assert "q quit" in str(app.run_screen.query_one(KeyBar).render())


async def test_without_colors_the_signs_stay(house: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    app = RunApp(fake_run.running(house / "ft").run)
    async with app.run_test(size=(80, 24)) as pilot:
        await ready(app, pilot)
        assert app.no_color
        assert "⠒" in text(app, LossChart) and "●" in text(app, RunHeader) and "━" in text(app, GpuBars)


async def test_in_ascii_the_evaluations_do_not_hide_the_line(house: Path) -> None:
    app = RunApp(fake_run.running(house / "ft").run, ascii_only=True)
    async with app.run_test(size=(80, 24)) as pilot:
        await ready(app, pilot)
        plot = "\n".join(app.run_screen.query_one(LossChart).lines()[1:])
        assert 4 <= plot.count("o") <= 6  # six evaluations, some in the place of another
        assert plot.count("*") > 50
        assert plot.isascii() and text(app, RunEvents).isascii()


async def test_copy_takes_the_error_and_the_figures(house: Path) -> None:
    app = RunApp(fake_run.failed(house / "ft").run)
    async with app.run_test(size=(80, 24)) as pilot:
        await ready(app, pilot)
        await pilot.press("y")
        (copied,) = app.copied
        assert copied.startswith("qwen3-8b-smoke: failed")
        assert "GPU 0 ran out of memory" in copied
        assert "loss 1.007" in copied
        assert str(app.run_screen.folder.path) in copied


Asked = list[tuple[str, str]]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """What the screen asks of supervisors; nobody is there."""
    seen: Asked = []

    def send(run: Any, do: str, timeout: float = 10.0) -> dict[str, Any]:
        seen.append((run.name, do))
        return {"ok": True, "id": 1}

    monkeypatch.setattr("engine.run.control.send", send)
    monkeypatch.setattr("engine.run.resuming.resume", lambda run: seen.append((run.name, "resume")))
    return seen


@pytest.mark.parametrize(("key", "what"), [("s", "save"), ("e", "evaluate")])
async def test_asking_the_run(house: Path, asked: Asked, key: str, what: str) -> None:
    app = RunApp(fake_run.running(house / "ft").run)
    async with app.run_test(size=(80, 24)) as pilot:
        await ready(app, pilot)
        await pilot.press(key)
        await until(lambda: app.said, pilot)
        assert asked == [("llama-70b-lora", what)]


async def test_stopping_asks_first(house: Path, asked: Asked) -> None:
    app = RunApp(fake_run.running(house / "ft").run)
    async with app.run_test(size=(80, 24)) as pilot:
        await ready(app, pilot)
        await pilot.press("x")
        await until(lambda: isinstance(app.screen, Confirm), pilot)
        await pilot.press("n")
        await pilot.pause(0.05)
        assert asked == []
        await pilot.press("x")
        await until(lambda: isinstance(app.screen, Confirm), pilot)
        await pilot.press("y")
        await until(lambda: asked == [("llama-70b-lora", "stop")], pilot)


async def test_resume_is_for_runs_that_have_ended(house: Path, asked: Asked) -> None:
    app = RunApp(fake_run.running(house / "ft").run)
    async with app.run_test(size=(80, 24)) as pilot:
        await ready(app, pilot)
        await pilot.press("r")
        await pilot.pause(0.1)
        assert asked == []


async def test_a_lost_run_is_resumed_and_takes_no_requests(house: Path, asked: Asked) -> None:
    app = RunApp(fake_run.lost(house / "ft").run)
    async with app.run_test(size=(80, 24)) as pilot:
        await ready(app, pilot)
        await pilot.press("s", "e", "x")
        await pilot.pause(0.1)
        assert asked == []
        await pilot.press("r")
        await until(lambda: asked == [("lost-run", "resume")], pilot)


async def test_a_refusal_is_shown_with_its_fix(house: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: Any, **_options: Any) -> None:
        raise FtuiError("nobody listens", fix="wait for it")

    monkeypatch.setattr("engine.run.control.send", refuse)
    app = RunApp(fake_run.running(house / "ft").run)
    async with app.run_test(size=(80, 24)) as pilot:
        await ready(app, pilot)
        await pilot.press("s")
        await until(lambda: "nobody listens\nwait for it" in app.said, pilot)


async def test_back(house: Path) -> None:
    app = RunApp(fake_run.running(house / "ft").run)
    async with app.run_test(size=(80, 24)) as pilot:
        await ready(app, pilot)
        await pilot.press("escape")
        await until(lambda: isinstance(app.screen, HomeScreen), pilot)


async def test_a_file_that_cannot_be_read_is_named(house: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_source: RunSource, *_args: Any) -> None:
        raise PermissionError(13, "Permission denied", "/ft/journal.jsonl")

    monkeypatch.setattr(RunSource, "poll", refuse)
    app = RunApp(fake_run.running(house / "ft").run)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(lambda: app.said, pilot)
        assert "/ft/journal.jsonl" in app.said[0]
        assert "Permission denied" in app.said[0]


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
