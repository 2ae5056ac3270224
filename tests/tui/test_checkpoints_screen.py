"""The checkpoint screen on real files: its table, its forecast, its keys; and how it looks at three sizes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from engine.checkpoint import pins
from engine.checkpoint.manifest import seal
from engine.files import write_json
from engine.journal import JournalWriter
from tests.support import fake_run
from tests.support.app import stop_clock, until
from tests.support.checkpoints import write_checkpoint
from tests.support.run_app import RunApp
from tui import themes
from tui.modals.ask import Ask
from tui.modals.confirm import Confirm
from tui.modals.report import Report
from tui.screens.checkpoints import CheckpointsScreen
from tui.sources import checkpoint_source
from tui.state.checkpoints import Extra, Forecast, forecast
from tui.widgets.checkpoint_facts import CheckpointDetails, CheckpointHeader, DiskGauge
from tui.widgets.checkpoint_table import CheckpointTable
from tui.widgets.key_bar import KeyBar

SIZES = [(80, 24), (120, 40), (200, 50)]
NOW = fake_run.BASE_TIME + 7000.0
GB = fake_run.GB


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stop_clock(monkeypatch)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr("tui.widgets.checkpoint_table.clock", lambda: NOW)
    monkeypatch.setattr("tui.widgets.checkpoint_facts.now", lambda: NOW)
    monkeypatch.setattr("tui.screens.checkpoints.POLL_S", 0.05)
    monkeypatch.setattr(checkpoint_source, "_disk", lambda _run: (1.7e12, 3.8e12))


def with_checkpoints(house: Path, *, live: bool = True, limit: int | None = 4) -> fake_run.FakeRun:
    """A run of six checkpoints: one damaged, one pinned, one that the rules let go."""
    fake = fake_run.FakeRun(house / "home" / "ft", live=live)
    recipe = {"method": "lora", "save_total_limit": limit, "save_steps": 200, "save_strategy": "steps"}
    write_json(fake.run.resolved, {"format": 1, "run": fake.run.name, "recipe": recipe, "origin": {}})
    fake.begin()
    fake.train(fake_run.losses(4800)[:1240])
    for step in range(200, 1201, 200):
        staging = write_checkpoint(fake.run.checkpoints / f".staging-{step}", step)
        metrics = {"loss": 1.0 + 100.0 / step, "eval_loss": 1.1 + 100.0 / step}
        final = fake.run.checkpoints / f"checkpoint-{step}"
        seal(staging, final, {"step": step, "attempt": 1, "metrics": metrics})
        os.utime(final, (NOW - (1300 - step) * 1.62,) * 2)
    (fake.run.checkpoints / "checkpoint-600" / "optimizer.pt").write_bytes(b"short")
    (fake.run.checkpoints / ".staging-1240").mkdir()
    os.utime(fake.run.checkpoints / ".staging-1240", (NOW, NOW))
    pins.change(fake.run.path, add="checkpoint-400")
    JournalWriter(fake.run.path / "drills.jsonl").append("drill", step=1000, passed=True)
    saved = {"step": 1200, "path": "checkpoints/checkpoint-1200", "time": fake.time}
    fake.write_state(last_checkpoint=saved, unsaved_s=64.8, state="running" if live else "stopped")
    return fake


async def opened(app: RunApp, pilot: Any) -> CheckpointsScreen:
    await until(lambda: bool(app.screen_stack) and app.run_screen.snapshot.revision, pilot)
    await pilot.press("c")
    await until(lambda: isinstance(app.screen, CheckpointsScreen) and app.screen.snapshot.rows, pilot)
    await pilot.pause(0.05)
    assert isinstance(app.screen, CheckpointsScreen)
    return app.screen


def lines(screen: CheckpointsScreen, kind: type[Any] = CheckpointTable) -> list[str]:
    return [line for line in screen.query_one(kind).lines() if line.strip()]


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
async def test_what_it_shows(house: Path, size: tuple[int, int]) -> None:
    app = RunApp(with_checkpoints(house).run)
    async with app.run_test(size=size) as pilot:
        screen = await opened(app, pilot)
        rows = lines(screen)
        steps = [row.replace("▸", " ").split()[0] for row in rows[1:]]
        assert steps == ["1,240", "1,200", "1,000", "800", "600", "400", "200"]
        assert "writing" in rows[1]
        assert "1.083" in rows[2] and "sealed" in rows[2] and "2 min" in rows[2]
        assert "damaged" in rows[5]
        assert "pinned" in rows[6]
        assert "goes: " in rows[7]
        assert "40 steps (1 min 05) at risk" in lines(screen, CheckpointHeader)[0]
        assert "1.7 TB free of 4 TB" in lines(screen, DiskGauge)[0]
        assert "enough for the whole run" in lines(screen, DiskGauge)[0]
        for widget in screen.query("CellWidget"):
            assert widget.region.right <= size[0] and widget.region.bottom <= size[1]
        bar = str(screen.query_one(KeyBar).render())
        assert "resume" not in bar and "v verify" in bar


async def test_the_disk_will_be_full(house: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_source, "_disk", lambda _run: (5.0e8, 3.8e12))
    fake = with_checkpoints(house, limit=None)
    monkeypatch.setattr(checkpoint_source, "forecast", lambda **_given: Forecast(4200, 5.0 * 3600))
    app = RunApp(fake.run)
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await opened(app, pilot)
        assert "full at step 4,200, 22:56" in lines(screen, DiskGauge)[0]


def test_the_forecast() -> None:
    base: dict[str, Any] = {"size": 10 * GB, "step": 1000, "max_steps": 10_000, "every": 1000, "kept": 1, "step_s": 2.0}
    assert forecast(free=35 * GB, limit=None, **base) == Forecast(5000, 8000.0)
    assert forecast(free=35 * GB, limit=3, **base) == Forecast(None)
    assert forecast(free=25 * GB, limit=3, **base) == Forecast(4000, 6000.0), "a save needs room before one goes"
    assert forecast(free=5 * GB, limit=1, **base) == Forecast(2000, 2000.0)
    assert forecast(free=35 * GB, limit=1, keep_every=2000, **base) == Forecast(8000, 14000.0)
    assert forecast(free=500 * GB, limit=None, **base) == Forecast(None)
    assert forecast(free=5 * GB, limit=None, **{**base, "step": 10_000}) == Forecast(None), "the run is at its end"


async def test_pin_prune_with_a_preview_and_verify(house: Path) -> None:
    fake = with_checkpoints(house)
    app = RunApp(fake.run)
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await opened(app, pilot)
        await pilot.press("end", "p")
        await until(lambda: pins.read(fake.run.path) == {"checkpoint-400", "checkpoint-200"}, pilot)
        await until(lambda: "pinned" in lines(screen)[-1], pilot)
        await until(lambda: not screen._busy, pilot)
        await pilot.press("p")
        await until(lambda: "goes: " in lines(screen)[-1], pilot)
        await until(lambda: not screen._busy, pilot)
        await pilot.press("x")
        await until(lambda: isinstance(app.screen, Report), pilot)
        shown = "\n".join(app.screen.lines)
        assert "200" in shown and "goes" in shown and "stays" in shown and "pinned" in shown
        await pilot.press("escape")
        await pilot.pause(0.1)
        assert (fake.run.checkpoints / "checkpoint-200").exists()
        await pilot.press("x")
        await until(lambda: isinstance(app.screen, Report), pilot)
        await pilot.press("y")
        await until(lambda: not (fake.run.checkpoints / "checkpoint-200").exists(), pilot)
        await until(lambda: "400" in lines(screen)[-1], pilot)
        await until(lambda: not screen._busy, pilot)
        await pilot.press("home", "down", "v")
        await until(lambda: screen.verdicts.get("checkpoint-1200") == "verified", pilot)
        assert "verified" in lines(screen)[2]


async def test_verifying_a_damaged_one_says_what_is_wrong(house: Path) -> None:
    app = RunApp(with_checkpoints(house).run)
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await opened(app, pilot)
        await pilot.press(*["down"] * 4)
        assert "optimizer.pt" in lines(screen, CheckpointDetails)[0]
        await pilot.press("v")
        await until(lambda: isinstance(app.screen, Report), pilot)
        assert any("optimizer.pt" in line for line in app.screen.lines)
        assert screen.verdicts["checkpoint-600"] == "damaged"


async def test_resume_from_drill_export_and_compare(house: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = with_checkpoints(house, live=False)
    seen: list[Any] = []

    class Started:
        resumed = {"step": 1000, "exact": False, "differs": ["2 ranks instead of 8"]}  # noqa: RUF012

    class Drilled:
        passed, step, compared, reason, scratch = False, 1000, [], "the loss differs", "/scratch"

    monkeypatch.setattr("engine.run.resuming.resume", lambda run, step: seen.append(("resume", step)) or Started())
    monkeypatch.setattr("engine.run.drill.drill", lambda run, step: seen.append(("drill", step)) or Drilled())
    app = RunApp(fake.run)
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await opened(app, pilot)
        assert "r resume from" in str(screen.query_one(KeyBar).render())
        await pilot.press("down", "r")
        await until(lambda: isinstance(app.screen, Confirm), pilot)
        assert "from step 1,000" in app.screen.question and "trained again" in app.screen.question
        await pilot.press("y")
        await until(lambda: seen == [("resume", 1000)], pilot)
        await until(lambda: any("2 ranks instead of 8" in said for said in app.said), pilot)
        await until(lambda: not screen._busy, pilot)
        await pilot.press("d")
        await until(lambda: isinstance(app.screen, Confirm), pilot)
        await pilot.press("y")
        await until(lambda: seen[1:] == [("drill", 1000)], pilot)
        await until(lambda: type(app.screen).__name__ == "Detail", pilot)
        await pilot.press("escape")
        await pilot.press("e")
        await until(lambda: isinstance(app.screen, Ask), pilot)
        await pilot.press("ctrl+u", *str(house / "copies"), "enter")
        await until((house / "copies" / "checkpoint-1000" / "MANIFEST.json").exists, pilot)
        await until(lambda: not screen._busy, pilot)
        await pilot.press("m", "up", "equals_sign")
        await until(lambda: isinstance(app.screen, Report), pilot)
        assert app.screen.lines[0].split() == ["1,000", "1,200"]
        assert any(line.split() == ["loss", "1.100", "1.083"] for line in app.screen.lines)


async def test_a_folder_that_changes_is_followed_and_other_parts_add_columns(
    house: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = with_checkpoints(house)
    cells = {"checkpoint-1200": {"backed up": Extra("verified 14:03", "good")}}
    monkeypatch.setattr(checkpoint_source, "EXTRA_COLUMNS", [lambda _run: cells])
    app = RunApp(fake.run)
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await opened(app, pilot)
        assert "backed up" in lines(screen)[0] and "verified 14:03" in lines(screen)[2]
        await pilot.press("down", "down")
        staging = fake.run.checkpoints / ".staging-1240"
        staging.rmdir()
        write_checkpoint(staging, 1240)
        seal(staging, fake.run.checkpoints / "checkpoint-1240", {"step": 1240, "attempt": 1})
        await until(lambda: "sealed" in lines(screen)[1], pilot)
        assert screen.table.selected is not None and screen.table.selected.step == 1000, "the cursor stays on its row"


async def test_a_run_without_checkpoints_and_one_whose_pins_are_unreadable(house: Path) -> None:
    fake = fake_run.FakeRun(house / "ft")
    fake.begin()
    app = RunApp(fake.run)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(lambda: bool(app.screen_stack) and app.run_screen.snapshot.revision, pilot)
        await pilot.press("c")
        await until(lambda: isinstance(app.screen, CheckpointsScreen) and app.screen.snapshot.read, pilot)
        screen = app.screen
        await until(lambda: "no checkpoint was saved yet" in "".join(screen.query_one(CheckpointTable).lines()), pilot)
        await pilot.press("v", "p", "d", "e", "equals_sign", "m", "y", "up", "end")
        (fake.run.path / pins.NAME).write_text("{torn")
        await until(lambda: "not known what must stay" in "".join(screen.query_one(CheckpointTable).lines()), pilot)
        for size in ((1, 1), (20, 5), (250, 80)):
            await pilot.resize_terminal(*size)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_picture(snap_compare, house: Path, size: tuple[int, int]) -> None:
    app = RunApp(with_checkpoints(house).run, theme=themes.DARK)

    async def before(pilot: Any) -> None:
        await opened(app, pilot)
        await pilot.press("down")
        await pilot.pause(0.2)

    assert snap_compare(app, terminal_size=size, run_before=before)


def backed_up(fake: fake_run.FakeRun, house: Path) -> None:
    """Checkpoint 1000 is proved at the remote, 1200 is on its way."""
    from engine.backup.hashing import Hashes, Stamp
    from engine.backup.ledger import Ledger
    from engine.backup.progress import Progress

    resolved = {"method": "lora", "save_total_limit": 4, "save_steps": 200, "backup": "s3:bucket/runs"}
    write_json(fake.run.resolved, {"format": 1, "run": fake.run.name, "recipe": resolved, "origin": {}})
    ledger = Ledger(fake.run.path / "backup", "s3:bucket/runs", write=True)
    hashes = Hashes(Stamp(1000, 1, 2), "0" * 64, 16, 1, "e" * 32, None)
    for name in ("checkpoints/checkpoint-1000", "checkpoints/checkpoint-1200"):
        ledger.expects(name, 1)
        ledger.hashed(name, "model.safetensors", hashes)
        ledger.sending(name, "model.safetensors")
    ledger.uploaded("checkpoints/checkpoint-1000", "model.safetensors", "sent")
    ledger.committed("checkpoints/checkpoint-1000")
    ledger.verified("checkpoints/checkpoint-1000", "model.safetensors", "etag")
    ledger.close()
    progress = Progress(fake.run.path / "backup" / "progress.json", "s3:bucket/runs")
    progress.item, progress.total, progress.done = "checkpoints/checkpoint-1200", int(2.9e9), int(1.8e9)
    progress.flying = {"checkpoints/checkpoint-1200": 610}
    progress.write(now=True)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
async def test_what_would_be_lost_and_what_is_elsewhere(house: Path, size: tuple[int, int]) -> None:
    from engine.lease import clock, record, when
    from tui.widgets.backup_strip import BackupStrip, LossLine

    fake = with_checkpoints(house)
    backed_up(fake, house)
    now = clock.now()
    record.save(fake.workspace, when.When(now.wall + 20 * 3600, "in 20h", relative=True), now)
    app = RunApp(fake.run)
    async with app.run_test(size=size) as pilot:
        screen = await opened(app, pilot)
        await until(lambda: "you would lose" in "".join(lines(screen, LossLine)), pilot)
        assert "240 steps" in lines(screen, LossLine)[0]
        rows = lines(screen)
        assert "verified" in rows[3] and "uploading 61 %" in rows[2]
        strip = "\n".join(lines(screen, BackupStrip))
        assert "1.8 GB of 2.9 GB" in strip and "left" in strip
        await until(lambda: "lease 19 h 59" in lines(screen, CheckpointHeader)[0].replace("20 h 00", "19 h 59"), pilot)


async def test_keys_that_act_elsewhere(house: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from engine.backup import control

    monkeypatch.setattr("engine.keeper.ensure", lambda _workspace: None)
    fake = with_checkpoints(house, live=False)
    app = RunApp(fake.run)
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await opened(app, pilot)
        await pilot.press("u")
        await until(lambda: control.read(fake.workspace).paused, pilot)
        await pilot.press("u")
        await until(lambda: not control.read(fake.workspace).paused, pilot)
        await pilot.press("w")
        await until(lambda: isinstance(app.screen, Ask), pilot)
        await pilot.press("ctrl+u", *"50M", "enter")
        await until(lambda: control.read(fake.workspace).limit == 50e6, pilot)
        await until(lambda: app.screen is screen, pilot)
        await pilot.press("l")
        await until(lambda: isinstance(app.screen, Report), pilot)
        assert app.screen.title_text.startswith("no: ")  # type: ignore[attr-defined]
        await pilot.press("escape")
        await until(lambda: app.screen is screen, pilot)
        await pilot.press("b")  # it has no remote: the command's own error
        await until(lambda: type(app.screen).__name__ == "Detail", pilot, limit=60)
