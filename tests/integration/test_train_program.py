"""The training program for real: torchrun, ranks on the CPU, signals, saves, a full disk."""

from __future__ import annotations

import json
import os
import resource
import signal
from pathlib import Path

import pytest

from engine.checkpoint import ledger
from engine.files import read_json, write_json
from tests.support.train import Runs, losses

pytestmark = pytest.mark.heavy


def test_a_run_from_start_to_end(train_runs: Runs, tmp_path: Path) -> None:
    output = tmp_path / "out" / "adapter"
    run = train_runs.make(
        "whole", max_steps=6, save_strategy="steps", save_steps=2, save_total_limit=2, eval_strategy="steps",
        eval_steps=3, output_dir=str(output),
    )  # fmt: skip
    started = train_runs.start(run)
    assert started.finish() == 0, started.log()

    (start,) = started.events("start")
    doing = [event["doing"] for event in started.events("phase")]
    assert doing in (["builtin", "data", "libraries", "model"], ["data", "libraries", "model"])
    assert (start["event"], start["step"], start["max_steps"], start["device"]) == ("start", 0, 6, "cpu")
    assert start["global_batch_size"] == 2 and 0 < start["trainable_parameters"] < start["total_parameters"]
    logs = started.events("log")
    assert [event["step"] for event in logs] == [1, 2, 3, 4, 5, 6]
    assert all(event["step_time_s"] > 0 and event["tokens_per_s"] > 0 and event["loss"] > 0 for event in logs)
    assert all(event["memory_allocated"] is None and event["mfu"] is None for event in logs)  # a CPU tells neither
    assert [event["step"] for event in started.events("eval")] == [3, 6]
    assert all(event["eval_loss"] > 0 for event in started.events("eval"))
    assert [(e["step"], e["path"]) for e in started.events("save")] == [
        (n, f"checkpoints/checkpoint-{n}") for n in (2, 4, 6)
    ]
    (end,) = started.events("end")
    assert (end["outcome"], end["step"], end["saved_step"]) == ("done", 6, 6)

    # Tokens: what the data loader gave out, without padding.
    from datasets import load_from_disk

    rows = load_from_disk(str(run.data / "train"))
    shortest, longest = min(map(len, rows["input_ids"])), max(map(len, rows["input_ids"]))
    assert 12 * shortest <= logs[-1]["tokens_seen"] <= 12 * longest
    assert read_json(run.data / "data.json")["train"]["tokens"] == sum(map(len, rows["input_ids"]))

    kept = ledger.list(run.checkpoints)
    assert [(entry.step, entry.resumable) for entry in kept] == [(4, True), (6, True)]
    assert kept[-1].metrics["eval_loss"] == started.events("eval")[-1]["eval_loss"]
    assert ledger.problems(run.checkpoints, check_hash=True) == []
    state = json.loads((kept[-1].path / "trainer_state.json").read_text())
    assert ".staging" not in json.dumps(state)

    names = {path.name for path in run.final.iterdir()}
    assert {"adapter_model.safetensors", "adapter_config.json", "tokenizer.json", "chat_template.jinja"} <= names
    assert {path.name for path in output.iterdir()} == names
    environment = read_json(run.environment)
    assert environment["versions"]["torch"] and environment["data_sha256"]
    assert "\ntorch==" in (run.path / "requirements.txt").read_text()
    assert not (run.logs / "rank-0.error.json").exists()


def test_resume_continues_to_the_bit(train_runs: Runs) -> None:
    options = {"max_steps": 10, "eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 5}
    straight = train_runs.make("straight", **options)
    first = train_runs.start(straight)
    assert first.finish() == 0, first.log()
    # Another run of the same recipe takes the first one's checkpoint at 5 as its own.
    again = train_runs.make("again", **options)
    os.symlink(straight.data, again.data)
    checkpoint = straight.checkpoints / "checkpoint-5"
    second = train_runs.start(again, attempt=2, resume_from=checkpoint)
    assert second.finish() == 0, second.log()
    assert second.events("start")[0]["exact_resume"] is True
    whole, rest = losses(straight), losses(again)
    assert list(rest) == [6, 7, 8, 9, 10]
    assert rest == {step: whole[step] for step in rest}
    evals = [{e["step"]: e["eval_loss"] for e in started.events("eval")} for started in (first, second)]
    assert evals[1] == {step: evals[0][step] for step in (6, 8, 10)}


def test_two_ranks_stop_on_request_and_go_on(train_runs: Runs) -> None:
    run = train_runs.make("two", max_steps=40, gradient_accumulation_steps=2, global_batch_size=8)
    started = train_runs.start(run, nproc=2)
    started.step(2)
    write_json(run.request, {"format": 1, "id": 1, "do": "evaluate"})
    started.until(lambda: started.events("eval"))
    write_json(run.request, {"format": 1, "id": 2, "do": "save"})
    started.until(lambda: started.events("save"))
    write_json(run.request, {"format": 1, "id": 3, "do": "stop"})
    assert started.finish() == 0, started.log() + started.log(1)
    assert [(e["id"], e["do"]) for e in started.events("request")] == [(1, "evaluate"), (2, "save"), (3, "stop")]
    (end,) = started.events("end")
    assert end["outcome"] == "stopped" and end["saved_step"] == end["step"] < 40
    newest = ledger.newest(run.checkpoints)
    assert newest is not None and newest.step == end["step"] and newest.world_size == 2
    assert {"rng_state_0.pth", "rng_state_1.pth"} <= {path.name for path in newest.path.iterdir()}

    # The old request lies there still and must not stop the new attempt; this time one rank is killed.
    again = train_runs.start(run, nproc=2, attempt=2, resume_from=newest.path)
    again.until(lambda: any(e["attempt"] == 2 and e["step"] > end["step"] for e in again.events("log")))
    before = next(e["tokens_seen"] for e in again.events("log") if e["step"] == end["step"])
    assert next(e for e in again.events("log") if e["attempt"] == 2)["tokens_seen"] > before
    os.kill(again.ranks()[-1], signal.SIGKILL)
    assert again.finish() != 0
    assert again.gone()
    assert ledger.newest(run.checkpoints) is not None


@pytest.mark.parametrize("how", ["term", "kill"])
def test_the_launchers_end_saves_and_leaves_nobody(train_runs: Runs, how: str) -> None:
    run = train_runs.make(f"launcher-{how}", max_steps=5000, dataloader_num_workers=1)
    started = train_runs.start(run)
    started.step(3)
    started.process.send_signal(signal.SIGTERM if how == "term" else signal.SIGKILL)
    started.finish()
    assert started.gone(), started.log()
    (end,) = started.events("end")
    newest = ledger.newest(run.checkpoints)
    assert newest is not None and newest.step == end["saved_step"] == end["step"] and end["outcome"] == "stopped"
    assert not list(run.checkpoints.glob(".staging*"))


def test_a_full_disk_costs_the_checkpoint_and_not_the_run(train_runs: Runs) -> None:
    run = train_runs.make("full", max_steps=300, save_strategy="steps", save_steps=5, lora_r=64)
    started = train_runs.start(run)
    started.until(lambda: started.events("save"))
    (rank,) = started.ranks()
    # No file may grow past this: as on a full disk the writing of the weights fails, the journal still can.
    resource.prlimit(rank, resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
    failed = started.until(lambda: started.events("save_failed"))[0]
    assert failed["reason"]
    started.step(failed["step"] + 1)
    good = [event["step"] for event in started.events("save")]
    resource.prlimit(rank, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    write_json(run.request, {"format": 1, "id": 1, "do": "stop"})
    assert started.finish() == 0, started.log()
    (end,) = started.events("end")
    assert end["outcome"] == "stopped" and end["saved_step"] == end["step"]
    steps = {entry.step for entry in ledger.list(run.checkpoints) if entry.resumable}
    assert {*good, end["saved_step"]} <= steps and failed["step"] not in steps


def test_a_signal_while_loading_ends_at_once(train_runs: Runs) -> None:
    run = train_runs.make("early", max_steps=5)
    started = train_runs.start(run)
    started.until(lambda: run.journal.exists() and started.ranks())
    started.process.send_signal(signal.SIGTERM)
    started.finish(30)
    assert started.gone(10)
    assert [event["outcome"] for event in started.events("end")] in (["stopped"], [])
    assert not started.events("log")


@pytest.mark.parametrize(
    ("changes", "kind", "where"),
    [
        ({"dataset_path": "/nowhere/train.jsonl"}, "no_dataset", "/nowhere/train.jsonl"),
        ({"model_name_or_path": "/nowhere"}, "no_model", "/nowhere"),
    ],
)
def test_a_known_error_is_one_clear_message(train_runs: Runs, changes: dict[str, str], kind: str, where: str) -> None:
    run = train_runs.make(kind, max_steps=2, **changes)
    started = train_runs.start(run)
    assert started.finish() != 0
    error = read_json(run.logs / "rank-0.error.json")
    assert (error["kind"], error["where"], error["attempt"]) == (kind, where, 1)
    assert error["message"] and error["fix"] and "Traceback" not in error["message"]
    assert [event["outcome"] for event in started.events("end")] == ["failed"]
