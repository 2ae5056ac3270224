"""The lease: how its end is read, how its clock counts, what the plan reckons with, what is refused."""

from __future__ import annotations

import datetime
import time
from pathlib import Path
from typing import Any

import pytest

from engine import settings
from engine.backup.forecast import Band
from engine.errors import FtuiError, UsageError
from engine.files import read_json, write_json
from engine.lease import clock, disks, preemption, record, schedule, when
from engine.lease.autopilot import Autopilot
from engine.lease.clock import Now, anchored
from engine.lease.gather import Gatherer
from engine.lease.preemption import Preemption
from engine.lease.schedule import Work
from engine.run import leasetime
from engine.workspace import Workspace
from tests.support.backups import make_run
from tui.cli import main
from tui.sources.lease_source import LeaseLine, candidates

NOW = datetime.datetime(2026, 3, 10, 12, 0, tzinfo=datetime.UTC).timestamp()


@pytest.fixture
def workspace(house: Path) -> Workspace:
    return Workspace(house / "ft").prepare()


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("2026-12-31 23:59 Europe/Moscow", "2026-12-31T20:59:00+00:00"),
        ("2026-12-31T23:59:00Z", "2026-12-31T23:59:00+00:00"),
        ("2026-12-31 23:59 +03:00", "2026-12-31T20:59:00+00:00"),
        ("2026-12-31 23:59 UTC-5", "2027-01-01T04:59:00+00:00"),
        ("2026-12-31", "2026-12-31T00:00:00+00:00"),
        ("18:05", "2026-03-10T18:05:00+00:00"),
        ("9:05", "2026-03-11T09:05:00+00:00"),
        ("in 20h", "2026-03-11T08:00:00+00:00"),
        ("in 6d 3h", "2026-03-16T15:00:00+00:00"),
        ("in 2 days, 30 minutes", "2026-03-12T12:30:00+00:00"),
        ("1798761540", "2026-12-31T23:59:00+00:00"),
        ("1798761540000", "2026-12-31T23:59:00+00:00"),
        # the hour that comes twice: the earlier one; the hour that does not come: likewise
        ("2026-10-25 02:30 Europe/Berlin", "2026-10-25T00:30:00+00:00"),
        ("2026-03-29 02:30 Europe/Berlin", "2026-03-29T00:30:00+00:00"),
    ],
)
def test_an_end_as_people_write_it(utc: None, text: str, end: str) -> None:
    found = when.parse(text, NOW)
    assert found.end == datetime.datetime.fromisoformat(end).timestamp()
    assert found.relative == text.startswith("in ")
    assert bool(found.note) == ("Berlin" in text)


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("2026-12-31 23:59 Europe/Mosow", "Europe/Moscow"),
        ("2026-12-31 25:00", "in 20h"),
        ("in five minutes", "in 20h"),
        ("in 0h", "in 20h"),
        ("tomorrow", "file:PATH"),
        ("2020-01-01", "end of the lease"),
        ("2226-01-01", "check the year"),
        ("env:FTUI_NO_SUCH", "env:NAME"),
        ("file:/no/such", "env:NAME"),
        ("2026-12-31 23:59 ../../etc/passwd", "UTC"),
    ],
)
def test_what_is_no_end(utc: None, text: str, fix: str) -> None:
    with pytest.raises(UsageError) as caught:
        when.parse(text, NOW)
    assert fix in (caught.value.fix or "")


def test_a_provider_says_it(utc: None, house: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (house / "end").write_text("2026-03-11T08:00:00Z\n")
    monkeypatch.setenv("LEASE_END", "1773216000")
    assert when.parse(f"file:{house / 'end'}", NOW).end == when.parse("env:LEASE_END", NOW).end == 1773216000.0
    monkeypatch.setenv("LEASE_END", "in 20h")
    with pytest.raises(UsageError):  # it would never come
        when.parse("env:LEASE_END", NOW)


def at(seconds: float, *, wall: float = 0.0, boot: str = "a", boot_at: float = 0.0, synced: bool | None = None) -> Now:
    return Now(NOW + seconds + wall, seconds - boot_at + 50.0, boot, synced)


def test_a_clock_that_is_set_changes_nothing() -> None:
    anchor = anchored(36_000.0, at(0))
    for relative in (False, True):
        for jump in (-86_400.0, -30.0, 0.0, 30.0, 86_400.0):
            left = clock.left(NOW + 36_000, relative, anchor, at(3600, wall=jump))
            assert left.seconds == pytest.approx(32_400)
            assert left.moved == pytest.approx(jump)


def test_a_machine_that_slept_or_was_frozen() -> None:
    anchor = anchored(36_000.0, at(0))
    assert clock.left(NOW + 36_000, True, anchor, at(20_000)).seconds == 16_000, "CLOCK_BOOTTIME goes on in sleep"
    # frozen by its host for 5 hours: its own clocks stood still, then NTP mends the wall clock and says so
    frozen = Now(NOW + 20_000, 2_050.0, "a", True)
    assert clock.left(NOW + 36_000, False, anchor, frozen).seconds == 16_000
    assert clock.left(NOW + 36_000, True, anchored(36_000.0, at(0, synced=True)), frozen).seconds == 16_000


def test_a_wrong_clock_that_ntp_mended() -> None:
    wrong = anchored(36_000.0, at(0, wall=-7200))
    mended = at(60, synced=True)
    assert clock.left(NOW - 7200 + 36_000, True, wrong, mended).seconds == 35_940, "so many hours from when it was said"
    assert clock.left(NOW + 36_000, False, wrong, mended).seconds == 35_940, "a moment is that moment"


def test_after_a_reboot_going_back_gives_nothing() -> None:
    anchor = anchored(36_000.0, at(0))
    assert clock.left(NOW + 36_000, False, anchor, at(3600, boot="b", boot_at=3500)).seconds == 32_400
    assert clock.left(NOW + 36_000, False, anchor, at(3600, boot="b", wall=-86_400)).seconds == 36_000
    assert clock.left(NOW + 36_000, True, anchor, at(3600, boot="b", wall=-86_400)).seconds == 36_000


def test_the_clocks_of_this_machine() -> None:
    first = clock.now()
    assert abs(first.wall - time.time()) < 5 and first.boottime > 0 and first.boot_id
    assert clock.now().boottime >= first.boottime


def test_the_file_outlives_reboots_and_says_when_it_is_damaged(workspace: Workspace) -> None:
    assert record.read(workspace) is None and not record.clear(workspace)
    lease = record.save(workspace, when.When(NOW + 36_000, "in 10h", relative=True), at(0))
    assert record.read(workspace) == lease
    assert record.refresh(workspace, lease, at(10)) is lease, "not written anew each time"
    later = record.refresh(workspace, lease, at(3600, wall=5000))
    assert record.read(workspace) == later and later.anchor.remaining == 32_400
    rebooted = at(7200, wall=5000, boot="b", boot_at=7100)
    assert later.left(rebooted).seconds == 28_800, "the jump before the reboot is not counted"
    record.path(workspace).write_text('{"end": 1')
    with pytest.raises(FtuiError):
        record.read(workspace)
    assert main(["lease", "show"]) == 1
    assert record.clear(workspace) and record.read(workspace) is None


def test_a_providers_file_is_read_again(workspace: Workspace, house: Path) -> None:
    (house / "end").write_text(str(NOW + 3600))
    lease = record.save(workspace, when.parse(f"file:{house / 'end'}", NOW), at(0))
    (house / "end").write_text(str(NOW + 7200))
    assert record.refresh(workspace, lease, at(100)).left(at(100)).seconds == 7100
    (house / "end").unlink()
    assert record.refresh(workspace, record.read(workspace) or lease, at(200)).left(at(200)).seconds == 7000


BAND = Band(10e6, 20e6, 40e6)


def training(**given: Any) -> Work:
    known: dict[str, Any] = {
        "checkpoint": int(36e9), "checkpoint_files": 0, "stop_s": 100.0, "step": 950, "max_steps": 10_000,
        "eta_s": 90_500.0, "save_every": 1000.0, "keep": ("best", "last", "final"),
    }  # fmt: skip
    return schedule.training(Work("r", "s3:b", band=BAND), **{**known, **given})


def test_the_plan_reckons_with_the_saves_to_come() -> None:
    # a checkpoint takes an hour at the lowest rate, and comes every 2.8 hours: one may be unsent beside the stop's own
    plan = schedule.plan(80_000.0, [training()])
    assert 7200 < plan.need_s < 7200 * 1.1 + 700
    slow = schedule.plan(80_000.0, [training(save_every=100.0)])
    assert 10_800 < slow.need_s < 10_800 * 1.1 + 700, "here another one may be the best"
    assert 3600 < schedule.plan(80_000.0, [training(save_every=0.0)]).need_s < 3600 * 1.1 + 700
    assert plan.likely_s < plan.need_s / 1.8 and plan.latest_s > plan.safe_s
    ends = schedule.plan(200_000.0, [training(save_every=0.0)])
    assert ends.need_s > 7200, "it will be done before, with a final model"


def test_a_save_may_not_take_the_time_away() -> None:
    before = schedule.plan(9_000.0, [training(step=999)])
    after = schedule.plan(8_990.0, [replaced(training(step=1000), checkpoints=int(36e9))])
    assert after.safe_s >= before.safe_s - 1300, "what a save adds was reckoned with"


def replaced(work: Work, **changes: Any) -> Work:
    from dataclasses import replace

    return replace(work, **changes)


def test_nothing_to_save_needs_no_time() -> None:
    plan = schedule.plan(100.0, [Work("r", "s3:b", safe=True)])
    assert plan.need_s == 0 and plan.fits and plan.measured
    assert schedule.plan(100.0, [Work("r", None, live=True, stop_s=20)]).need_s == 620, "a save and the margin"


def autopilot(workspace: Workspace, works: list[Work], clocks: list[Now]) -> tuple[Autopilot, list[Any], list[str]]:
    told: list[Any] = []
    stopped: list[str] = []
    made = Autopilot(
        workspace,
        lambda kind, **fields: told.append((kind, fields)),
        works=lambda: works,
        stop=stopped.append,
        now=lambda: clocks[0],
    )
    return made, told, stopped


def test_it_warns_then_stops_then_says_what_is_safe(workspace: Workspace) -> None:
    works = [training(save_every=0.0, eta_s=9e9)]
    need = schedule.plan(1e5, works).need_s
    record.save(workspace, when.When(NOW + 1e5, "test"), at(0))
    clocks = [at(0)]
    pilot, told, stopped = autopilot(workspace, works, clocks)
    for second in (0, 1e5 - need - 3700, 1e5 - need - 3590, 1e5 - need - 3588):
        clocks[0] = at(second)
        assert pilot.look()
    assert [kind for kind, _fields in told] == ["lease_soon", "lease_soon", "lease_soon"][: len(told)]
    assert told[-1][1]["seconds"] == pytest.approx(3590, abs=3) and not stopped
    clocks[0] = at(1e5 - need - 3)
    pilot.look()
    assert stopped == ["r"] and told[-1][0] == "lease_stop"
    pilot, told, stopped = autopilot(workspace, works, clocks)  # the keeper was killed
    clocks[0] = at(1e5 - need)
    pilot.look()
    assert not stopped and not told, "it was asked a moment ago"
    works[0] = Work("r", "s3:b", checkpoints=5, files=1, band=BAND)
    clocks[0] = at(1e5 - need + 100)
    pilot.look()
    assert not told
    works[0] = Work("r", "s3:b", safe=True)
    clocks[0] = at(1e5 - need + 200)
    pilot.look()
    assert [kind for kind, _fields in told] == ["lease_safe"]
    clocks[0] = at(1e5 + 1)
    pilot.look()
    assert told[-1] == ("lease_ended", {"unsafe": [], "safe": ["r"]})
    clocks[0] = at(1e5 + 2)
    pilot.look()
    assert len(told) == 2


def test_a_longer_lease_begins_anew(workspace: Workspace) -> None:
    works = [training(save_every=0.0)]
    clocks = [at(0)]
    record.save(workspace, when.When(NOW + 1000, "test"), at(0))
    pilot, _told, stopped = autopilot(workspace, works, clocks)
    pilot.look()
    assert stopped == ["r"] and pilot.state["phase"] == "act"
    record.save(workspace, when.When(NOW + 1e6, "test"), at(10))
    clocks[0] = at(12)
    pilot.look()
    assert pilot.state["phase"] == "watch"


def test_what_cannot_be_read_is_not_safe(workspace: Workspace) -> None:
    record.save(workspace, when.When(NOW + 100, "test"), at(0))
    clocks = [at(0)]
    pilot, told, _stopped = autopilot(workspace, [], clocks)

    def broken() -> list[Work]:
        raise OSError(5, "Input/output error")

    pilot.works = broken
    for second in (0.0, 50.0, 101.0):
        clocks[0] = at(second)
        pilot.look()
    assert "lease_safe" not in [kind for kind, _fields in told] and not pilot.state["safe"]


def test_without_a_lease_there_is_nothing_to_watch(workspace: Workspace) -> None:
    pilot, told, _stopped = autopilot(workspace, [], [at(0)])
    assert not pilot.look() and not told and not pilot.path.exists()


def test_a_spot_notice_is_a_lease_of_minutes(workspace: Workspace, house: Path) -> None:
    notice = house / "notice"
    settings.save(preempt_file=str(notice), preempt_seconds=300)
    clocks = [at(0)]
    pilot, told, stopped = autopilot(workspace, [training()], clocks)
    assert not pilot.look() and not stopped
    notice.write_text("")
    clocks[0] = at(10)
    assert pilot.look()
    assert stopped == ["r"] and told[-1][1]["reason"] == "preempted"
    notice.unlink()
    assert Preemption(workspace).look(at(20)) == at(310).boottime, "what was said stands, after a restart too"


def test_a_notice_says_how_long() -> None:
    assert preemption._seconds("120", NOW) == 120
    assert preemption._seconds("in 2 min", NOW) == 120
    assert preemption._seconds('{"action": "terminate", "time": "2026-03-10T12:02:00Z"}', NOW) == 120
    assert preemption._seconds('{"time": "2026-03-10T09:02:00-03:00"}', NOW) == 120
    assert preemption._seconds("", NOW) is None


def test_a_command_asks_for_the_notice_without_a_shell(workspace: Workspace, house: Path) -> None:
    script = house / "ask"
    script.write_text('#!/bin/sh\n[ -e "$1" ] && echo 90\n')
    script.chmod(0o755)
    settings.save(preempt_command=f"{script} '{house}/a b;touch {house}/shell'")
    asks = Preemption(workspace)

    def wait(second: float) -> float | None:
        found = asks.look(at(second))
        if asks._child is not None:
            asks._child.wait()
            found = asks.look(at(second + 1))
        return found

    assert wait(0) is None
    (house / f"a b;touch {house}").mkdir(parents=True)
    (house / f"a b;touch {house}" / "shell").write_text("")
    assert wait(10) == at(11).boottime + 90
    assert not (house / "shell").exists()


def test_a_run_that_does_not_fit_before_the_end(workspace: Workspace) -> None:
    def remarks(hours: float, high: float | None = None) -> list[tuple[str, str]]:
        found = leasetime.remarks(workspace.root, {"backup": "s3:b/x"}, {"hours": hours, "high": high or hours}, 1.0)
        return [(finding.level, finding.key) for finding in found]

    assert remarks(1000) == []
    now = clock.now()
    record.save(workspace, when.When(now.wall + 10 * 3600, "in 10h", relative=True), now)
    assert remarks(5) == []
    assert remarks(5, 12) == [("warning", "lease")]
    assert remarks(9.9) == [("error", "lease")], "it must be sent, too"
    record.save(workspace, when.When(now.wall - 10, "in 10h", relative=True), now)
    assert remarks(0.1) == [("error", "lease")], "it has ended"


def test_the_run_command_asks_the_lease(workspace: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    now = clock.now()
    record.save(workspace, when.When(now.wall - 10, "in 10h", relative=True), now)
    assert main(["run", "demo", "--plan-only"]) == 3
    assert "lease of this server has ended" in capsys.readouterr().out
    record.clear(workspace)
    assert main(["run", "demo", "--plan-only"]) == 0


def test_disks_as_the_user_says(house: Path) -> None:
    folder = house / "disk"
    (folder / "scratch").mkdir(parents=True)
    disks.remember(folder, "persistent")
    disks.remember(folder / "scratch", "temporary")
    assert disks.persistence(folder / "x" / "y") == "persistent"
    assert disks.persistence(folder / "scratch" / "y") == "temporary"
    (house / "link").symlink_to(folder / "scratch")
    assert disks.persistence(house / "link" / "y") == "temporary"
    disks.remember(folder, "temporary")
    assert settings.load().persistent is None and disks.persistence(folder) == "temporary"
    assert disks.is_here(str(folder)) and not disks.is_here("s3:bucket")


def test_what_runs_have_to_do_from_their_folders(workspace: Workspace) -> None:
    make_run(workspace.root, "far", size=1 << 20, backup="s3:b/x")
    make_run(workspace.root.parent / "other", "near")
    (workspace.root.parent / "other" / "runs" / "near").rename(workspace.runs_dir / "near")
    works = {work.run: work for work in Gatherer(workspace).works()}
    assert works["far"].remote == "s3:b/x" and works["far"].checkpoints > 2 << 20 and not works["far"].safe
    assert works["near"].remote is None and not works["near"].safe and not works["near"].live


def test_the_command(workspace: Workspace, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.keeper.ensure", lambda _workspace: None)
    assert main(["lease", "show"]) == 0 and "no lease" in capsys.readouterr().out
    assert main(["lease", "set", "in", "20h", "--json"]) == 0
    out = capsys.readouterr().out
    assert '"given":"in 20h"' in out and '"fits":true' in out
    assert main(["lease", "set", "in 30h", "--dry-run"]) == 0
    lease = record.read(workspace)
    assert lease is not None and lease.text == "in 20h"
    capsys.readouterr()
    assert main(["lease", "show"]) == 0 and "in 20 h 00" in capsys.readouterr().out.replace("19 h 59", "20 h 00")
    assert main(["lease", "set", "never"]) == 2
    assert main(["lease", "clear"]) == 0 and record.read(workspace) is None


def test_a_lease_that_would_stop_a_run_at_once(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from engine.process import ProcessId

    monkeypatch.setattr("engine.keeper.ensure", lambda _workspace: None)
    run = make_run(workspace.root, "demo")
    live = {"state": "running", "supervisor": ProcessId.current().to_json(), "path": str(run.path)}
    write_json(run.state, (read_json(run.state) or {}) | live)
    assert main(["lease", "set", "in 5min"]) == 3
    assert "demo would be stopped at once" in capsys.readouterr().err and record.read(workspace) is None
    assert main(["lease", "set", "in 5min", "--force"]) == 0
    assert "too" in capsys.readouterr().out or record.read(workspace) is not None


def test_the_header_gives_up_words_before_the_lease() -> None:
    line = LeaseLine(("lease 3 h 21 · safe until 18:05", "lease 3 h 21"))
    found = candidates(["saved at step 5 · 40 steps at risk", "40 steps at risk"], line)
    assert found[0] == ("saved at step 5 · 40 steps at risk", "lease 3 h 21 · safe until 18:05")
    assert found[-1] == ("", "lease 3 h 21") and ("40 steps at risk", "lease 3 h 21") in found
    assert candidates(["a"], LeaseLine()) == [("a", "")]


def test_a_training_that_ended_slows_no_upload(tmp_path: Path) -> None:
    """What is sent after the stop has the whole link: the plan reckons with it."""
    from engine.backup.control import StepWatch

    path = tmp_path / "journal.jsonl"
    lines = [f'{{"event":"log","time":{at}.0,"step_time_s":{1.0 if at < 20 else 2.0}}}\n' for at in range(10, 40)]
    path.write_text("".join(lines))
    watch = StepWatch(path, 20.0)
    assert watch.look(40.0, 80e6) == 40e6
    with path.open("a") as file:
        file.write('{"event":"end","time":41.0}\n')
    assert watch.look(60.0, 40e6) is None
