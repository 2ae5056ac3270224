"""A resume in the middle of an epoch goes on with the rows that would have come, packed or grouped by length."""

from __future__ import annotations

import os

import pytest

from engine.files import read_json
from tests.support.train import Runs

pytestmark = pytest.mark.heavy

LENGTHS = {"train_sampling_strategy": "group_by_length", "per_device_train_batch_size": 16}
PACKED = {"packing": True, "max_length": 256, "per_device_train_batch_size": 1}


@pytest.mark.parametrize("how", [LENGTHS, pytest.param(PACKED, marks=pytest.mark.soak)], ids=["grouped", "packed"])
def test_the_order_of_rows_survives_a_resume_to_the_bit(train_runs: Runs, how: dict[str, object]) -> None:
    options = {"max_steps": 8, "save_strategy": "steps", "save_steps": 4, "test_size": 0.0, "max_length": 64, **how}
    name = "packed" if "packing" in how else "grouped"
    straight = train_runs.make(f"{name}-straight", **options)
    first = train_runs.start(straight)
    assert first.finish() == 0, first.log()
    (data,) = first.events("data")
    assert data["train"]["packed"] is ("packing" in how)
    again = train_runs.make(f"{name}-again", **options)
    os.symlink(straight.data, again.data)
    second = train_runs.start(again, attempt=2, resume_from=straight.checkpoints / "checkpoint-4")
    assert second.finish() == 0, second.log()
    assert not second.events("data"), "a resume makes no rows"
    whole = {event["step"]: (event["loss"], event["tokens_seen"]) for event in first.events("log")}
    rest = {event["step"]: (event["loss"], event["tokens_seen"]) for event in second.events("log")}
    assert list(rest) == [5, 6, 7, 8] and rest == {step: whole[step] for step in rest}
    document = read_json(straight.data / "data.json")
    assert 0 < whole[8][1] <= 2 * document["train"]["tokens"]
