"""The countdown in the headers of the screens, at three sizes."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from engine.files import write_json
from engine.lease import clock, record, when
from engine.process import ProcessId
from engine.workspace import Workspace
from tests.support import fake_run
from tests.support.app import stop_clock, until
from tests.support.run_app import RunApp
from tui.sources.lease_source import LeaseSource
from tui.widgets.header_bar import HeaderBar
from tui.widgets.run_facts import RunHeader

PLAN = {"remaining_s": 0.0, "need_s": 3600.0, "likely_s": 1800.0, "measured": True}


@pytest.fixture(autouse=True)
def _keeper(monkeypatch: pytest.MonkeyPatch) -> None:
    """A keeper that lives. (Not this process by name: the keepers of tests are ended.)"""
    monkeypatch.setattr("tui.sources.lease_source.running_keeper", lambda _workspace: ProcessId.current())


def watched(workspace: Workspace, **state: object) -> None:
    """What an autopilot wrote."""
    document = {"phase": "watch", "time": time.time(), "plan": PLAN, "runs": [{"run": "a"}], **state}
    write_json(workspace.keeper_dir / "autopilot.json", document)


def test_what_it_says(house: Path) -> None:
    workspace = Workspace(house / "ft").prepare()
    source = LeaseSource(workspace)
    assert source.poll().texts == () and source.poll() is source.line
    now = clock.now()
    record.save(workspace, when.When(now.wall + 20 * 3600 + 30, "in 20h", relative=True), now)
    assert "no keeper" in source.poll().texts[0] and source.line.tone == "warning"
    watched(workspace)
    assert source.poll().texts[0].startswith("lease 20 h 00 · safe until") and source.line.tone == "muted"
    assert source.poll() is source.line, "nothing to draw"
    watched(workspace, plan=PLAN | {"need_s": 19.5 * 3600})
    assert source.poll().tone == "warning"
    watched(workspace, plan=PLAN | {"need_s": 21 * 3600.0})
    assert source.poll().tone == "error" and "too late" in source.line.texts[0]
    watched(workspace, phase="act", safe=False)
    assert source.poll().tone == "error" and "not safe yet" in source.line.texts[0]
    watched(workspace, phase="act", safe=True)
    assert source.poll().tone == "muted" and "all safe" in source.line.texts[0]
    watched(workspace, time=time.time() - 3600)
    assert "no keeper" in source.poll().texts[0], "old figures are none"
    record.path(workspace).write_text("{")
    assert source.poll().tone == "error"


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 50)], ids=lambda size: f"{size[0]}x{size[1]}")
async def test_it_is_on_every_screen(house: Path, monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]) -> None:
    stop_clock(monkeypatch)
    fake = fake_run.FakeRun(house / "home" / "ft")
    fake.begin()
    fake.train(fake_run.losses(4800)[:1240])
    fake.write_state(state="running")
    now = clock.now()
    record.save(fake.workspace, when.When(now.wall + 6 * 86400 + 60, "in 6d", relative=True), now)
    watched(fake.workspace)
    app = RunApp(fake.run)
    async with app.run_test(size=size) as pilot:
        await until(lambda: app.screen_stack and any(app.run_screen.query(RunHeader)), pilot)
        header = app.run_screen.query_one(RunHeader)
        await until(lambda: "lease 6 d 00 h" in header.lines()[0] and "running" in header.lines()[0], pilot)
        assert ("safe until" in header.lines()[0]) == (size[0] >= 200)
        await pilot.press("escape")
        await until(lambda: any(app.screen.query(HeaderBar)), pilot)
        bar = app.screen.query_one(HeaderBar)
        await until(lambda: "lease 6 d 00 h" in str(bar.render()), pilot)
