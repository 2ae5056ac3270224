"""The run screen beside the run's plan: predicted and actual memory, speed and time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.files import write_json
from tests.support import fake_run
from tests.support.app import stop_clock, until
from tests.support.fake_run import FakeRun
from tests.support.run_app import RunApp
from tui.widgets.gpu_bars import GpuBars
from tui.widgets.run_facts import RunNumbers

SIZES = [(80, 24), (120, 40), (200, 50)]


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stop_clock(monkeypatch)
    monkeypatch.setenv("TERM", "xterm-256color")


def with_plan(fake: FakeRun, *, device: float = 40.0, rate: float | None = 9700.0, **more: Any) -> FakeRun:
    """The run's plan.json as far as the screen reads it."""
    time = {"tokens_per_s_total": rate and rate / 0.8, "hours": None if rate is None else 11.25}
    result = {"per_gpu": {"device_gb": device}, "time": time, "corrected_by": None}
    write_json(fake.run.plan, {"format": 1, "useful_share": 0.8, "result": result, **more})
    return fake


def text(app: RunApp, widget: type) -> list[str]:
    return app.run_screen.query_one(widget).lines()


async def ready(app: RunApp, pilot) -> None:
    await until(lambda: app.run_screen.snapshot.revision > 0, pilot)
    await pilot.pause(0.1)


async def test_what_was_planned_stands_under_what_is(house: Path) -> None:
    app = RunApp(with_plan(fake_run.running(house / "ft")).run, price=24.0)
    async with app.run_test(size=(120, 40)) as pilot:
        await ready(app, pilot)
        names, actual, planned = text(app, RunNumbers)
        assert planned.split()[0] == "planned"
        for label, figure in (("tok/s", "9,700"), ("total", "11 h 15"), ("cost", "$270.00")):
            end = names.index(label) + len(label)
            assert planned[:end].endswith(figure), planned
            assert actual[end - 2 : end].strip(), "an actual figure stands above it"


@pytest.mark.parametrize("device", [20.0, 60.0])
async def test_the_mark_stands_where_the_plan_expected_the_bar_to_end(house: Path, device: float) -> None:
    app = RunApp(with_plan(fake_run.running(house / "ft"), device=device).run)
    async with app.run_test(size=(120, 40)) as pilot:
        await ready(app, pilot)
        row = text(app, GpuBars)[1]
        begin, end = row.index("━"), max(row.rindex("━"), row.rindex("─"))
        assert (row.index("┃") - begin) / (end + 1 - begin) == pytest.approx(device / 80, abs=0.06)


async def test_a_run_on_the_processor_speaks_of_the_memory_of_the_host(house: Path) -> None:
    fake = fake_run.running(house / "ft", gpus=0, name="demo-1")
    app = RunApp(with_plan(fake, device=1.7, rate=None).run)
    async with app.run_test(size=(120, 40)) as pilot:
        await ready(app, pilot)
        bars = "\n".join(text(app, GpuBars))
        assert "(1.4 of 1.7 planned)" in bars and "┃" in bars
        assert len(text(app, RunNumbers)) == 2, "no speed is known before the first run: nothing to compare"


async def test_without_a_plan_or_with_a_broken_one_nothing_is_said(house: Path) -> None:
    fake = fake_run.running(house / "ft")
    fake.run.plan.write_text("{ no json")
    app = RunApp(fake.run)
    async with app.run_test(size=(120, 40)) as pilot:
        await ready(app, pilot)
        assert len(text(app, RunNumbers)) == 2 and "┃" not in "\n".join(text(app, GpuBars))
        with_plan(fake)  # a resume on other GPUs plans again
        await until(lambda: len(text(app, RunNumbers)) == 3, pilot)
        assert "┃" in "\n".join(text(app, GpuBars))


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_look(snap_compare, house: Path, size: tuple[int, int]) -> None:
    app = RunApp(with_plan(fake_run.running(house / "ft"), device=38.5).run, price=24.0)

    async def before(pilot) -> None:
        await ready(app, pilot)
        await pilot.pause(0.2)

    assert snap_compare(app, terminal_size=size, run_before=before)
