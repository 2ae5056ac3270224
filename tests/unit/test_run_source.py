"""Following a run folder: partial lines, truncation, rotation, long journals, runs whose supervisor is gone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engine.files import write_json
from tests.support import fake_run
from tui.sources import run_source
from tui.sources.run_source import RunSource, TailReader


@pytest.fixture
def fake(house: Path) -> fake_run.FakeRun:
    run = fake_run.FakeRun(house / "ft", gpus=2, max_steps=1000)
    run.begin()
    run.train(fake_run.losses(100), eval_every=50)
    run.sample()
    return run


def test_it_follows_what_is_written(fake: fake_run.FakeRun) -> None:
    source = RunSource(fake.run)
    snapshot = source.poll()
    assert (snapshot.name, snapshot.state, snapshot.step, snapshot.max_steps) == (fake.run.name, "running", 100, 1000)
    assert len(snapshot.train) == 100
    assert len(snapshot.evaluation) == 2
    assert [gpu.index for gpu in snapshot.gpus] == [0, 1]
    assert snapshot.loading is None
    assert source.poll() is snapshot
    fake.train([1.25])
    fake.checkpoint()
    fake.sample(gpu1={"state": "lost"})
    snapshot = source.poll()
    assert snapshot.step == 101
    assert snapshot.numbers.loss == 1.25
    assert snapshot.safe_step == 101
    assert [gpu.lost for gpu in snapshot.gpus] == [False, True]
    assert snapshot.events[0]["event"] == "save"


def test_an_empty_folder_is_a_lost_run_without_figures(house: Path) -> None:
    folder = fake_run.RunFolder(house / "nothing")
    source = RunSource(folder)
    snapshot = source.poll()
    assert snapshot.state == "lost"
    assert len(snapshot.train) == 0
    examined = source.poll()
    assert examined.post_mortem is not None and snapshot.post_mortem is None, "not before the first picture"
    assert source.poll() is examined


def test_a_partial_line_waits_for_its_end(fake: fake_run.FakeRun) -> None:
    source = RunSource(fake.run)
    source.poll()
    line = b'{"event":"log","attempt":1,"time":1.0,"step":101,"loss":0.5}\n'
    with open(fake.run.journal, "ab") as file:
        file.write(line[:30])
        file.flush()
        assert source.poll().step == 100
        file.write(line[30:])
    assert source.poll().numbers.loss == 0.5


def test_lines_that_are_not_json_are_skipped(fake: fake_run.FakeRun) -> None:
    with open(fake.run.journal, "ab") as file:
        file.write(b'\x00\xff nonsense\n[1,2]\n{"event":"log","attempt":1,"step":101,"loss":0.5}\n')
    assert RunSource(fake.run).poll().step == 101


def test_a_truncated_journal_is_read_again(fake: fake_run.FakeRun) -> None:
    source = RunSource(fake.run)
    assert source.poll().step == 100
    lines = fake.run.journal.read_bytes().splitlines(keepends=True)
    with open(fake.run.journal, "r+b") as file:
        file.truncate(sum(map(len, lines[:11])))
    snapshot = source.poll()
    assert snapshot.step == 10
    assert len(snapshot.train) == 10


def test_a_replaced_journal_is_read_again(fake: fake_run.FakeRun) -> None:
    source = RunSource(fake.run)
    source.poll()
    other = fake.run.path / "other"
    fake_run.write_journal(other, 500)
    os.replace(other, fake.run.journal)
    snapshot = source.poll()
    assert (len(snapshot.train), len(snapshot.evaluation)) == (500, 0)


def test_a_run_without_its_supervisor_is_lost(house: Path) -> None:
    fake = fake_run.lost(house / "ft")
    source = RunSource(fake.run)
    snapshot = source.poll()
    assert snapshot.state == "lost"
    assert snapshot.safe_step == 400
    examined = source.poll()
    assert examined.post_mortem is not None and examined.post_mortem.fixes[0].command == "ftui resume lost-run"
    assert source.poll() is examined
    fake.write_state(supervisor=fake_run.own_identity())
    alive = source.poll()
    assert (alive.state, alive.post_mortem) == ("running", None)


def test_a_damaged_checkpoint_is_not_promised(house: Path) -> None:
    fake = fake_run.lost(house / "ft")
    (fake.run.checkpoints / "checkpoint-400" / "optimizer.pt").write_text("cut")
    snapshot = RunSource(fake.run).poll()
    assert snapshot.safe_step is None
    assert not snapshot.resumable


def test_a_failed_run_says_why(house: Path) -> None:
    snapshot = RunSource(fake_run.failed(house / "ft").run).poll()
    assert snapshot.state == "failed"
    assert snapshot.problem is not None
    assert "out of memory" in snapshot.problem.message
    assert snapshot.problem.fix
    assert snapshot.events[0]["event"] == "failed"


def test_a_state_file_that_is_gone_or_torn(fake: fake_run.FakeRun) -> None:
    source = RunSource(fake.run)
    source.poll()
    fake.run.state.write_bytes(b'{"state": "runn')
    assert source.poll().state == "lost"
    write_json(fake.run.state, fake.state)
    assert source.poll().state == "running"


def test_a_long_journal_is_shown_coarsely_and_then_in_full(
    fake: fake_run.FakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_source, "PREVIEW_FROM", 1024 * 1024)
    fake_run.write_journal(fake.run.journal, 12_000)
    source = RunSource(fake.run)
    first = source.poll()
    assert first.loading == 0.0
    assert source.more
    assert first.state == "running"
    assert first.gpus
    assert first.step == 12_000
    assert 1000 < len(first.train) < 12_000
    assert first.train.steps[0] < 100
    gaps = first.train.steps[1:] - first.train.steps[:-1]
    assert gaps.max() < 12_000 / 100  # the whole length is covered
    polls = 0
    snapshot = first
    while source.more:
        snapshot = source.poll(budget_s=0.0)
        polls += 1
        assert snapshot.train.steps[-1] == 12_000  # never a half curve
    assert polls > 5
    assert snapshot.loading is None
    assert len(snapshot.train) == 12_000
    assert snapshot.revision > first.revision
    assert source.poll() is snapshot


def test_a_journal_that_shrinks_while_it_is_loaded(fake: fake_run.FakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_source, "PREVIEW_FROM", 1024 * 1024)
    fake_run.write_journal(fake.run.journal, 12_000)
    source = RunSource(fake.run)
    source.poll()
    source.poll(budget_s=0.0)
    fake_run.write_journal(fake.run.journal, 20)
    while True:
        snapshot = source.poll()
        if not source.more:
            break
    assert len(snapshot.train) == 20
    assert snapshot.loading is None


def test_only_the_tail_of_the_hardware_file_is_read(fake: fake_run.FakeRun) -> None:
    for _ in range(300):
        fake.sample(used=1e9)
    fake.sample(used=2e9)
    reader = TailReader(fake.run.hardware, 8 * 1024)
    samples = reader.poll()
    assert 1 <= len(samples) < 20
    assert reader.bad_lines == 0
    assert samples[-1]["gpus"][0]["memory_used"] == 2e9
    assert reader.poll() == []


def test_a_rotated_hardware_file_is_read_from_its_start(fake: fake_run.FakeRun) -> None:
    source = RunSource(fake.run)
    source.poll()
    os.replace(fake.run.hardware, fake.run.hardware.with_suffix(".jsonl.1"))
    assert source.poll().gpus
    fake.sample(used=12e9)
    assert source.poll().gpus[0].memory_used == 12e9


def test_a_rotated_hardware_file_longer_than_the_tail_leaves_no_torn_line(fake: fake_run.FakeRun) -> None:
    reader = TailReader(fake.run.hardware, 4096)
    reader.poll()
    for _ in range(50):
        fake.sample()
    assert reader.poll()
    assert reader.bad_lines == 0


def test_an_unreadable_file_is_an_error_to_show(fake: fake_run.FakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: object, **_kwargs: object) -> int:
        raise PermissionError(13, "Permission denied", str(fake.run.journal))

    source = RunSource(fake.run)
    monkeypatch.setattr("engine.journal.os.open", refuse)
    with pytest.raises(PermissionError):
        source.poll()
