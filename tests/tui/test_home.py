"""Home: what the list shows, how little it draws, and what its keys do."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.run import status
from engine.workspace import Workspace
from tests.support.app import OUT_OF_MEMORY, some_runs, stop_clock, until, workspace_at
from tests.support.fake_run import FakeRun, running
from tui.app import FtuiApp
from tui.commands.status import safety
from tui.modals.confirm import Confirm
from tui.modals.detail import Detail
from tui.screens.home import HomeScreen
from tui.widgets.key_bar import KeyBar
from tui.widgets.run_facts import RunHeader
from tui.widgets.run_table import COLUMNS, EDGE, GAP, MARK, RunTable, fit


@pytest.fixture
def workspace(house: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    stop_clock(monkeypatch)
    return workspace_at(house)


def lines(app: FtuiApp) -> list[str]:
    """The list as text."""
    table = app.screen.query_one(RunTable)
    return [table.render_line(y).text.rstrip() for y in range(table.size.height)]


def said(app: FtuiApp) -> str:
    return app.screen.query_one(KeyBar).said


def run_header(app: FtuiApp) -> str:
    return "\n".join(line for header in app.screen.query(RunHeader) for line in header.lines())


def details(app: FtuiApp) -> str:
    return str(app.screen.query_one("#details").content)


async def test_newest_first_with_numbers_in_columns(workspace: Workspace) -> None:
    some_runs(workspace)
    app = FtuiApp(workspace)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(lambda: app.runs, pilot)
        await pilot.pause()
        shown = lines(app)
    assert shown[0].split() == ["run", "method", "·", "device", "state", "step", "loss", "eval", "ETA", "age"]
    names = ["llama-70b-lora", "qwen3-8b-qlora", "qwen3-8b-smoke", "demo-2", "demo-1"]
    assert [line[MARK:].split()[0] for line in shown[1:6]] == names
    assert "LoRA r16 · 8xH100" in shown[1]
    assert "1,240/4,800    1.032    1.118     3 h 21      2 h" in shown[1]
    assert "✓ done" in shown[2] and shown[2].endswith("24 h")
    assert "✗ failed" in shown[3] and "at 311: out of memory" in shown[3]
    assert "✗ lost" in shown[5] and "full · CPU" in shown[5]
    ends = {line.index("1.032") + 5 if "1.032" in line else line.index("0.871") + 5 for line in shown[1:3]}
    assert ends == {shown[0].index("loss") + 4}


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120, 200])
@pytest.mark.parametrize("cost", [False, True])
def test_columns_are_dropped_and_never_wrap(width: int, cost: bool) -> None:
    name, columns = fit(width, cost=cost)
    assert MARK + name + sum(GAP + column.width for column in columns) + EDGE <= width
    assert "state" in {column.id for column in columns}
    kept = {column.id for column in columns}
    dropped = [column for column in COLUMNS if column.id not in kept and (cost or column.id != "cost")]
    assert all(out.rank > stays.rank for out in dropped for stays in columns)


def test_80_columns_keep_what_matters() -> None:
    assert [column.id for column in fit(80, cost=True)[1]] == ["state", "step", "loss", "eval", "eta"]


async def test_only_the_changed_line_is_drawn(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = some_runs(workspace)
    app = FtuiApp(workspace)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(lambda: app.runs, pilot)
        await pilot.pause(0.1)
        drawn: list[int] = []
        real = RunTable.render_line

        def counting(self: RunTable, y: int):
            drawn.append(y)
            return real(self, y)

        monkeypatch.setattr(RunTable, "render_line", counting)
        await pilot.pause(0.5)
        assert drawn == []  # some polls in which nothing changed
        runs["llama-70b-lora"].write_state(step=1241, loss=1.03)
        await until(lambda: app.runs[0].step == 1241, pilot)
        await pilot.pause(0.1)
        assert set(drawn) == {1}


async def test_the_cursor_stays_on_its_run(workspace: Workspace) -> None:
    some_runs(workspace)
    app = FtuiApp(workspace)
    async with app.run_test() as pilot:
        await until(lambda: app.runs, pilot)
        await pilot.press("down", "j")
        table = app.screen.query_one(RunTable)
        assert table.selected.name == "qwen3-8b-smoke"
        FakeRun(workspace.root, "newer", gpus=0).write_state(created=9e9)
        await until(lambda: len(app.runs) == 6, pilot)
        assert app.runs[0].name == "newer"
        assert table.selected.name == "qwen3-8b-smoke"
        await pilot.press("end")
        assert table.selected.name == "demo-1"
        await pilot.press("pageup", "home", "up")
        assert table.selected.name == "newer"


async def test_details_say_error_and_fix(workspace: Workspace) -> None:
    some_runs(workspace)
    app = FtuiApp(workspace)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(lambda: app.runs, pilot)
        assert "saved at step 1,200 · 40 steps at risk" in details(app)
        await pilot.press("down", "down")
        assert OUT_OF_MEMORY["message"] in details(app)
        assert OUT_OF_MEMORY["fix"] in details(app)
        await pilot.press("down")
        assert "r goes on" in details(app)
        await pilot.press("y")
        assert app.clipboard.endswith("/runs/demo-2")
        assert said(app).startswith("copied: the run's path. ")
        await pilot.press("up", "y")
        assert said(app).startswith("copied: the run's error and path. ")


async def test_what_is_at_risk_is_one_sentence_wherever_it_stands(workspace: Workspace) -> None:
    fake = running(workspace.root)
    app = FtuiApp(workspace)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(lambda: app.runs, pilot)
        for saved, sentence in (
            (False, "saved at step 1,200 · 40 steps (1 min 05) at risk"),
            (True, "saved at step 1,240 · 0 steps at risk"),
        ):
            if saved:
                fake.checkpoint()
            await until(lambda said=sentence: said in details(app), pilot)
            await until(lambda said=sentence: said in str(app.screen.query_one("HeaderBar").render()), pilot)
            await pilot.press("enter")
            await until(lambda said=sentence: said in run_header(app), pilot)
            await pilot.press("escape")
            assert safety(status.status(fake.run)) == sentence
    lost = status.status(fake.run)["at_risk"]
    assert (lost["steps"], lost["seconds"]) == (0, 0.0)


async def test_many_runs_scroll_with_the_cursor(workspace: Workspace) -> None:
    for number in range(60):
        FakeRun(workspace.root, f"run-{number:02}", gpus=0, state="done").write_state(created=1000.0 + number)
    app = FtuiApp(workspace)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(lambda: app.runs, pilot)
        await pilot.press("end")
        await pilot.pause(0.1)
        shown = lines(app)
        assert "run-00" in shown[-1] and shown[-1].startswith(" ▸") and shown[0].strip().startswith("run")
        await pilot.resize_terminal(40, 10)
        await pilot.pause(0.1)
        assert app.screen.query_one(RunTable).selected.name == "run-00"
        assert any("run-00" in line for line in lines(app))
        assert all(len(line) <= 40 for line in lines(app))


async def test_a_newcomer_is_led_to_a_first_run(workspace: Workspace) -> None:
    app = FtuiApp(workspace)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(lambda: app.runs is not None, pilot)
        await pilot.pause()
        first = app.screen.query_one("#first-steps")
        assert first.display and not app.screen.query_one(RunTable).display
        assert "No runs yet" in str(first.content) and "demo" in str(first.content)
        await pilot.press("enter", "r", "x", "y")  # nothing is selected: nothing happens
        assert isinstance(app.screen, HomeScreen)
        FakeRun(workspace.root, "first", gpus=0)
        await until(lambda: any("first" in line for line in lines(app)), pilot)
        assert not first.display


async def test_what_cannot_be_resumed_or_stopped_says_so(workspace: Workspace) -> None:
    some_runs(workspace)
    app = FtuiApp(workspace)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(lambda: app.runs, pilot)
        await pilot.press("r")
        assert said(app) == "llama-70b-lora is running: nothing to resume"
        await pilot.press("down", "x")
        assert said(app) == "qwen3-8b-qlora is not running"
        assert isinstance(app.screen, HomeScreen)


async def test_a_confirmation_covers_nothing_and_goes(workspace: Workspace) -> None:
    some_runs(workspace)
    app = FtuiApp(workspace)
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await until(lambda: app.runs, pilot)
        keys = str(app.screen.query_one(KeyBar).render())
        app.notify("done", timeout=0.2)
        assert str(app.screen.query_one(KeyBar).render()).strip() == "done"
        await until(lambda: str(app.screen.query_one(KeyBar).render()) == keys, pilot)
        app.notify("again", timeout=60)
        await pilot.click("KeyBar", offset=(3, 0))
        assert str(app.screen.query_one(KeyBar).render()) == keys
        assert not app.screen.query("Toast")
        app.notify("it failed", severity="error")  # what must be read is not so quiet
        await until(lambda: [notice.message for notice in app._notifications] == ["it failed"], pilot)


@pytest.mark.parametrize("width", [40, 50, 60, 80, 100, 200])
async def test_the_keys_of_a_narrow_terminal(workspace: Workspace, width: int) -> None:
    """Long labels get shorter before a key is left out; how to stop a run and how to quit stay."""
    some_runs(workspace)
    app = FtuiApp(workspace)
    async with app.run_test(size=(width, 24)) as pilot:
        await until(lambda: app.runs, pilot)
        keys = str(app.screen.query_one(KeyBar).render())
        assert len(keys) <= width + 1
        assert " q quit" in keys and " ? help" in keys and " enter open" in keys
        assert (" x stop" in keys and " d demo" in keys) == (width >= 80)
        assert ("runs go on" in keys) == (width >= 100)
        await pilot.click("KeyBar", offset=(keys.index("help"), 0))
        await until(lambda: type(app.screen).__name__ == "Help", pilot)


async def test_stop_asks_first_and_shows_why_it_failed(workspace: Workspace) -> None:
    some_runs(workspace)  # its "supervisor" is this test: nobody listens on the control socket
    app = FtuiApp(workspace)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(lambda: app.runs, pilot)
        await pilot.press("x")
        assert isinstance(app.screen, Confirm)
        await pilot.press("n")
        assert isinstance(app.screen, HomeScreen)
        await pilot.press("x", "y")
        await until(lambda: isinstance(app.screen, Detail), pilot)
        assert "llama-70b-lora" in app.screen.error.what
        await pilot.press("escape")
        assert isinstance(app.screen, HomeScreen)


async def test_a_click_selects_and_keys_can_be_clicked(workspace: Workspace) -> None:
    some_runs(workspace)
    app = FtuiApp(workspace)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(lambda: app.runs, pilot)
        await pilot.pause(0.1)
        await pilot.click(RunTable, offset=(10, 4))
        await until(lambda: app.screen.query_one(RunTable).selected.name == "demo-2", pilot)
        bar = app.screen.query_one("KeyBar")
        await pilot.click("KeyBar", offset=(str(bar.render()).index("help"), 0))
        await until(lambda: type(app.screen).__name__ == "Help", pilot)
