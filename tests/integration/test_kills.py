"""kill -9 at any moment of training, saving, retiring and resuming: what counts as a checkpoint is always whole."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from engine.checkpoint import choice, ledger
from engine.journal import read_all
from engine.workspace import RunFolder
from tests.support import tiny_trainer
from tests.support.tiny_trainer import Life, SelfDestruct

pytestmark = [pytest.mark.heavy]


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "resolved.json").write_text("{}")
    return RunFolder(tmp_path / "run")


@pytest.fixture(scope="session", autouse=True)
def loaded() -> None:
    """torch and the trainer are loaded once; the ranks are forked."""
    from transformers import Trainer  # noqa: F401

    import engine.train.saving  # noqa: F401


def reference(tmp_path: Path, ranks: int) -> dict[int, float]:
    """The losses of a run that nobody disturbs."""
    folder = tmp_path / f"undisturbed-{ranks}"
    folder.mkdir()
    run = RunFolder(folder)
    assert tiny_trainer.wait(tiny_trainer.start(Life(run, 1, ranks=ranks))) == [0] * ranks
    return tiny_trainer.losses(run)


class Tally:
    """What the kills came to."""

    def __init__(self) -> None:
        self.kills = self.while_saving = self.ended = self.resumed = self.failed_saves = 0


def torture(run: RunFolder, *, kills: int, ranks: int, seed: int) -> Tally:
    """Start, kill, look, start again; and at the end let it finish."""
    chance = random.Random(seed)
    tally = Tally()
    attempt = 0
    while tally.kills < kills:
        attempt += 1
        life = Life(run, attempt, ranks=ranks, background=chance.choice((True, False)), steps=100_000)
        by_itself = chance.random() < 0.5
        at, victim = int(chance.expovariate(1 / 150)) + 1, chance.randrange(ranks)
        full = tiny_trainer.faults(chance, 0.1) if chance.random() < 0.4 else None

        def prepare(
            index: int, at: int = at, victim: int | None = victim if by_itself else None, full: Any = full
        ) -> None:
            if full is not None:
                full(index)
            if index == victim:
                SelfDestruct(at).install()

        life.prepare = prepare
        pids = tiny_trainer.start(life)
        began = time.monotonic()
        if not by_itself:
            if chance.random() < 0.7:  # else while it starts or resumes
                began_training(run, attempt, pids)
            time.sleep(chance.uniform(0.0, 0.5))
            os.kill(pids[chance.randrange(ranks)], signal.SIGKILL)
        first, deadline = None, began + 30
        while first is None and time.monotonic() < deadline:
            first = next((pid for pid in pids if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)), None)
            time.sleep(0.002)
        for pid in pids:  # the launcher ends the others
            os.kill(pid, signal.SIGKILL)
        codes = tiny_trainer.wait(pids)
        assert 0 not in codes
        tally.kills += 1
        tally.while_saving += any(p.name.startswith(".") for p in run.checkpoints.glob(".*")) if attempt else 0
        look(run, tally)
    tally.failed_saves = sum(e["event"] == "save_failed" for e in read_all(run.journal))
    return tally


def began_training(run: RunFolder, attempt: int, pids: list[int]) -> None:
    """Wait until the ranks of this attempt train, or one of them has ended."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if any(e["event"] == "start" and e["attempt"] == attempt for e in read_all(run.journal)):
            return
        if any(os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) for pid in pids):
            return
        time.sleep(0.005)


def look(run: RunFolder, tally: Tally) -> None:
    """After a kill: the newest whole checkpoint is at least the last that the journal calls saved."""
    sealed = tiny_trainer.sealed_steps(run)
    found = choice.choose(run.checkpoints) if run.checkpoints.is_dir() else choice.Choice(None)
    if sealed:
        assert found.entry is not None and found.exact
        assert found.entry.step >= sealed[-1]
        tally.resumed += 1
    assert list(tiny_trainer.everything_readable(run)) == []
    broken = [entry.path.name for entry in ledger.list(run.checkpoints) if entry.state == "broken"]
    assert broken == []


def finish(run: RunFolder, ranks: int, expected: dict[int, float]) -> None:
    """Let the run come to its end; it is the one that nobody disturbed, as far as that went."""
    newest = choice.choose(run.checkpoints).entry
    steps = max((newest.step if newest else 0) + 6, tiny_trainer.STEPS)
    assert tiny_trainer.wait(tiny_trainer.start(Life(run, 10_000, ranks=ranks, steps=steps))) == [0] * ranks
    got = tiny_trainer.losses(run)
    assert {step: got[step] for step in expected} == expected
    assert not [path for path in run.checkpoints.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("ranks", [1, 2])
def test_kills(run: RunFolder, tmp_path: Path, ranks: int) -> None:
    expected = reference(tmp_path, ranks)
    tally = torture(run, kills=12 if ranks == 1 else 5, ranks=ranks, seed=ranks)
    assert tally.resumed > 0
    finish(run, ranks, expected)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(("ranks", "kills"), [(1, 1000), (2, 150)])
def test_many_kills(run: RunFolder, tmp_path: Path, ranks: int, kills: int) -> None:
    expected = reference(tmp_path, ranks)
    tally = torture(run, kills=kills, ranks=ranks, seed=7)
    finish(run, ranks, expected)
    attempts = [e for e in read_all(run.journal) if e["event"] == "start"]
    print(f"{ranks} ranks: {vars(tally)}, {len(attempts)} starts, step {max(tiny_trainer.losses(run))}")
