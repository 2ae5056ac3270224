"""The app around its screens: keys, help, palette, themes, errors, leaving."""

from __future__ import annotations

import io
import os
import signal
from pathlib import Path

import pytest
from textual.widgets import Input

from engine import settings
from engine.errors import FtuiError, UsageError
from engine.workspace import Workspace
from tests.support.app import some_runs, stop_clock, until, workspace_at
from tui import app as app_module
from tui import themes
from tui.app import FtuiApp
from tui.farewell import farewell
from tui.glossary import FIGURES
from tui.keys import TABLES, TITLES, bindings, sign
from tui.modals.detail import Detail
from tui.modals.help import Help
from tui.screens.home import HomeScreen
from tui.sources.run_listing import RunListing


@pytest.fixture
def workspace(house: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    stop_clock(monkeypatch)
    return workspace_at(house)


# Keys

EATEN = {"ctrl+a", "ctrl+b", "ctrl+s", "ctrl+j", "ctrl+o", "shift+enter"}


@pytest.mark.parametrize("table", TABLES)
def test_no_key_is_eaten_by_a_terminal_or_given_twice(table: str) -> None:
    keys = [key for entry in TABLES[table] for key in entry.keys.split(",")]
    assert not EATEN & set(keys)
    assert not [key for key in keys if key.startswith("alt+")]
    assert len(keys) == len(set(keys))
    assert len({entry.id for entry in TABLES[table]}) == len(TABLES[table])


def test_keys_of_the_run_screen_say_what_they_do_and_the_figures_what_they_are() -> None:
    from tui.widgets.run_facts import RunNumbers

    labels = {key.id: key.help for key in TABLES["run"]}
    assert "logarithmic" in labels["log_y"] and "cursor" in labels["page_left"]
    explained = {name for name, _meaning in FIGURES}
    shown = {field.label for field in RunNumbers().fields()}
    assert shown - {"step"} <= explained


def test_every_key_has_an_action() -> None:
    from tui.modals.ask import Ask
    from tui.modals.card import Card
    from tui.modals.confirm import Confirm
    from tui.modals.new_run import NewRun
    from tui.modals.report import Report
    from tui.screens.checkpoints import CheckpointsScreen
    from tui.screens.data import DataScreen
    from tui.screens.planner import PlannerScreen
    from tui.screens.reading import ReadingScreen
    from tui.screens.run import RunScreen
    from tui.screens.samples import SamplesScreen
    from tui.screens.serve import ServeScreen
    from tui.widgets.plan_form import PlanChoice, PlanInput
    from tui.widgets.run_table import RunTable

    owners = {"app": FtuiApp, "list": RunTable, "home": HomeScreen, "run": RunScreen, "new_run": NewRun}
    owners |= {"confirm": Confirm, "detail": Detail, "help": Help, "scroll": Help, "ask": Ask}
    owners |= {"planner": PlannerScreen, "plan_choice": PlanChoice, "plan_number": PlanInput}
    owners |= {"checkpoints": CheckpointsScreen, "report": Report, "data": DataScreen, "reading": ReadingScreen}
    owners |= {"samples": SamplesScreen, "serve": ServeScreen, "card": Card}
    assert owners.keys() == TABLES.keys()
    for table, owner in owners.items():
        for key in TABLES[table]:
            name = key.action.split("(")[0]
            assert hasattr(owner, f"action_{name}"), f"{table}: {key.action}"


def test_bindings_carry_the_table() -> None:
    made = bindings("home")
    assert [binding.id for binding in made] == [f"home.{key.id}" for key in TABLES["home"]]
    assert sign("shift+left") == "shift+←" and sign("question_mark") == "?"


# Help and palette


async def test_help_lists_every_key_and_is_searched(workspace: Workspace) -> None:
    app = FtuiApp(workspace)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("question_mark")
        assert isinstance(app.screen, Help)
        shown = str(app.screen.query_one("#keys").content)
        assert shown.startswith("runs\n")  # the keys of this screen first
        flat = " ".join(shown.split())
        for table in TITLES:
            assert all(key.help in flat for key in TABLES[table])
        assert all(" ".join(meaning.split()) in flat for _name, meaning in FIGURES)
        await pilot.press("down", "pagedown")
        assert app.screen.query_one("VerticalScroll").scroll_offset.y > 0
        await pilot.press(*"zoom")
        shown = str(app.screen.query_one("#keys").content)
        assert "half as many steps" in shown and "resume" not in shown
        await pilot.press(*["backspace"] * 4, *"mfu")
        shown = str(app.screen.query_one("#keys").content)
        assert shown.startswith("figures\n  MFU") and "peak speed" in shown
        await pilot.press("q", "q")  # letters go into the search, not to the app
        assert "no key does that" in str(app.screen.query_one("#keys").content)
        await pilot.press("escape")
        assert isinstance(app.screen, HomeScreen)


async def test_the_palette_opens_runs_and_chooses_themes(workspace: Workspace) -> None:
    some_runs(workspace)
    app = FtuiApp(workspace)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(lambda: app.runs, pilot)
        await pilot.press("colon", *"light")
        await pilot.pause(0.5)
        await pilot.press("enter")
        await until(lambda: app.theme == themes.LIGHT, pilot)
        await until(lambda: settings.load().theme == themes.LIGHT, pilot)
        await pilot.press("ctrl+p", *"demo-2")
        await pilot.pause(0.5)
        await pilot.press("enter")
        await until(lambda: type(app.screen).__name__ == "RunScreen", pilot)


# Themes


@pytest.mark.parametrize("theme", [*[theme.name for theme in themes.THEMES], "ansi-light"])
async def test_every_theme_draws_all_that_is_ours(workspace: Workspace, theme: str) -> None:
    some_runs(workspace)
    app = FtuiApp(workspace)
    async with app.run_test(size=(120, 40)) as pilot:
        app.theme = theme
        await until(lambda: app.runs, pilot)
        await pilot.press("down", "down", "n")
        await pilot.pause(0.1)
        await pilot.press("escape", "question_mark", "escape", "x")
        app.report(FtuiError("what", where="where", fix="fix"))
        await pilot.pause(0.1)
        assert app.export_screenshot()


def test_every_color_is_one_of_256() -> None:
    """What a 256-color terminal would have to round, it would round differently in each place."""
    levels = (0, 95, 135, 175, 215, 255)
    known = {(r, g, b) for r in levels for g in levels for b in levels} | {(8 + 10 * i,) * 3 for i in range(24)}
    for theme in (theme for theme in themes.THEMES if not theme.ansi):
        values = [theme.primary, theme.accent, theme.warning, theme.error, theme.success, theme.foreground]
        values += [theme.background, theme.surface, theme.panel, *theme.variables.values()]
        for value in values:
            if value and value.startswith("#"):
                assert tuple(int(value[i : i + 2], 16) for i in (1, 3, 5)) in known, value


@pytest.mark.parametrize(
    ("setting", "term", "colorterm", "wanted"),
    [
        ("auto", "xterm-256color", "", themes.DARK),
        ("auto", "linux", "", themes.ANSI),
        ("auto", "linux", "truecolor", themes.DARK),
        (None, "xterm-16color", "", themes.ANSI),
        ("light", "linux", "", themes.LIGHT),
        ("nord", "xterm", "", "nord"),
    ],
)
def test_the_theme_by_setting_and_terminal(
    monkeypatch: pytest.MonkeyPatch, setting: str | None, term: str, colorterm: str, wanted: str
) -> None:
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("COLORTERM", colorterm)
    assert themes.choose(setting) == wanted


async def test_no_color_is_respected(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    some_runs(workspace)
    app = FtuiApp(workspace)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(lambda: app.runs, pilot)
        await pilot.pause(0.1)
        for y in range(24):
            strip = app.screen._compositor.render_strips()[y]
            for segment in strip.apply_filter(
                app._filters[-1], app.theme_variables and app.screen.background_colors[1]
            ):
                color = segment.style.color if segment.style else None
                if color is not None and color.triplet is not None:
                    assert color.triplet.red == color.triplet.green == color.triplet.blue


# Errors


async def test_an_unexpected_error_is_logged_and_told_in_one_line(workspace: Workspace) -> None:
    app = FtuiApp(workspace)
    with pytest.raises(ZeroDivisionError):  # the pilot raises what ended the app
        async with app.run_test() as pilot:
            app.call_later(lambda: 1 / 0)
            await pilot.pause(0.2)
    assert app.failure is not None and app.return_code == 1
    assert "division by zero" in app.failure.what and "\n" not in app.failure.what
    log = workspace.logs_dir / "ftui.log"
    assert app.failure.where == str(log)
    assert "Traceback" in log.read_text() and "ZeroDivisionError" in log.read_text()
    assert app._exit_renderables == []  # nothing of it reaches the screen


@pytest.mark.parametrize("error", [OSError(28, "No space left on device", "/data/x"), ZeroDivisionError("by zero")])
async def test_an_unexpected_error_of_one_action_is_shown_and_the_app_stays(
    workspace: Workspace, error: Exception
) -> None:
    def fail() -> None:
        raise error

    app = FtuiApp(workspace)
    async with app.run_test() as pilot:
        app.background(fail)
        await until(lambda: isinstance(app.screen, Detail) and app.screen.query("#text"), pilot)
        shown = str(app.screen.query_one("#text").content)
        assert str(error.args[-1]) in shown and "ftui.log" in shown
    assert app.failure is None
    assert "Traceback" in (workspace.logs_dir / "ftui.log").read_text()


async def test_an_expected_error_is_shown_with_its_fix_and_can_be_copied(workspace: Workspace) -> None:
    def fail() -> None:
        raise FtuiError("the disk is full", where="/data", fix="remove something")

    app = FtuiApp(workspace)
    async with app.run_test(size=(80, 24)) as pilot:
        app.background(fail)
        await until(lambda: isinstance(app.screen, Detail) and app.screen.query("#text"), pilot)
        shown = str(app.screen.query_one("#text").content)
        assert "the disk is full" in shown and "/data" in shown and "remove something" in shown
        await pilot.press("y")
        assert app.clipboard == "the disk is full\n/data\nremove something"
        await pilot.press("enter")
        assert isinstance(app.screen, HomeScreen)


async def test_runs_that_cannot_be_listed_for_a_moment_stay_on_show(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tui.sources.run_listing import RunListing

    some_runs(workspace)
    listing = RunListing(workspace)
    before = listing.poll()

    def fail(_path: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("tui.sources.run_listing.os.scandir", fail)
    assert [row.name for row in listing.poll()] == [row.name for row in before]


async def test_a_workspace_that_vanishes_is_an_empty_list(workspace: Workspace) -> None:
    some_runs(workspace)
    app = FtuiApp(workspace)
    async with app.run_test() as pilot:
        await until(lambda: app.runs, pilot)
        workspace.runs_dir.rename(workspace.root / "elsewhere")
        await until(lambda: app.runs == (), pilot)
        (workspace.root / "elsewhere").rename(workspace.runs_dir)
        await until(lambda: len(app.runs) == 5, pilot)


# Arriving and leaving


async def test_opens_on_a_run_with_the_list_below(workspace: Workspace) -> None:
    some_runs(workspace)
    app = FtuiApp(workspace, "demo-2")
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause(0.2)
        assert type(app.screen).__name__ == "RunScreen"
        await pilot.press("escape")
        assert isinstance(app.screen, HomeScreen)


def test_no_such_run_is_told_before_the_screen_opens(workspace: Workspace) -> None:
    with pytest.raises(UsageError, match="no run 'nothing'"):
        FtuiApp(workspace, "nothing")


async def test_quit_leaves_the_runs_alone(workspace: Workspace) -> None:
    runs = some_runs(workspace)
    before = {name: run.run.state.read_bytes() for name, run in runs.items()}
    app = FtuiApp(workspace)
    async with app.run_test() as pilot:
        await until(lambda: app.runs, pilot)
        await pilot.press("q")
    assert app.return_code in (None, 0)
    assert {name: run.run.state.read_bytes() for name, run in runs.items()} == before
    live = [row.name for row in app.runs if row.live]
    assert farewell(live) == "llama-70b-lora goes on; `ftui` shows it again."
    assert farewell(live, session_stays=True) == farewell(live)
    assert farewell([]) is None and "`ftui`" in farewell([], session_stays=True)
    assert farewell([*"abcdefg"]) == "7 runs go on (a, b, c, d, e, …); `ftui` shows them."


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
async def test_a_signal_ends_it_quietly(workspace: Workspace, monkeypatch, number: int, code: int) -> None:
    monkeypatch.setattr(app_module, "HANGUP_GRACE_S", 3600.0)
    app = FtuiApp(workspace)
    async with app.run_test() as pilot:
        os.kill(os.getpid(), number)
        await until(lambda: app._exit, pilot)
    assert app.return_code == code and app.failure is None


def test_without_a_terminal_it_names_the_other_commands(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    with pytest.raises(UsageError) as caught:
        app_module.run(workspace)
    assert "ftui watch" in (caught.value.fix or "")


async def test_modals_leave_no_focus_behind(workspace: Workspace) -> None:
    """A digit or a letter must reach the screen, not a hidden field."""
    app = FtuiApp(workspace)
    async with app.run_test() as pilot:
        await pilot.press("n")
        await pilot.pause(0.1)
        assert isinstance(app.focused, Input)
        await pilot.press("escape")
        await pilot.pause(0.1)
        assert not isinstance(app.focused, Input)
        await pilot.press("question_mark")
        assert isinstance(app.screen, Help)


# The source


def test_ended_runs_are_read_once(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    from engine.run import status

    runs = some_runs(workspace)
    (workspace.runs_dir / "not-a-run").mkdir()
    listing = RunListing(workspace)
    assert len(listing.poll()) == 5
    read: list[str] = []
    real = status.summary

    def counting(run):
        read.append(run.name)
        return real(run)

    monkeypatch.setattr(status, "summary", counting)
    listing.poll()
    assert read == ["llama-70b-lora"]  # the only one that lives
    runs["demo-2"].write_state(state="running", step=130)
    rows = {row.name: row for row in listing.poll()}
    assert rows["demo-2"].live and rows["demo-2"].step == 130


def test_broken_files_of_one_run_do_not_hide_the_others(workspace: Workspace) -> None:
    runs = some_runs(workspace)
    runs["demo-2"].run.state.write_text("{")
    runs["qwen3-8b-qlora"].run.resolved.write_bytes(b"\xff\x00")
    runs["llama-70b-lora"].run.hardware.write_text("no json\n")
    rows = {row.name: row for row in RunListing(workspace).poll()}
    assert len(rows) == 5
    assert rows["demo-2"].state == "lost"
    assert rows["llama-70b-lora"].what == "LoRA r16 · 8 GPU"
