"""The run screen's keys: the chart, the log, what acts on the run, the fixes of a post-mortem."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.errors import FtuiError
from tests.support import fake_run
from tests.support.app import stop_clock, until
from tests.support.run_app import RunApp, ready, text
from tui.modals.confirm import Confirm
from tui.screens.checkpoints import CheckpointsScreen
from tui.screens.home import HomeScreen
from tui.sources.run_source import RunSource
from tui.widgets.gpu_bars import GpuBars
from tui.widgets.key_bar import KeyBar
from tui.widgets.loss_chart import LossChart
from tui.widgets.run_events import RunEvents
from tui.widgets.run_facts import RunHeader, RunNotice
from tui.widgets.run_log import RunLog


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stop_clock(monkeypatch)
    monkeypatch.setenv("TERM", "xterm-256color")


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


# The post-mortem


async def test_a_failed_run_shows_its_cause_and_a_key_applies_a_fix(
    house: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = fake_run.failed(house / "ft")
    applied: list[int] = []
    monkeypatch.setattr("engine.run.diagnose.apply", lambda _run, _found, n: applied.append(n) or fake)
    app = RunApp(fake.run)
    async with app.run_test(size=(80, 24)) as pilot:
        await ready(app, pilot)
        await until(lambda: app.run_screen.snapshot.post_mortem, pilot)
        notice = text(app, RunNotice)
        assert "why   out of memory · rank 0, step 311" in notice
        assert "logs/rank-0.log:1  torch.OutOfMemoryError: CUDA out of memory" in notice
        found = app.run_screen.snapshot.post_mortem
        assert found is not None and found.fixes[0].applicable and found.fixes[0].text[:20] in notice
        assert "1-3 fix" in str(app.run_screen.query_one(KeyBar).render())
        await pilot.press("1")
        await until(lambda: isinstance(app.screen, Confirm), pilot)
        assert found.fixes[0].command in app.screen.question
        await pilot.press("y")
        await until(lambda: applied == [1], pilot)
        await pilot.press("9")


async def test_a_healthy_run_has_no_fixes_and_its_checkpoints_open(house: Path) -> None:
    app = RunApp(fake_run.running(house / "ft").run)
    async with app.run_test(size=(120, 40)) as pilot:
        await ready(app, pilot)
        await pilot.press("1")
        await pilot.pause(0.05)
        assert "fix" not in str(app.run_screen.query_one(KeyBar).render()) and app.screen is app.run_screen
        await pilot.press("c")
        await until(lambda: isinstance(app.screen, CheckpointsScreen), pilot)
        await pilot.press("escape")
        await until(lambda: app.screen is app.run_screen, pilot)
