"""The form for a new run: choosing, live checks, starting, and what goes wrong."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console
from rich.text import Text
from textual import events
from textual.geometry import Size
from textual.widgets import Input, OptionList

from engine import recipe
from engine.errors import FtuiError
from engine.run import launch
from engine.workspace import Workspace
from tests.support.app import stop_clock, until, workspace_at
from tests.support.fake_run import FakeRun
from tui.app import FtuiApp
from tui.modals.new_run import NewRun, fit
from tui.ordered_keys import KeyDone
from tui.paths import short
from tui.screens.home import HomeScreen
from tui.sources.recipe_files import known


@pytest.fixture
def workspace(house: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    stop_clock(monkeypatch)
    here = house / "here"
    here.mkdir()
    (here / "mine.yaml").write_text(
        "method: lora\nmodel_name_or_path: builtin:tiny\ndataset_path: builtin:support\nlearning_rte: 2e-4\n"
    )
    monkeypatch.chdir(here)
    return workspace_at(house)


def field(app: FtuiApp, name: str) -> Input:
    return app.screen.query_one(f"#{name}", Input)


def findings(app: FtuiApp) -> str:
    return str(app.screen.query_one("#findings").content)


async def test_the_recipes_are_listed_and_chosen_with_the_arrows(workspace: Workspace) -> None:
    app = FtuiApp(workspace)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("n")
        await until(lambda: isinstance(app.screen, NewRun) and app.focused is not None, pilot)
        first, *others = recipe.names()
        known = [first, "./mine.yaml", *others]
        options = app.screen.query_one("#recipes", OptionList)
        assert [str(option.prompt) for option in options.options] == known
        assert field(app, "recipe").value == known[0] and options.highlighted == 0
        await pilot.press("down")
        assert field(app, "recipe").value == "./mine.yaml"
        await pilot.press("up")
        assert field(app, "recipe").value == known[0]
        await pilot.press("tab")
        assert app.focused is field(app, "model")
        await pilot.press("down", "down")
        assert app.focused is field(app, "name")
        await pilot.press("escape")
        assert isinstance(app.screen, HomeScreen)


async def test_a_demo_in_two_keys_is_possible(workspace: Workspace) -> None:
    """The first recipe has nothing to complain about, and says which model and data it takes."""
    app = FtuiApp(workspace)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("n")
        await until(lambda: "nothing wrong" in findings(app), pilot)
        assert field(app, "recipe").value == "demo"
        assert field(app, "model").placeholder == "builtin:tiny, as the recipe says"
        assert field(app, "dataset").placeholder == "builtin:support, as the recipe says"
        assert str(app.screen.query_one("#folder").content) == f"./ is {short(Path.cwd(), 50)}"


async def test_findings_appear_while_typing(workspace: Workspace) -> None:
    app = FtuiApp(workspace)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("n", "down")
        await until(lambda: "learning_rate" in findings(app), pilot)  # the nearest known key
        assert "line 4" in findings(app)
        field(app, "recipe").value = "nothing-there"
        await until(lambda: "no recipe nothing-there" in findings(app), pilot)
        field(app, "recipe").value = ""
        await until(lambda: "no recipe yet" in findings(app), pilot)
        field(app, "recipe").value = "demo"
        field(app, "dataset").value = "/nowhere/train.jsonl"
        await until(lambda: "/nowhere/train.jsonl" in findings(app), pilot)
        field(app, "options").value = "dtype='never closed"
        await until(lambda: "quote is not closed" in findings(app), pilot)
        await pilot.press("f5")
        assert isinstance(app.screen, NewRun)


async def test_checks_follow_the_newest_text_only(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    real = recipe.load

    def counting(path, overrides=()):
        seen.append(list(overrides))
        return real(path, overrides)

    monkeypatch.setattr(recipe, "load", counting)
    app = FtuiApp(workspace)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("n")
        await until(lambda: "nothing wrong" in findings(app), pilot)
        seen.clear()
        await pilot.press("tab", "tab", "tab", "tab", *"seed=12345")
        await until(lambda: ["seed=12345"] in seen, pilot)
        assert len(seen) < len("seed=12345")  # typing coalesces


async def test_start_opens_the_run(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, ...]] = []
    go = threading.Event()

    def start(space, source, overrides=(), *, name=None, force=False):
        go.wait(10)
        asked.append((space, source, list(overrides), name))
        return SimpleNamespace(run=FakeRun(space.root, name, gpus=0).run, pid=1, findings=[])

    monkeypatch.setattr(launch, "start", start)
    app = FtuiApp(workspace)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("n", "tab", *"/m", "tab", "tab", *"mine", "tab")
        field(app, "options").value = "max_steps=5 x='a b'"
        await pilot.press("enter", "enter", "escape")  # once is enough; and it can no longer be taken back
        assert "starting" in findings(app)
        go.set()
        await until(lambda: type(app.screen).__name__ == "RunScreen", pilot)
    overrides = ["model_name_or_path=/m", "max_steps=5", "x=a b"]
    assert asked == [(workspace, "demo", overrides, "mine")]


async def test_a_refused_start_shows_why_and_the_form_stays(workspace: Workspace) -> None:
    app = FtuiApp(workspace)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("n", "tab", "tab")
        field(app, "dataset").value = "/nowhere/train.jsonl"
        await pilot.press("enter")
        await until(lambda: "/nowhere/train.jsonl" in findings(app), pilot)
        await pilot.pause(0.2)
        assert isinstance(app.screen, NewRun) and not app.screen._starting
        assert list(workspace.runs_dir.iterdir()) == []
        await pilot.press("escape")
        assert isinstance(app.screen, HomeScreen)


async def test_enter_on_a_recipe_with_errors_says_so_and_keeps_what_the_recipe_says(workspace: Workspace) -> None:
    app = FtuiApp(workspace)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("n", "down")
        await until(lambda: "learning_rate" in findings(app), pilot)
        assert "not started" not in findings(app)
        await pilot.press("enter")
        await until(lambda: "not started" in findings(app), pilot)
        await pilot.pause(0.4)
        assert "not started" in findings(app) and "line 4" in findings(app)
        assert field(app, "model").placeholder == "builtin:tiny, as the recipe says"
        await pilot.press("tab", "x")
        await until(lambda: "not started" not in findings(app), pilot)


def test_findings_that_do_not_fit_are_counted_and_a_cut_one_is_marked() -> None:
    console = Console()

    def shown(sentences: list[str], width: int, height: int) -> list[str]:
        return str(fit([Text(one) for one in sentences], console, Size(width, height), "")).split("\n")

    assert shown(["one", "two"], 20, 2) == ["one", "two"]
    assert shown(["one", "two", "three"], 20, 2) == ["one", "and 2 more"]
    for count in range(1, 9):
        for height in range(1, 7):
            lines = shown(["some words that are wrapped"] * count, 12, height)
            assert len(lines) <= max(height, 1 + (count > 1)) and all(len(line) <= 12 for line in lines)
            if 3 * count > height:
                assert lines[-1].endswith(("…", "more"))
            else:
                assert len(lines) == 3 * count


def test_only_what_looks_like_a_recipe_is_offered(workspace: Workspace) -> None:
    here = Path.cwd()
    (here / ".hidden.yaml").write_text("method: lora\n")
    (here / "compose.yaml").write_text("services:\n  method: lora\n")
    (here / "short.yml").write_text("model_name_or_path: builtin:tiny\n")
    (here / "folder.yaml").mkdir()
    os.mkfifo(here / "pipe.yaml")
    (here / "gone.yaml").symlink_to("nowhere")
    first, *others = recipe.names()
    assert known() == [first, "./mine.yaml", "./short.yml", *others]


async def test_d_starts_the_demo(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    started = []

    def start(space, source, *_rest, **_named):
        started.append(source)
        return SimpleNamespace(run=FakeRun(space.root, "demo-1", gpus=0).run, pid=1, findings=[])

    monkeypatch.setattr(launch, "start", start)
    app = FtuiApp(workspace)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(lambda: app.runs is not None, pilot)
        await pilot.press("d", "d")
        await until(lambda: type(app.screen).__name__ == "RunScreen", pilot)
    assert started == ["demo"]


async def test_a_demo_that_cannot_start_says_why(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_given, **_named):
        raise FtuiError("the disk is full", where="/data", fix="make room")

    monkeypatch.setattr(launch, "start", start)
    app = FtuiApp(workspace)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(lambda: app.runs is not None, pilot)
        await pilot.press("d")
        await until(lambda: type(app.screen).__name__ == "Detail", pilot)
        assert app.screen.error.fix == "make room"


@pytest.mark.parametrize("pasted", ["x" * 10_000, "./" + "y" * 300, "~nobody-here/x", "[bold]x[/", "a'b", "Привет мир"])
async def test_whatever_is_pasted_the_form_stays(workspace: Workspace, pasted: str) -> None:
    app = FtuiApp(workspace)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("n")
        await until(lambda: isinstance(app.screen, NewRun), pilot)
        for name in ("name", "options", "recipe"):
            field(app, name).value = pasted
        await pilot.press("enter")
        await until(lambda: findings(app) and "starting" not in findings(app), pilot)
        assert isinstance(app.screen, NewRun)
    assert app.failure is None


async def test_an_unexpected_error_of_a_check_is_a_finding(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_given: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(recipe, "check", fail)
    app = FtuiApp(workspace)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("n")
        await until(lambda: isinstance(app.screen, NewRun) and "Input/output error" in findings(app), pilot)


def form(app: FtuiApp) -> dict[str, str]:
    """What stands in the form; nothing before it is there."""
    return {str(box.id): box.value for box in app.screen.query(Input)}


def burst(app: FtuiApp, *keys: str) -> None:
    """Press keys faster than the app can act on them: no waiting between them."""
    for key in keys:
        app.post_message(events.Key(key, key if len(key) == 1 else {"space": " ", "equals_sign": "="}.get(key)))


async def test_what_is_typed_ahead_lands_where_it_was_meant_to(workspace: Workspace) -> None:
    """Not in the list of runs (where d starts the demo), nor in the field before: the form is not even there yet."""
    app = FtuiApp(workspace)
    async with app.run_test(size=(80, 24)) as pilot:
        burst(app, "n", "tab", *"mod", "tab", *"data", "tab", *"name", "tab", *"seed", "equals_sign", "7")
        burst(app, "shift+tab", "end", "s")
        await until(lambda: form(app).get("name") == "names", pilot)
        assert form(app) == {"recipe": "demo", "model": "mod", "dataset": "data", "name": "names", "options": "seed=7"}
        burst(app, "escape", "n", "tab", "x")
        app.post_message(events.Paste("yz"))
        await until(lambda: form(app).get("model") == "xyz", pilot)
        assert len(app.screen_stack) == 2
    assert list(workspace.runs_dir.iterdir()) == []


async def test_a_widget_that_keeps_a_key_holds_up_none_for_long(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tui.ordered_keys.LOST_S", 0.2)
    app = FtuiApp(workspace)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("n")
        await until(lambda: isinstance(app.screen, NewRun) and app.focused is not None, pilot)
        post = app.focused.post_message
        monkeypatch.setattr(app.focused, "post_message", lambda told: isinstance(told, KeyDone) or post(told))
        burst(app, "x", "y")
        await until(lambda: form(app)["recipe"] == "x", pilot)
        app.screen.set_focus(field(app, "model"))
        await until(lambda: form(app)["model"] == "y", pilot)
