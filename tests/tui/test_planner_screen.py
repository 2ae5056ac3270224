"""The planner screen: it answers on each key, takes advice, goes back, saves, starts; and how it looks."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from textual.widgets import Input

from engine import recipe, settings
from engine.plan import draft as drafts
from engine.plan import measured
from engine.plan.draft import Here
from engine.run import launch
from engine.run.planned import PlanRefused
from engine.workspace import Workspace
from tests.support.app import stop_clock, until, workspace_at
from tests.support.fake_run import FakeRun
from tests.support.plans import record
from tui import themes
from tui.app import FtuiApp
from tui.modals.ask import Ask
from tui.modals.confirm import Confirm
from tui.modals.detail import Detail
from tui.screens.home import HomeScreen
from tui.screens.planner import PlannerScreen
from tui.screens.run import RunScreen
from tui.widgets.key_bar import KeyBar
from tui.widgets.plan_form import PlanChoice, PlanInput
from tui.widgets.plan_view import PlanView

SIZES = [(80, 24), (120, 40), (200, 50)]
L4 = Here("NVIDIA L4", 24.0, 1)
TEXT = """\
model_name_or_path: meta-llama/Llama-3.1-8B
dataset_path: train.jsonl
method: lora
lora_r: 16
max_length: 4096
per_device_train_batch_size: 2
global_batch_size: 16
"""


@pytest.fixture
def workspace(house: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A folder with a recipe and data; a server with one L4 and a fixed amount of free disk."""
    stop_clock(monkeypatch)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(Here, "look", classmethod(lambda _cls: L4))
    monkeypatch.setattr("engine.plan.mounts.free", lambda _place: 3.1e12)
    monkeypatch.setattr("engine.plan.mounts.host_memory", lambda: 128e9)
    here = house / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    (here / "mine.yaml").write_text(TEXT)
    with (here / "train.jsonl").open("w") as file:
        for index in range(1000):
            answer = "a" * (1000 + 37 * index % 9000)
            file.write(json.dumps({"messages": [{"role": "user", "content": answer}]}) + "\n")
    return workspace_at(house)


def box(app: FtuiApp, key: str) -> PlanInput:
    return app.screen.query_one(f"#{key}", PlanInput)


def choice(app: FtuiApp, key: str) -> PlanChoice:
    return app.screen.query_one(f"#{key}", PlanChoice)


def planner(app: FtuiApp) -> PlannerScreen:
    return next(screen for screen in app.screen_stack if isinstance(screen, PlannerScreen))


def view(app: FtuiApp) -> str:
    return "\n".join(planner(app).query_one(PlanView).lines())


async def opened(app: FtuiApp, pilot, name: str | None = "./mine.yaml", *overrides: str) -> None:
    """The planner with its first answer."""
    app.open_planner(name, overrides)
    await until(lambda: isinstance(app.screen, PlannerScreen) and planner(app)._outcome is not None, pilot)
    await settled(app, pilot)


async def settled(app: FtuiApp, pilot) -> None:
    """The answer to the newest change is on the screen."""
    await pilot.pause(0.05)
    await until(lambda: planner(app).settled, pilot)
    await pilot.pause()


async def test_each_key_is_answered(workspace: Workspace) -> None:
    app = FtuiApp(workspace)
    async with app.run_test(size=(120, 40)) as pilot:
        await opened(app, pilot)
        assert "needs" in view(app) and "THE GPU" in view(app)
        before = planner(app)._outcome.result.device.needs
        box(app, "max_length").focus()
        for key, length in (("1", 1), ("0", 10), ("2", 102), ("4", 1024)):
            await pilot.press(key)
            assert box(app, "max_length").value == str(length), "the key is echoed"
            await settled(app, pilot)
            assert planner(app)._outcome.result.request.max_length == length
        assert planner(app)._outcome.result.device.needs < before
        await pilot.press("plus")
        await settled(app, pilot)
        assert planner(app)._outcome.result.request.max_length == 2048
        await pilot.press("minus", "minus")
        await settled(app, pilot)
        assert planner(app)._outcome.result.request.max_length == 512


async def test_keys_of_one_moment_are_answered_once(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    planned: list[int] = []
    real = drafts.Draft.plan

    def counting(self, space):
        planned.append(self.said["max_length"])
        return real(self, space)

    app = FtuiApp(workspace)
    async with app.run_test(size=(80, 24)) as pilot:
        await opened(app, pilot)
        monkeypatch.setattr(drafts.Draft, "plan", counting)
        monkeypatch.setattr("tui.screens.planner.TICK_S", 0.3)
        box(app, "max_length").focus()
        await pilot.press(*"3072")
        await settled(app, pilot)
        assert planned == [3072]


async def test_the_arrows_go_through_a_choice(workspace: Workspace) -> None:
    app = FtuiApp(workspace)
    async with app.run_test(size=(80, 24)) as pilot:
        await opened(app, pilot)
        choice(app, "method").focus()
        for key, method in (("right", "qlora"), ("space", "full"), ("enter", "lora"), ("left", "full")):
            await pilot.press(key)
            await settled(app, pilot)
            assert choice(app, "method").value == method
            assert planner(app)._outcome.result.request.method == method
        await pilot.click("#gradient_checkpointing")
        await settled(app, pilot)
        assert planner(app)._outcome.result.request.gradient_checkpointing is False


async def test_a_value_that_makes_no_sense(workspace: Workspace) -> None:
    app = FtuiApp(workspace)
    async with app.run_test(size=(80, 24)) as pilot:
        await opened(app, pilot)
        box(app, "global_batch_size").focus()
        await pilot.press("7")
        await until(lambda: "✗" in view(app) and "global batch" in view(app).replace("_", " "), pilot)
        assert box(app, "global_batch_size").has_class("-wrong")
        assert "apply" not in str(app.screen.query_one(KeyBar).render())
        await pilot.press("backspace", *"32")
        await settled(app, pilot)
        assert not box(app, "global_batch_size").has_class("-wrong")
        box(app, "server").focus()
        await pilot.press(*"8xNothing")
        await until(lambda: "8xNothing" in view(app) or "Nothing" in view(app), pilot)
        box(app, "model_name_or_path").focus()
        await pilot.press(*"nobody")
        await until(lambda: "nobody" in view(app) or "Nothing" in view(app), pilot)


async def test_a_digit_takes_advice_and_u_takes_it_back(workspace: Workspace) -> None:
    app = FtuiApp(workspace)
    async with app.run_test(size=(120, 40)) as pilot:
        await opened(app, pilot, "./mine.yaml", "max_length=8192")
        assert planner(app)._outcome.result.verdict == "no" and "✗ does not fit" in view(app)
        rows = planner(app)._outcome.result.advice
        first = next(index for index, row in enumerate(rows) if "method" in row["change"])
        await pilot.press(str(first + 1))
        await settled(app, pilot)
        assert choice(app, "method").value == "qlora"
        assert planner(app)._outcome.result.device.needs / 1e9 == pytest.approx(rows[first]["needs_gb"], abs=0.05)
        assert "changed: max_length, method" in "\n".join(planner(app).query_one("PlanTitle").lines())
        await pilot.press("u")
        await settled(app, pilot)
        assert choice(app, "method").value == "lora" and planner(app)._outcome.result.advice == rows
        await pilot.press("u", "u", "9")  # nothing left to undo, no such advice
        await settled(app, pilot)
        assert planner(app)._outcome.result.advice == rows


async def test_typing_is_one_undo(workspace: Workspace) -> None:
    app = FtuiApp(workspace)
    async with app.run_test(size=(80, 24)) as pilot:
        await opened(app, pilot)
        box(app, "lora_r").focus()
        await pilot.press(*"128", "escape")
        await settled(app, pilot)
        assert app.focused is None and isinstance(app.screen, PlannerScreen)
        assert planner(app)._outcome.result.request.lora_r == 128
        await pilot.press("u")
        await settled(app, pilot)
        assert box(app, "lora_r").value == "16"


async def test_names_and_paths_are_completed(workspace: Workspace) -> None:
    app = FtuiApp(workspace)
    async with app.run_test(size=(120, 40)) as pilot:
        await opened(app, pilot)
        for key, typed, whole in (
            ("model_name_or_path", "qwen/qwen3-0", "qwen/qwen3-0.6B"),
            ("server", "8xH2", "8xH200-SXM"),
            ("dataset_path", "./tr", "./train.jsonl"),
            ("dataset_path", "builtin:s", "builtin:support"),
        ):
            box(app, key).focus()
            box(app, key).value = ""
            await pilot.press(*({"/": "slash", ":": "colon", ".": "full_stop", "-": "minus"}.get(c, c) for c in typed))
            await until(lambda key=key: box(app, key)._suggestion, pilot)
            await pilot.press("right")
            assert box(app, key).value == whole
        await settled(app, pilot)
        result = planner(app)._outcome.result
        assert (result.request.num_gpus, result.verdict) == (8, "fits")


async def test_a_recipe_is_saved_and_never_overwritten_silently(workspace: Workspace) -> None:
    app = FtuiApp(workspace)
    async with app.run_test(size=(80, 24)) as pilot:
        await opened(app, pilot)
        await pilot.press("w")
        await until(lambda: isinstance(app.screen, Ask) and app.focused is not None, pilot)
        assert app.screen.query_one(Input).value == "mine.yaml"
        await pilot.press("escape")
        choice(app, "method").focus()
        await pilot.press("right", "escape", "w")
        await until(lambda: isinstance(app.screen, Ask) and app.focused is not None, pilot)
        await pilot.press("enter")
        await until(lambda: isinstance(app.screen, Confirm), pilot)
        await pilot.press("n")
        assert Path("mine.yaml").read_text() == TEXT
        await pilot.press("w")
        await until(lambda: isinstance(app.screen, Ask) and app.focused is not None, pilot)
        app.screen.query_one(Input).value = "other"
        await pilot.press("enter")
        await until(lambda: Path("other.yaml").exists(), pilot)
        assert recipe.load("other.yaml").recipe.given["method"] == "qlora"
        await settled(app, pilot)
        await pilot.press("escape")  # nothing is unsaved any more
        await until(lambda: isinstance(app.screen, HomeScreen), pilot)


async def test_leaving_with_changes_asks(workspace: Workspace) -> None:
    app = FtuiApp(workspace)
    async with app.run_test(size=(80, 24)) as pilot:
        await opened(app, pilot)
        choice(app, "packing").focus()
        await pilot.press("space", "escape", "escape")
        await until(lambda: isinstance(app.screen, Confirm), pilot)
        await pilot.press("n")
        assert isinstance(app.screen, PlannerScreen)
        await pilot.press("escape", "y")
        await until(lambda: isinstance(app.screen, HomeScreen), pilot)


async def test_another_recipe_is_opened(workspace: Workspace) -> None:
    app = FtuiApp(workspace)
    async with app.run_test(size=(80, 24)) as pilot:
        await opened(app, pilot, None)
        assert "lora-sft" in "\n".join(planner(app).query_one("PlanTitle").lines())
        await pilot.press("o")
        await until(lambda: isinstance(app.screen, Ask) and app.focused is not None, pilot)
        await pilot.press("down", "down")
        assert app.screen.query_one(Input).value == "./mine.yaml"
        await pilot.press("enter")
        await until(lambda: isinstance(app.screen, PlannerScreen), pilot)
        await until(lambda: box(app, "model_name_or_path").value == "meta-llama/Llama-3.1-8B", pilot)
        await pilot.press("o")
        await until(lambda: isinstance(app.screen, Ask) and app.focused is not None, pilot)
        app.screen.query_one(Input).value = "nothing-there"
        await pilot.press("enter")
        await until(lambda: isinstance(app.screen, Detail), pilot)


async def test_a_recipe_that_is_not_there_leads_back(workspace: Workspace) -> None:
    app = FtuiApp(workspace)
    async with app.run_test(size=(80, 24)) as pilot:
        app.open_planner("nothing-there")
        await until(lambda: isinstance(app.screen, Detail), pilot)
        assert not any(isinstance(screen, PlannerScreen) for screen in app.screen_stack)


async def test_the_run_starts_from_here(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Path, list[str]]] = []

    def start(space, source, overrides=(), *, name=None, force=False):
        asked.append((source, list(overrides)))
        if len(asked) == 1:
            raise PlanRefused("the plan does not fit: 97.4 GB", {}, where="mine.yaml", fix="max_length=1024")
        return SimpleNamespace(run=FakeRun(space.root, "mine-1", gpus=1).run, pid=1, findings=[])

    monkeypatch.setattr(launch, "start", start)
    app = FtuiApp(workspace)
    async with app.run_test(size=(80, 24)) as pilot:
        await opened(app, pilot, "./mine.yaml", "max_length=1024")
        await pilot.press("f5")
        await until(lambda: isinstance(app.screen, Detail), pilot)  # refused: the reason, and the form is still there
        await pilot.press("escape")
        box(app, "server").value = "8xH100"
        await settled(app, pilot)
        await pilot.press("f5")
        await until(lambda: isinstance(app.screen, Confirm), pilot)  # a plan for another server starts nothing there
        await pilot.press("y")
        await until(lambda: isinstance(app.screen, RunScreen), pilot)
        assert [(source.name, overrides) for source, overrides in asked] == [("mine.yaml", ["max_length=1024"])] * 2
        assert not any(isinstance(screen, PlannerScreen) for screen in app.screen_stack)


async def test_from_the_form_of_a_new_run(workspace: Workspace) -> None:
    app = FtuiApp(workspace)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(lambda: app.runs is not None, pilot)
        await pilot.press("n", "down")
        await until(lambda: app.screen.query_one("#recipe", Input).value == "./mine.yaml", pilot)
        app.screen.query_one("#options", Input).value = "lora_r=8"
        await pilot.press("f4")
        await until(lambda: isinstance(app.screen, PlannerScreen) and planner(app)._outcome is not None, pilot)
        assert planner(app)._outcome.result.request.lora_r == 8


async def test_a_corrected_plan_says_by_what(workspace: Workspace) -> None:
    given = recipe.load("mine.yaml")
    request = drafts.open_recipe("mine.yaml", L4).plan(workspace).request
    assert request.sharding == "none" and not given.findings
    usual = {"model": "meta-llama/Llama-3.1-8B", "lora_target_modules": "all-linear", "packing": False}
    record(workspace.root, "llama-1", factor=1.04, **usual)
    app = FtuiApp(workspace)
    async with app.run_test(size=(120, 40)) as pilot:
        await opened(app, pilot)
        assert "corrected by llama-1: measured" in view(app)


async def test_the_processor_of_this_machine(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Here, "look", classmethod(lambda _cls: Here("cpu", 24.0, 0)))
    app = FtuiApp(workspace)
    async with app.run_test(size=(80, 24)) as pilot:
        await opened(app, pilot)
        assert "THIS MACHINE'S MEMORY" in view(app) and "of host memory" in view(app)
        assert "the first run measures it" in view(app)


# Pictures


def picture(snap_compare, workspace: Workspace, size: tuple[int, int], then=None, name="./mine.yaml") -> bool:
    app = FtuiApp(workspace)

    async def before(pilot) -> None:
        await until(lambda: app.runs is not None, pilot)
        await opened(app, pilot, name)
        if then is not None:
            await then(app, pilot)
            await settled(app, pilot)
        await pilot.pause(0.1)

    return snap_compare(app, terminal_size=size, run_before=before)


async def large(app: FtuiApp, pilot) -> None:
    """A large model on a large server, a field in hand."""
    box(app, "model_name_or_path").value = "meta-llama/Llama-3.1-70B"
    box(app, "server").value = "8xH100"
    box(app, "max_length").focus()
    await pilot.press(*"8192")


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("theme", [themes.DARK, themes.LIGHT])
def test_look(snap_compare, workspace: Workspace, theme: str, size: tuple[int, int]) -> None:
    settings.save(theme=theme)
    assert picture(snap_compare, workspace, size, large)


def test_look_that_does_not_fit(snap_compare, workspace: Workspace) -> None:
    settings.save(price=2.5)
    assert picture(snap_compare, workspace, (80, 24))


def test_look_in_16_colors(snap_compare, workspace: Workspace) -> None:
    settings.save(theme=themes.ANSI)
    assert picture(snap_compare, workspace, (80, 24), large)


def test_look_in_ascii(snap_compare, workspace: Workspace) -> None:
    settings.save(ascii=True)
    assert picture(snap_compare, workspace, (80, 24), large)


def test_look_with_an_error(snap_compare, workspace: Workspace) -> None:
    async def wrong(app: FtuiApp, pilot) -> None:
        box(app, "global_batch_size").focus()
        await pilot.press(*"17")
        await until(lambda: box(app, "global_batch_size").has_class("-wrong"), pilot)

    assert picture(snap_compare, workspace, (80, 24), wrong)


def probe_program(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """What stands for `python -m tui … plan … --probe 10`."""
    script = folder / "probe-python"
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(0o755)
    monkeypatch.setattr("tui.sources.probe.sys", SimpleNamespace(executable=str(script)))


async def test_a_key_probes_and_the_plan_takes_what_it_measured(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, house: Path
) -> None:
    app = FtuiApp(workspace)
    async with app.run_test(size=(120, 40)) as pilot:
        await opened(app, pilot, "./mine.yaml", "packing=true", "max_length=1024", "per_device_train_batch_size=1")
        result = planner(app)._outcome.result
        assert "tok/s, estimate" in view(app)
        line = {
            "run": "probe-1", "probe": True, "dataset": None,
            "request": planner(app)._draft.request() | {"sharding": "none"}, "epochs": 0.1,
            "card": result.context.card.id,
            "measured": {"memory": round(0.95 * result.memory.peak.total), "tokens_per_s": 4321.0},
        }  # fmt: skip
        go = house / "go"
        probe_program(
            house, monkeypatch, f"echo 'probe: step 3 of 10' >&2\nwhile [ ! -e {go} ]; do sleep 0.02; done\necho '{{}}'"
        )
        await pilot.press("p")
        await until(lambda: "probe: step 3 of 10 (p stops it)" in view(app), pilot)
        measured.store(workspace.root, line)
        go.touch()
        await until(lambda: "4,321 tok/s, from a probe" in view(app), pilot)
        assert planner(app)._probe is None
        assert planner(app)._outcome.result.memory.peak.total == pytest.approx(0.95 * result.memory.peak.total)


async def test_a_probe_that_fails_is_shown_and_one_that_is_stopped_is_not(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, house: Path
) -> None:
    app = FtuiApp(workspace)
    async with app.run_test(size=(120, 40)) as pilot:
        await opened(app, pilot)
        error = {"error": {"message": "out of memory at step 1", "kind": "out_of_memory", "exit_code": 3}}
        probe_program(house, monkeypatch, f"echo '{json.dumps(error)}'; exit 1")
        await pilot.press("p")
        await until(lambda: isinstance(app.screen, Detail), pilot)
        assert "out of memory at step 1" in app.screen.error.what
        await pilot.press("escape")
        probe_program(
            house, monkeypatch, "echo 'probe: loading' >&2; trap 'exit 130' INT; while :; do sleep 0.02; done"
        )
        await pilot.press("p")
        await until(lambda: "probe: loading" in view(app), pilot)
        await pilot.press("p")
        await until(lambda: planner(app)._probe is None, pilot)
        assert isinstance(app.screen, PlannerScreen) and "probe: loading" not in view(app)
