"""Reading answers blind: what is shown and hidden, what a key keeps, and the samples of a run."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from textual.widgets import Input, Static

from engine.evaluate import gate, reading
from engine.files import read_json, write_json
from engine.workspace import RunFolder, Workspace
from tests.support.app import until
from tests.support.evaluation_folder import HOSTILE, evaluated, lines, run_folder
from tui.app import FtuiApp
from tui.screens.reading import ReadingScreen
from tui.screens.samples import SamplesScreen


@pytest.fixture
def run(house: Path) -> RunFolder:
    made = run_folder(Workspace(house / "ft").prepare(), "a-1")
    evaluated(made, of=3)
    return made


def shown(app: FtuiApp, name: str) -> str:
    return str(app.screen.query_one(f"#{name}", Static).content)


async def opened(app: FtuiApp, run: RunFolder, pilot) -> ReadingScreen:
    screen = ReadingScreen(run)
    app.push_screen(screen)
    await until(lambda: screen.is_mounted and (screen.pair is not None or "ftui eval" in shown(app, "prompt")), pilot)
    await pilot.pause()
    return screen


async def test_a_vote_is_blind_is_kept_and_leads_on(run: RunFolder) -> None:
    app = FtuiApp(Workspace(run.path.parents[1]))
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await opened(app, run, pilot)
        first = screen.pair
        assert first is not None
        assert shown(app, "a").startswith("A\n") and shown(app, "b").startswith("B\n")
        assert "tuned" not in shown(app, "title") and "1/3" in shown(app, "title")
        await pilot.press("a" if first.tuned_is_a else "b")
        assert screen.pair is not None and screen.pair.id != first.id
        assert "1 of 3" in shown(app, "score") and "tuned" not in shown(app, "score")  # the score would unblind
        await pilot.press("=", "x")
        await until(lambda: len(reading.votes(gate.folder_of(run) / "step-10")) == 3, pilot)
        assert "tuned better in 1" in shown(app, "score")  # all are read: now it may be said
        await pilot.press("left", "left")
        await pilot.press("w")
        assert "tuned" in shown(app, "a") + shown(app, "b")
    votes = reading.votes(gate.folder_of(run) / "step-10")
    assert [votes[f"held_out:{n}"]["won"] for n in (1, 2, 3)] == ["tuned", "same", "bad"]


async def test_a_note_and_the_report(run: RunFolder) -> None:
    folder = gate.folder_of(run) / "step-10"
    report = read_json(folder / "report.json")
    delta = {"value": 0.5, "low": 0.2, "high": 0.8, "p": 0.001, "n": 3, "verdict": "better", "rows_needed": None}
    part = {"value": 0.5, "low": 0.2, "high": 0.8, "n": 3}
    metric = {
        "name": "exact_match",
        "set": "held_out",
        "rows": 3,
        "base": part,
        "tuned": part,
        "delta": delta,
        "note": "",
    }
    report |= {
        "metrics": [metric], "gates": [], "passed": None, "regression": [], "findings": [], "inputs_sha256": "0" * 32,
        "model": {"tuned": "/t", "base": "/b", "adapter": True},
        "settings": {"max_new_tokens": 8, "extract": None, "metrics": []},
    }  # fmt: skip
    write_json(folder / "report.json", report)
    app = FtuiApp(Workspace(run.path.parents[1]))
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await opened(app, run, pilot)
        await pilot.press("enter")
        await until(lambda: app.screen.query(Input), pilot)
        await pilot.press(*"odd", "enter")
        await until(lambda: app.screen is screen, pilot)
        assert "odd" in shown(app, "score")
        await pilot.press("x")
        await pilot.press("tab")
        await until(lambda: "exact match" in shown(app, "table"), pilot)
        assert "better" in shown(app, "table")
        head = next(line for line in shown(app, "table").splitlines() if line.startswith("metric"))
        assert head.split() == ["metric", "base", "tuned", "95", "%", "interval"]
        await pilot.press("tab", "escape")
        await until(lambda: (read_json(folder / "report.json") or {}).get("reading"), pilot)
    told = read_json(folder / "report.json")["reading"]
    assert told["bad"] == 1 and told["notes"] == [{"row": "held_out:1", "note": "odd", "won": "bad"}]
    page = (folder / "report.html").read_text()
    assert "1 rows read blind" in page and "odd" in page
    assert "<script>alert" not in page and "\x1b" not in (folder / "report.md").read_text()


async def test_what_a_model_says_does_not_act_on_the_terminal(run: RunFolder) -> None:
    app = FtuiApp(Workspace(run.path.parents[1]))
    async with app.run_test(size=(80, 24)) as pilot:
        await opened(app, run, pilot)
        prompt = shown(app, "prompt")
        assert HOSTILE.split("\n")[0] in prompt and "\x1b" not in prompt


async def test_without_an_evaluation_the_screen_says_how_to_make_one(house: Path) -> None:
    run = run_folder(Workspace(house / "ft").prepare(), "b-1")
    app = FtuiApp(Workspace(house / "ft"))
    async with app.run_test(size=(80, 24)) as pilot:
        await opened(app, run, pilot)
        assert "ftui eval b-1" in shown(app, "prompt")
        await pilot.press("a", "right", "enter", "tab", "escape")


async def test_samples_grow_while_the_run_trains(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tui.screens.samples.EVERY_S", 0.1)
    app = FtuiApp(Workspace(run.path.parents[1]))

    def line(step: int, number: int, text: str) -> dict[str, object]:
        return {
            "event": "sample",
            "step": step,
            "prompt_id": number,
            "prompt": f"p{number}",
            "reference": "r",
            "text": text,
        }

    async with app.run_test(size=(100, 30)) as pilot:
        screen = SamplesScreen(run)
        app.push_screen(screen)
        await until(lambda: screen.is_mounted and "none yet" in shown(app, "answers"), pilot)
        file = run.path / "samples.jsonl"
        file.write_bytes(lines([line(10, 0, "one two"), line(10, 1, "other"), line(20, 0, "one three")]))
        await until(lambda: "step 20" in shown(app, "answers"), pilot)
        said = shown(app, "answers")
        assert said.index("step 20") < said.index("step 10") and "p0" in shown(app, "prompt")
        await pilot.press("right")
        assert "other" in shown(app, "answers") and "2/2" in shown(app, "title")
        with open(file, "ab") as more:
            more.write(orjson.dumps(line(10, 1, "said again"), option=orjson.OPT_APPEND_NEWLINE) + b'{"torn')
        await until(lambda: "said again" in shown(app, "answers"), pilot)
        await pilot.press("escape")
        assert app.screen is not screen


async def test_the_run_screen_opens_both(run: RunFolder) -> None:
    app = FtuiApp(Workspace(run.path.parents[1]), open_run=run.name)
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.pause()
        await pilot.press("v")
        await until(lambda: isinstance(app.screen, ReadingScreen), pilot)
        await pilot.press("escape", "t")
        await until(lambda: isinstance(app.screen, SamplesScreen), pilot)
        await pilot.press("question_mark")
        await pilot.pause()
