"""The store: what each file says ends in the snapshot; attempts, gaps, what is at risk; no change, no new snapshot."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import pytest

from tui.state.store import RunStore

STATE = {
    "state": "running",
    "phase": "train",
    "step": 5,
    "max_steps": 100,
    "started": 1000.0,
    "updated": 1010.0,
    "device": "cuda",
    "gpus": ["GPU-1"],
    "eta_s": 60.0,
    "last_checkpoint": {"step": 4, "path": "checkpoints/checkpoint-4", "time": 1008.0},
}


def log(step: int, loss: Any, attempt: int = 1, **more: Any) -> dict[str, Any]:
    return {"event": "log", "attempt": attempt, "time": 1000.0 + step, "step": step, "loss": loss, **more}


def start(step: int, attempt: int, max_steps: int = 100) -> dict[str, Any]:
    return {"event": "start", "attempt": attempt, "time": 1000.0, "step": step, "max_steps": max_steps}


def evaluation(step: int, value: Any, attempt: int = 1) -> dict[str, Any]:
    return {"event": "eval", "attempt": attempt, "time": 1000.0 + step, "step": step, "eval_loss": value}


def test_an_empty_store_has_a_snapshot() -> None:
    snapshot = RunStore("demo").snapshot()
    assert snapshot.name == "demo"
    assert snapshot.step == 0
    assert snapshot.numbers.loss is None
    assert len(snapshot.train) == 0
    assert snapshot.gpus == ()
    assert snapshot.host is None


def test_the_newest_line_gives_the_numbers() -> None:
    store = RunStore()
    store.feed([start(0, 1), log(1, 3.0), log(2, 2.5, learning_rate=1e-4, mfu=None, tokens_per_s=500, step_time_s=2.0)])
    snapshot = store.snapshot()
    assert (snapshot.step, snapshot.max_steps) == (2, 100)
    assert snapshot.numbers.loss == 2.5
    assert snapshot.numbers.learning_rate == 1e-4
    assert snapshot.numbers.tokens_per_s == 500
    assert snapshot.numbers.mfu is None
    assert snapshot.numbers.grad_norm is None


def test_nothing_new_is_the_same_snapshot() -> None:
    store = RunStore()
    store.feed([log(1, 3.0)])
    store.feed_state(STATE)
    before = store.snapshot()
    store.feed([])
    store.feed_events([])
    store.feed_hardware([])
    store.feed_state(dict(STATE))
    store.set_loading(None)
    assert store.snapshot() is before
    store.feed([log(2, 3.0)])
    assert store.snapshot() is not before
    assert store.snapshot().revision > before.revision


def test_a_resume_cuts_the_curve_at_its_step() -> None:
    store = RunStore()
    store.feed([start(0, 1), *(log(i, 9.0) for i in range(1, 11)), evaluation(5, 2.0), evaluation(10, 1.0)])
    assert store.snapshot().numbers.best_eval == 1.0
    store.feed([start(6, 2)])
    snapshot = store.snapshot()
    assert snapshot.train.steps.tolist() == [1, 2, 3, 4, 5, 6]
    assert snapshot.step == 6
    assert snapshot.attempt == 2
    assert (snapshot.numbers.best_eval, snapshot.numbers.best_eval_step) == (2.0, 5)
    store.feed([log(7, 1.0, attempt=2), log(8, 7.0, attempt=1), log(8, 2.0, attempt=2)])
    assert store.snapshot().train.values.tolist()[-2:] == [1.0, 2.0]


def test_null_losses_are_not_a_number() -> None:
    store = RunStore()
    store.feed([log(1, 2.0), log(2, None), {"event": "log", "attempt": 1, "time": 1.0, "step": 3}])
    snapshot = store.snapshot()
    assert len(snapshot.train) == 2
    assert math.isnan(snapshot.train.values[1])
    assert snapshot.step == 3
    store.feed([log(4, None)])
    assert math.isnan(store.snapshot().numbers.loss or 0.0)


@pytest.mark.parametrize(
    "line",
    [
        {},
        {"event": "log"},
        {"event": "log", "attempt": 1, "step": "seven", "loss": 1.0},
        {"event": "log", "attempt": "one", "step": 1, "loss": 1.0},
        {"event": "log", "attempt": 1, "step": 2, "loss": "high", "time": "now"},
        {"event": "eval", "attempt": 1, "step": None, "eval_loss": 3},
        {"event": "start", "attempt": 1, "step": None, "max_steps": "many"},
        {"event": 7, "attempt": 1},
    ],
)
def test_odd_lines_do_not_break_it(line: dict[str, Any]) -> None:
    store = RunStore()
    store.feed([log(1, 2.0), line, log(3, 1.0)])
    snapshot = store.snapshot()
    assert snapshot.train.steps[-1] == 3
    assert snapshot.numbers.loss == 1.0


def test_odd_states_and_samples_do_not_break_it() -> None:
    store = RunStore()
    store.feed_state({"state": 3, "step": "x", "gpus": "all", "error": "text", "last_checkpoint": 7, "started": None})
    store.feed_hardware([{"gpus": [None, {"index": None}, 3], "host": 3, "disk": None}])
    snapshot = store.snapshot()
    assert len(snapshot.gpus) == 1
    assert snapshot.gpus[0].memory_used is None
    assert snapshot.problem is None


def test_the_state_and_the_runs_own_gpus() -> None:
    store = RunStore()
    store.feed_state(STATE)
    gpus = [{"index": i, "uuid": f"GPU-{i}", "state": "ok", "memory_used": 5, "memory_total": 10} for i in range(3)]
    store.feed_hardware([{"time": 1.0, "gpus": gpus, "host": {"cpu": 20.0}, "disk": {"free": 7}}])
    snapshot = store.snapshot()
    assert [gpu.index for gpu in snapshot.gpus] == [1]
    assert snapshot.host is not None
    assert snapshot.host.cpu == 20.0
    store.feed_state({**STATE, "gpus": []})
    assert len(store.snapshot().gpus) == 3
    store.feed_state({**STATE, "gpus": [], "device": "cpu"})
    assert store.snapshot().gpus == ()


def test_what_is_at_risk() -> None:
    store = RunStore()
    store.feed_state(STATE)
    store.feed([start(0, 1), *(log(i, 1.0, step_time_s=2.0) for i in range(1, 5))])
    store.feed([{"event": "save", "attempt": 1, "time": 1004.5, "step": 4}])
    store.feed([log(i, 1.0, step_time_s=2.0) for i in range(5, 11)])
    snapshot = store.snapshot()
    assert (snapshot.safe_step, snapshot.at_risk_steps) == (4, 6)
    assert snapshot.at_risk_seconds == 5.5  # what passed, and not six times the newest step's time
    store.feed([{"event": "save", "attempt": 1, "time": 1011.0, "step": 12, "seconds": 1.0}])
    snapshot = store.snapshot()  # the journal knows it before state.json does, and before the next line of the log
    assert (snapshot.step, snapshot.safe_step, snapshot.at_risk_steps, snapshot.at_risk_seconds) == (12, 12, 0, 0.0)
    store.feed([start(4, 2)])
    assert store.snapshot().safe_step == 4
    store.feed_state({**STATE, "state": "done"})
    assert store.snapshot().at_risk_steps == 0


def test_a_lost_run_is_shown_as_lost_and_has_no_eta() -> None:
    store = RunStore()
    store.feed_state(STATE, "lost", 4)
    snapshot = store.snapshot()
    assert snapshot.state == "lost"
    assert not snapshot.live
    assert snapshot.resumable
    assert snapshot.safe_step == 4
    assert snapshot.eta_s is None
    store.feed_state(STATE, "lost", None)
    assert not store.snapshot().resumable


def test_events_of_both_files_newest_first() -> None:
    store = RunStore()
    store.feed([evaluation(5, 2.0), {"event": "save", "attempt": 1, "time": 1007.0, "step": 7}, evaluation(9, 1.5)])
    store.feed_events([{"event": "running", "time": 1000.5}, {"event": "checkpoint", "time": 1007.1, "step": 7}])
    store.feed_events([{"event": "gpu", "time": 1008.0, "index": 0, "what": "lost"}])
    events = store.snapshot().events
    assert [event["event"] for event in events] == ["eval", "gpu", "save", "eval", "running"]
    assert events[0]["best"] is True
    assert events[0]["previous"] == 2.0
    store.reset_events()
    assert [event["event"] for event in store.snapshot().events] == ["eval", "save", "eval"]


def test_an_eval_is_the_best_when_it_is_lower_than_all_before_it() -> None:
    store = RunStore()
    store.feed([evaluation(1, 2.0), evaluation(2, 2.5), evaluation(3, None), evaluation(4, 1.9)])
    assert [event["best"] for event in store.snapshot().events] == [True, False, False, False]
    assert store.snapshot().numbers.best_eval == 1.9


def test_state_and_sources_need_no_textual() -> None:
    code = (
        "import sys, tui.state.store, tui.sources.run_source, tui.sources.log_tail; assert 'textual' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_time_stands_still_when_the_files_do() -> None:
    store = RunStore()
    store.feed_state(STATE)
    assert store.snapshot().elapsed_s == 10.0
    store.feed([log(40, 1.0)])
    assert store.snapshot().elapsed_s == 40.0
    store.feed_state({**STATE, "state": "done", "ended": 1050.0})
    assert store.snapshot().elapsed_s == 50.0


def test_a_reset_forgets_the_journal_only() -> None:
    store = RunStore()
    store.feed_state(STATE)
    store.feed([log(50, 1.0)])
    store.reset_journal()
    snapshot = store.snapshot()
    assert len(snapshot.train) == 0
    assert snapshot.step == 5


def test_what_was_lost_and_the_time_between_two_attempts_are_not_at_risk() -> None:
    store = RunStore()
    store.feed_state(STATE)
    store.feed([start(0, 1), *(log(i, 1.0) for i in range(1, 11))])
    store.feed([{"event": "phase", "attempt": 2, "time": 5000.0, "phase": "load"}])
    resumed = {**STATE, "attempt": 2, "phase": "load", "step": 4, "unsaved_s": 0.0, "loss": 1.5, "tokens_per_s": None}
    store.feed_state(resumed)
    snapshot = store.snapshot()
    assert (snapshot.step, snapshot.at_risk_steps, snapshot.at_risk_seconds) == (4, 0, 0.0)
    begin = {**start(4, 2), "time": 5100.0}
    store.feed([begin, {**log(5, 1.0, 2), "time": 5103.0}])
    snapshot = store.snapshot()
    assert (snapshot.at_risk_steps, snapshot.at_risk_seconds) == (1, 3.0)


def test_while_the_next_attempt_loads_nothing_is_shown_as_if_it_trained() -> None:
    store = RunStore()
    store.feed_state({**STATE, "loss": 3.0})
    store.feed([start(0, 1)])
    store.feed([log(i, 10.0 - i, tokens_per_s=100.0, step_time_s=1.0, mfu=0.3) for i in range(1, 9)])
    assert store.snapshot().numbers.tokens_per_s == 100.0
    store.feed_state({**STATE, "attempt": 2, "phase": "load", "step": 4, "loss": 6.0})
    numbers = store.snapshot().numbers
    assert (numbers.tokens_per_s, numbers.step_time_s, numbers.mfu) == (None, None, None)
    assert numbers.loss == 6.0  # of the step that it goes on from
    store.feed([start(4, 2)])
    numbers = store.snapshot().numbers
    assert (numbers.loss, numbers.tokens_per_s) == (6.0, None)  # the journal says the same
    store.feed([log(5, 4.0, 2, tokens_per_s=50.0)])
    assert (store.snapshot().numbers.loss, store.snapshot().numbers.tokens_per_s) == (4.0, 50.0)


def test_the_time_of_earlier_attempts_counts_and_that_between_them_does_not() -> None:
    store = RunStore()
    store.feed_state({**STATE, "attempt": 2, "earlier_s": 90.0, "started": None})
    assert store.snapshot().elapsed_s == 90.0
    store.feed_state({**STATE, "attempt": 2, "earlier_s": 90.0, "started": 5000.0, "updated": 5030.0})
    assert store.snapshot().elapsed_s == 120.0
