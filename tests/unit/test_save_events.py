"""What the journal says of a save in the background, folded into the run's state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine.run.progress import Progress
from engine.workspace import RunFolder


def fold(*events: dict[str, Any]) -> tuple[Progress, dict[str, Any]]:
    progress = Progress(RunFolder(Path("/runs/one")), 1)
    changes: dict[str, Any] = {}
    for number, event in enumerate(events):
        progress.take([{"attempt": 1, "time": 100.0 + number, **event}])
        changes.update(progress.take_changes())
    return progress, changes


START = {"event": "start", "step": 0, "max_steps": 100}
BEGIN = {"event": "save_begin", "step": 4, "background": True}
STAGED = {"event": "save_staged", "step": 4, "blocked_s": 0.1}
SAVE = {"event": "save", "step": 4, "path": "checkpoints/checkpoint-4", "seconds": 3.0, "background": True}


def log(step: int) -> dict[str, Any]:
    return {"event": "log", "step": step, "loss": 1.0}


def test_the_run_trains_on_while_it_is_written():
    _progress, changes = fold(START, log(4), BEGIN)
    assert (changes["state"], changes["phase"]) == ("saving", "save")
    _progress, changes = fold(START, log(4), BEGIN, STAGED)
    assert (changes["state"], changes["phase"]) == ("running", "train")


def test_a_seal_that_comes_late_does_not_set_the_step_back():
    progress, changes = fold(START, log(4), BEGIN, STAGED, log(5), log(6), SAVE)
    assert (progress.step, changes["step"]) == (6, 6)
    assert changes["last_checkpoint"]["step"] == 4


def test_what_was_trained_while_it_was_written_is_not_saved():
    _progress, changes = fold(START, log(4), BEGIN, STAGED, log(5), log(6), SAVE)
    assert changes["unsaved_s"] == 4.0  # from the moment when the state was taken
    in_front = [{**BEGIN, "background": False}, {**SAVE, "background": False}]
    _progress, changes = fold(START, log(4), *in_front)
    assert changes["unsaved_s"] == 0.0


def test_one_that_failed_saves_nothing():
    failed = {"event": "save_failed", "step": 4, "reason": "No space left on device"}
    progress, changes = fold(START, log(4), BEGIN, STAGED, log(5), failed)
    assert changes["unsaved_s"] == 5.0
    assert progress.news[-1]["reason"] == "No space left on device"
