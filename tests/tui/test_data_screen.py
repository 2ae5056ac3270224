"""The data screen: rows through the template, findings as filters, rows dropped, what flows into a plan; its look."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.data import drops
from engine.workspace import Workspace
from tests.support.app import stop_clock, until, workspace_at
from tests.support.data import talk
from tests.support.models import make_model
from tui import themes
from tui.app import FtuiApp
from tui.modals.ask import Ask
from tui.screens.data import DataScreen
from tui.screens.home import HomeScreen
from tui.screens.planner import PlannerScreen
from tui.widgets.data_facts import DataFoot, DataTitle
from tui.widgets.data_findings import DataFindings
from tui.widgets.data_lengths import DataLengths
from tui.widgets.data_row import DataRow

SIZES = [(80, 24), (120, 40), (200, 50)]
TEXT = "a ripe tomato needs salt oil time and a warm place near some window where light falls in the morning"
WORDS = TEXT.split()


def rows() -> list[object]:
    """Conversations of growing length, with some of what a check finds."""
    found: list[object] = []
    for n in range(60):
        words = [WORDS[(at * (n + 3) + at * at) % len(WORDS)] for at in range(4 + 3 * n)]
        found.append(talk(f"Question {n}: what about {' '.join(words[:6])}?", " ".join([str(n), *words])))
    found[7] = talk("Who wrote this?", "Anna did, her mail is anna.k@example.org and she answers.")
    found[20] = found[9]
    found[30] = {"messages": [{"role": "User", "content": "Is it so?"}, {"role": "assistant", "content": "It is so."}]}
    found[40] = {"messages": [{"role": "user", "content": "No answer?"}, {"role": "assistant", "content": ""}]}
    return found


@pytest.fixture
def workspace(house: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A folder with data and a model that counts bytes."""
    stop_clock(monkeypatch)
    monkeypatch.setenv("TERM", "xterm-256color")
    here = house / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    (here / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows()))
    make_model(here / "model")
    return workspace_at(house)


def data(app: FtuiApp) -> DataScreen:
    return next(screen for screen in app.screen_stack if isinstance(screen, DataScreen))


def lines(app: FtuiApp, kind: type) -> list[str]:
    return [line for widget in data(app).query(kind) for line in widget.lines()]


def said(app: FtuiApp, kind: type) -> str:
    return "\n".join(lines(app, kind))


async def opened(app: FtuiApp, pilot, *names: str, model: str | None = "model", max_length: int | None = 400) -> None:
    await until(lambda: app.runs is not None, pilot)
    app.open_data(names or ("train.jsonl",), model=model, max_length=max_length)
    await until(lambda: app.screen_stack[-1].__class__ is DataScreen and data(app).outcome is not None, pilot, limit=30)
    await pilot.pause()


async def test_a_row_as_the_model_sees_it(workspace: Workspace) -> None:
    app = FtuiApp(workspace)
    async with app.run_test(size=(120, 40)) as pilot:
        await opened(app, pilot)
        row = lines(app, DataRow)
        assert any("<|im_start|>user" in line for line in row)
        answer = next(line for line in row if "0 a" in line)
        assert answer.startswith("▎") and not row[0].startswith("▎")  # a sign beside the color
        assert "row 1 of 60" in said(app, DataTitle) and "trained" in said(app, DataTitle)
        await pilot.press("g", *"60", "enter")
        await until(lambda: data(app).picture.number == 59, pilot)
        assert "cut" in said(app, DataTitle) and any(line.startswith("x") for line in lines(app, DataRow))
        await pilot.press("v")
        assert "«" in said(app, DataRow) and "~~" in said(app, DataRow)
        await pilot.press("left", "left")
        await until(lambda: data(app).picture.number == 57, pilot)


async def test_findings_filter_the_rows(workspace: Workspace) -> None:
    app = FtuiApp(workspace)
    async with app.run_test(size=(120, 40)) as pilot:
        await opened(app, pilot)
        assert "empty content" in said(app, DataFindings) and "duplicate" in said(app, DataFindings)
        names = [found.name for found in data(app).outcome.found]
        await pilot.press(*["down"] * (names.index("pii email") + 1), "enter")
        await until(lambda: data(app).picture.number == 7, pilot)
        assert "1 of 1 pii email" in said(app, DataTitle)
        await pilot.press("enter")
        assert "pii" not in said(app, DataTitle)
        await pilot.press("right")
        await until(lambda: data(app).picture.number == 8, pilot)
        assert "leaves out 1 unusable, 1 duplicate" in said(app, DataFoot)


async def test_lengths_and_what_they_suggest(workspace: Workspace) -> None:
    app = FtuiApp(workspace)
    async with app.run_test(size=(120, 40)) as pilot:
        await opened(app, pilot)
        shown = said(app, DataLengths)
        assert "TOKENS" in shown and "50 %" in shown and any(line.startswith(">") for line in lines(app, DataLengths))
        outcome = data(app).outcome
        assert sum(count for _edge, count in outcome.lengths.bins) == outcome.usable == 59
        assert "max_length" in said(app, DataFoot)
        await pilot.press("t")
        await until(lambda: isinstance(app.screen, Ask), pilot)
        app.screen.query_one("Input").value = "1500"
        await pilot.press("enter")
        await until(lambda: data(app).outcome is not None and data(app).outcome is not outcome, pilot, limit=30)
        assert outcome.lengths.values.tolist() == data(app).outcome.lengths.values.tolist()
        await pilot.press("p")
        await until(lambda: isinstance(app.screen, PlannerScreen) and app.screen._draft is not None, pilot, limit=30)
        changes = app.screen._draft.changes
        assert changes["max_length"] == 1500 and changes["packing"] is True
        assert changes["dataset_path"] == str(Path("train.jsonl").absolute())


async def test_a_dropped_row_is_kept_in_mind(workspace: Workspace) -> None:
    app = FtuiApp(workspace)
    async with app.run_test(size=(80, 24)) as pilot:
        await opened(app, pilot)
        await pilot.press("x")
        await until(lambda: data(app).picture.dropped, pilot)
        assert "DROPPED" in said(app, DataTitle) and drops.read(workspace.root) == {drops.key(rows()[0])}
        await pilot.press("x")
        await until(lambda: not data(app).picture.dropped, pilot)
        assert drops.read(workspace.root) == frozenset()


async def test_clean_data_is_written_and_looked_at(workspace: Workspace) -> None:
    app = FtuiApp(workspace)
    async with app.run_test(size=(120, 40)) as pilot:
        await opened(app, pilot)
        before = Path("train.jsonl").read_bytes()
        await pilot.press("w", "enter")
        await until(lambda: Path("train-data/report.md").exists(), pilot, limit=30)
        await until(lambda: data(app).outcome is not None and "train-data" in said(app, DataTitle), pilot, limit=30)
        assert data(app).outcome.errors == 0 and Path("train.jsonl").read_bytes() == before
        await pilot.press("p")
        await until(lambda: isinstance(app.screen, PlannerScreen) and app.screen._draft is not None, pilot, limit=30)
        assert app.screen._draft.changes["eval_dataset_path"].endswith("train-data/eval.jsonl")


async def test_without_a_model_and_with_one_that_is_not_here(workspace: Workspace) -> None:
    app = FtuiApp(workspace)
    async with app.run_test(size=(120, 40)) as pilot:
        await opened(app, pilot, model=None)
        assert "[assistant]" in said(app, DataRow) and "CHARACTERS" in said(app, DataLengths)
        assert "m: choose a model" in said(app, DataFoot)
        await pilot.press("escape")
        await opened(app, pilot, model="team/none")
        assert "tokenizer.json" in said(app, DataFoot) or "CHARACTERS" in said(app, DataLengths)


@pytest.mark.parametrize("content", ["", "\0\0\0\0\0\0", "{broken\n"])
async def test_files_without_rows(workspace: Workspace, content: str) -> None:
    Path("odd.jsonl").write_text(content)
    app = FtuiApp(workspace)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(lambda: app.runs is not None, pilot)
        app.open_data(["odd.jsonl"])
        await until(lambda: said(app, DataFoot).strip() or data(app).outcome is not None, pilot, limit=30)
        await pilot.press("right", "left", "x", "enter", "p", "v", "pagedown", "escape")
        await until(lambda: isinstance(app.screen, HomeScreen), pilot)


async def test_a_file_that_changes_under_the_eye(workspace: Workspace) -> None:
    app = FtuiApp(workspace)
    async with app.run_test(size=(80, 24)) as pilot:
        await opened(app, pilot)
        with open("train.jsonl", "a") as file:
            file.write(json.dumps(talk("one more", "row here")) + "\n")
        await pilot.press("right")
        await until(lambda: "changed" in said(app, DataFoot), pilot)


async def test_the_way_there(workspace: Workspace) -> None:
    Path("r.yaml").write_text("model_name_or_path: ./model\ndataset_path: train.jsonl\nmax_length: 300\n")
    app = FtuiApp(workspace)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(lambda: app.runs is not None, pilot)
        await pilot.press("i")
        await until(lambda: isinstance(app.screen, Ask), pilot)
        await pilot.press(*"train.jsonl", "enter")
        await until(lambda: isinstance(app.screen, DataScreen), pilot)
        await pilot.press("escape")
        app.open_planner("./r.yaml")
        await until(lambda: isinstance(app.screen, PlannerScreen) and app.screen._draft is not None, pilot)
        await pilot.press("i")
        await until(lambda: isinstance(app.screen, DataScreen) and data(app).outcome is not None, pilot, limit=30)
        assert data(app)._subject.max_length == 300
        await pilot.press("p")
        await until(lambda: isinstance(app.screen, PlannerScreen), pilot)
        assert app.screen._draft.changes["packing"] is True


# Pictures


def picture(snap_compare, workspace: Workspace, size: tuple[int, int], *keys: str) -> bool:
    app = FtuiApp(workspace)

    async def before(pilot) -> None:
        await opened(app, pilot)
        await pilot.press("g", *"60", "enter")
        await until(lambda: data(app).picture.number == 59, pilot)
        await pilot.press(*keys)
        await pilot.pause(0.1)

    return snap_compare(app, terminal_size=size, run_before=before)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_look(snap_compare, workspace: Workspace, size: tuple[int, int]) -> None:
    assert picture(snap_compare, workspace, size)


def test_look_in_light(snap_compare, workspace: Workspace) -> None:
    from engine import settings

    settings.save(theme=themes.LIGHT)
    assert picture(snap_compare, workspace, (120, 40))


def test_look_in_ascii_with_marks(snap_compare, workspace: Workspace) -> None:
    from engine import settings

    settings.save(ascii=True)
    assert picture(snap_compare, workspace, (80, 24), "v")
