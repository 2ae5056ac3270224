"""Rows in tokens: what TRL makes of the same rows, token by token; what is split, packed, cut, kept and refused."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import load_from_disk

from engine.errors import FtuiError, UsageError
from engine.files import read_json
from engine.journal import read_all
from tests.support import tokenizing
from tests.support.tokenizing import CHATML, MISTRAL, job_of, prepared, random_rows, template_text, trl_rows

pytestmark = pytest.mark.heavy

# Of each family: beginning and end tokens, and its template; those without marks are trained with TRL's form.
FAMILIES: dict[str, tuple[str | None, str, str]] = {
    "qwen3": (None, "<|im_end|>", "qwen3"),
    "llama3": ("<|begin_of_text|>", "<|eot_id|>", "llama3"),
    "gemma": ("<bos>", "<eos>", "gemma"),
    "gemma3": ("<bos>", "<eos>", "gemma3"),
    "mistral": ("<s>", "</s>", MISTRAL),
    "chatml": (None, "<|im_end|>", CHATML),
}
TOOL = {"type": "function", "function": {"name": "add", "description": '<adds> "и"', "parameters": {"type": "object"}}}
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 2}}}
TOOL_ROW = {
    "messages": [
        {"role": "user", "content": "add"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "5"},
        {"role": "assistant", "content": "It is 5."},
    ],
    "tools": [TOOL],
}


@pytest.fixture(scope="module")
def tokenizer_json() -> str:
    chance = random.Random(1)
    return tokenizing.bpe([tokenizing.text(chance, 30) for _ in range(400)])


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, tokenizer_json: str) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    made = {}
    for name, (bos, eos, template) in FAMILIES.items():
        text = template if "{" in template else template_text(template)
        made[name] = tokenizing.make_model(root / name, tokenizer_json, text, bos, eos)
        (made[name] / "config.json").write_text('{"model_type": "qwen3"}')
    return made


def ours(job: Any, name: str = "train") -> list[dict[str, Any]]:
    return list(load_from_disk(str(job.run.data / name)))


def same(found: list[dict[str, Any]], wanted: Any) -> None:
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert one["input_ids"] == other["input_ids"]
        assert one["labels"] == other["labels"]


@pytest.mark.parametrize("name", FAMILIES)
def test_conversations_are_those_of_trl_token_by_token(name: str, models: dict[str, Path], tmp_path: Path) -> None:
    rows = random_rows(random.Random(name), 40, system=name not in ("gemma",))
    if name == "qwen3":
        rows.append(TOOL_ROW)  # the first row has no tools: they must not get lost
    for number, (masked, mode) in enumerate([(True, "keep_start"), (True, "keep_end"), (False, "keep_start")]):
        options = {"assistant_only_loss": masked, "truncation_mode": mode, "max_length": 400}
        job = job_of(tmp_path, rows, models[name], **options)
        document = prepared(job)
        assert document["encoder"] == "workers" and document["train"]["assistant_only_loss"] is masked, number
        same(ours(job), trl_rows(models[name], rows, **options))
    if name == "qwen3":
        tokens = ours(job)[-1]["input_ids"]
        from transformers import AutoTokenizer

        assert "<adds>" in AutoTokenizer.from_pretrained(str(models[name])).decode(tokens)


@pytest.mark.parametrize("kind", ["plain", "messages", "text"])
def test_other_forms_are_those_of_trl(kind: str, models: dict[str, Path], tmp_path: Path) -> None:
    chance = random.Random(3)
    rows: list[dict[str, Any]] = []
    for row in random_rows(chance, 30, system=False):
        turns = row["messages"]
        if kind == "text":
            rows.append({"text": turns[0]["content"]})
        elif kind == "plain":
            rows.append({"prompt": turns[0]["content"] + " ", "completion": turns[1]["content"]})
        else:
            rows.append({"prompt": turns[:-1], "completion": turns[-1:]})
    for options in ({}, {"completion_only_loss": False}) if kind != "text" else ({},):
        masked = {"assistant_only_loss": True} if kind == "messages" else {}
        job = job_of(tmp_path, rows, models["llama3"], **masked, **options)
        prepared(job)
        same(ours(job), trl_rows(models["llama3"], rows, max_length=64, **masked, **options))


def test_preferences_are_those_of_trl(models: dict[str, Path], tmp_path: Path) -> None:
    from types import SimpleNamespace

    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl import DPOConfig, DPOTrainer

    chance = random.Random(4)
    turns = [[turn["content"] for turn in row["messages"]] for row in random_rows(chance, 30, system=False)]
    plain = [{"prompt": t[0] + " ", "chosen": t[1] + " one", "rejected": t[1] + " two"} for t in turns]
    chat = [
        {
            "prompt": [{"role": "user", "content": row["prompt"]}],
            **{side: [{"role": "assistant", "content": row[side]}] for side in ("chosen", "rejected")},
        }
        for row in plain
    ]
    tokenizer = AutoTokenizer.from_pretrained(str(models["qwen3"]))
    arguments = DPOConfig(output_dir=str(tmp_path / "out"), use_cpu=True, bf16=False, report_to=[], max_length=1000)
    columns = ("prompt_ids", "chosen_ids", "rejected_ids")
    for rows in (plain, chat):
        job = job_of(tmp_path, rows, models["qwen3"], task="dpo", max_length=1000)
        document = prepared(job)
        trainer = SimpleNamespace(_tokenizer=tokenizer)
        wanted = DPOTrainer._prepare_dataset(trainer, Dataset.from_list(rows), tokenizer, arguments, "train")
        assert [{c: row[c] for c in columns} for row in ours(job)] == [{c: row[c] for c in columns} for row in wanted]
        assert document["train"]["tokens"] == sum(len(row[c]) for row in ours(job) for c in columns)
    short = job_of(tmp_path, chat, models["qwen3"], task="dpo", max_length=60)
    document = prepared(short)
    assert document["dropped"] > 0 and document["train"]["rows"] == len(ours(short)) == 30 - document["dropped"]
    assert all(
        (row["chosen_ids"][: 60 - len(row["prompt_ids"])]) != row["rejected_ids"][: 60 - len(row["prompt_ids"])]
        for row in ours(short)
    )


def test_several_processes_make_the_same_files_as_one(models: dict[str, Path], tmp_path: Path) -> None:
    rows = random_rows(random.Random(5), 6000)  # three blocks
    one = job_of(tmp_path, rows, models["chatml"], dataset_num_proc=1, test_size=0.1)
    first = prepared(one)
    two = job_of(
        tmp_path / "other",
        one.run.path.parent.parent / "rows.jsonl",
        models["chatml"],
        dataset_num_proc=2,
        test_size=0.1,
    )
    done = tokenizing.run_tokenize(two, sys.executable, "-c", "print('trains')")
    assert (done.returncode, done.stdout.strip()) == (0, "trains"), done.stderr
    second = read_json(two.run.data / "data.json")
    assert first["train"] == second["train"] and not second["cached"]
    for name in ("train", "eval"):
        arrow = "data-00000-of-00001.arrow"
        assert (one.run.data / name / arrow).read_bytes() == (two.run.data / name / arrow).read_bytes()
    assert (one.run.data / "held_out.jsonl").read_bytes() == (two.run.data / "held_out.jsonl").read_bytes()


def test_the_split_is_exact_and_keeps_rows_on_their_side(models: dict[str, Path], tmp_path: Path) -> None:
    rows = random_rows(random.Random(6), 200)
    job = job_of(tmp_path, rows, models["chatml"], test_size=0.1, max_length=1000)
    document = prepared(job)
    assert (document["train"]["rows"], document["eval"]["rows"]) == (180, 20)
    held_out = [json.loads(line) for line in (job.run.data / "held_out.jsonl").read_text().splitlines()]
    assert len(held_out) == 20 and all(row in rows for row in held_out)
    wanted = {
        json.dumps(row["input_ids"])
        for row in trl_rows(models["chatml"], held_out, max_length=1000, assistant_only_loss=True)
    }
    assert {json.dumps(row["input_ids"]) for row in ours(job, "eval")} == wanted
    more = job_of(
        tmp_path, [*random_rows(random.Random(7), 20), *rows], models["chatml"], test_size=0.1, max_length=1000
    )
    prepared(more)
    again = [json.loads(line) for line in (more.run.data / "held_out.jsonl").read_text().splitlines()]
    assert len([row for row in held_out if row in again]) >= 14


def test_packing_keeps_rows_whole_and_fills_sequences(models: dict[str, Path], tmp_path: Path) -> None:
    rows = random_rows(random.Random(8), 300)
    plain = job_of(tmp_path, rows, models["chatml"], max_length=256)
    prepared(plain)
    packed = job_of(tmp_path, rows, models["chatml"], max_length=256, packing=True)
    document = prepared(packed)
    assert document["train"]["fill"] > 0.97
    apart = []
    for sequence in ours(packed):
        assert sum(sequence["seq_lengths"]) == len(sequence["input_ids"]) <= 256
        start = 0
        for length in sequence["seq_lengths"]:
            piece = slice(start, start + length)
            apart.append((sequence["input_ids"][piece], sequence["labels"][piece]))
            start += length
    whole = [(row["input_ids"], [-100, *row["labels"][1:]]) for row in ours(plain)]
    assert sorted(apart) == sorted(whole)
    theirs = trl_rows(models["chatml"], rows, max_length=256, packing=True, assistant_only_loss=True)
    assert document["train"]["sequences"] <= len(theirs)


@pytest.mark.parametrize("strategy", ["bfd_split", "wrapped"])
def test_strategies_that_lose_no_token(strategy: str, models: dict[str, Path], tmp_path: Path) -> None:
    rows = [{"text": row["messages"][0]["content"]} for row in random_rows(random.Random(9), 100)]
    whole = job_of(tmp_path, rows, models["chatml"], max_length=None)
    prepared(whole)
    job = job_of(
        tmp_path, rows, models["chatml"], max_length=32, packing=True, packing_strategy=strategy, task="pretrain",
        eval_packing=False, test_size=0.1,
    )  # fmt: skip
    document = prepared(job)
    tokens = [token for row in ours(job) for token in row["input_ids"]]
    evaluated = ours(job, "eval")
    assert all(len(row["input_ids"]) <= 32 for row in [*ours(job), *evaluated])
    if strategy == "wrapped":
        assert all(len(row["input_ids"]) == 32 for row in ours(job)[:-1])
    everything = sum(len(row["input_ids"]) for row in ours(whole))
    held_out = [json.loads(line)["text"] for line in (job.run.data / "held_out.jsonl").read_text().splitlines()]
    lengths = {row["text"]: len(tokens["input_ids"]) for row, tokens in zip(rows, ours(whole), strict=True)}
    assert len(tokens) == everything - sum(lengths[text] for text in held_out) == document["train"]["tokens"]


def test_what_is_beyond_max_length_is_counted(models: dict[str, Path], tmp_path: Path) -> None:
    short = {"messages": [{"role": "user", "content": "why"}, {"role": "assistant", "content": "tea"}]}
    long_question = {"messages": [{"role": "user", "content": "egg " * 100}, {"role": "assistant", "content": "tea"}]}
    long_answer = {"messages": [{"role": "user", "content": "egg"}, {"role": "assistant", "content": "tea " * 100}]}
    job = job_of(tmp_path, [short, long_question, long_answer], models["chatml"])
    document = prepared(job)
    assert (document["train"]["rows"], document["dropped"], document["truncated"]) == (2, 1, 1)
    (event,) = [event for event in read_all(job.run.journal) if event["event"] == "data"]
    assert event["dropped"] == 1 and event["train"]["tokens"] == document["train"]["tokens"]
    with pytest.raises(UsageError) as caught:
        prepared(job_of(tmp_path, [long_question] * 3, models["chatml"]))
    assert caught.value.kind == "nothing_to_train" and "max_length" in str(caught.value.fix)


def test_a_template_that_refuses_a_row_names_it(models: dict[str, Path], tmp_path: Path) -> None:
    good = random_rows(random.Random(10), 8, system=False)
    bad = {
        "messages": [
            {"role": "assistant", "content": "I begin"},
            {"role": "user", "content": "why"},
            *good[0]["messages"],
        ]
    }
    with pytest.raises(UsageError) as caught:
        prepared(job_of(tmp_path, [*good, bad, *good], models["mistral"]))
    assert caught.value.where is not None and caught.value.where.endswith("rows.jsonl:9")
    assert "roles must alternate" in caught.value.what
    job = job_of(tmp_path, [*good, bad, *good], models["mistral"], skip_bad_rows=True)
    document = prepared(job)
    assert document["train"]["rows"] == 16 and document["left_out"]["rows"] == 1


def test_templates_without_marks_are_refused_or_trained_whole(
    models: dict[str, Path], tmp_path: Path, tokenizer_json: str
) -> None:
    plain = CHATML.replace("{% generation %}", "").replace("{% endgeneration %}", "")
    model = tokenizing.make_model(tmp_path / "model", tokenizer_json, plain, None, "<|im_end|>")
    (model / "config.json").write_text("{}")
    rows = random_rows(random.Random(11), 5)
    with pytest.raises(UsageError) as caught:
        prepared(job_of(tmp_path, rows, model, assistant_only_loss=True))
    assert caught.value.kind == "template" and "chat_template_path" in str(caught.value.fix)
    job = job_of(tmp_path, rows, model)
    assert prepared(job)["train"]["assistant_only_loss"] is False
    same(ours(job), trl_rows(model, rows, max_length=64))
    broken = tmp_path / "broken.jinja"
    broken.write_text("{% for m in messages %}")
    with pytest.raises(UsageError, match="broken"):
        prepared(job_of(tmp_path, rows, model, chat_template_path=str(broken)))


def test_a_tokenizer_that_does_more_than_its_json_says_encodes_itself(
    models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import PreTrainedTokenizerFast

    from engine.train.tokenize import text

    class Own(PreTrainedTokenizerFast):
        def apply_chat_template(self, conversation: Any, **options: Any) -> Any:
            upper = [{**turn, "content": turn["content"].upper()} for turn in conversation]
            return super().apply_chat_template(upper, **options)

    monkeypatch.setattr("engine.train.source.load_tokenizer", lambda _job, path: Own.from_pretrained(path))
    rows = random_rows(random.Random(12), 10)
    job = job_of(tmp_path, rows, models["chatml"], max_length=None)
    assert prepared(job)["encoder"] == "tokenizer"
    tokenizer = Own.from_pretrained(str(models["chatml"]))
    wanted = [tokenizer.apply_chat_template(row["messages"], return_dict=True)["input_ids"] for row in rows]
    assert [row["input_ids"] for row in ours(job)] == wanted
    assert text.Reference is not None


def test_the_cache_gives_the_same_rows_and_a_run_is_whole_without_it(models: dict[str, Path], tmp_path: Path) -> None:
    import shutil

    rows = random_rows(random.Random(13), 50)
    first = job_of(tmp_path, rows, models["chatml"], test_size=0.1, max_length=1000)
    assert prepared(first)["cached"] is False
    moved = tmp_path / "elsewhere.jsonl"
    shutil.copy(tmp_path / "rows.jsonl", moved)
    second = job_of(tmp_path, moved, models["chatml"], test_size=0.1, max_length=1000)
    document = prepared(second)
    assert document["cached"] is True and document["sources"][0]["path"] == str(moved)
    assert ours(first) == ours(second) and ours(first, "eval") == ours(second, "eval")
    shutil.rmtree(tmp_path / "cache")
    shutil.rmtree(first.run.path)
    assert len(ours(second)) == 45 and not any(path.is_symlink() for path in second.run.data.rglob("*"))
    for change in ({"max_length": 32}, {"seed": 1}, {"assistant_only_loss": False}):
        assert (
            prepared(job_of(tmp_path, moved, models["chatml"], **{"test_size": 0.1, "max_length": 1000, **change}))[
                "cached"
            ]
            is False
        )


def test_a_resume_reads_the_runs_own_rows_and_never_makes_others(models: dict[str, Path], tmp_path: Path) -> None:
    import dataclasses

    from engine.train import data

    rows = random_rows(random.Random(14), 20)
    job = job_of(tmp_path, rows, models["chatml"])
    prepared(job)
    before = ours(job)
    (tmp_path / "rows.jsonl").write_text("")
    resumed = dataclasses.replace(job, rank=dataclasses.replace(job.rank, resume_from=tmp_path))
    assert prepared(resumed) == data.document(resumed) == read_json(job.run.data / "data.json")
    assert ours(job) == before
    (job.run.data / "data.json").unlink()
    with pytest.raises(FtuiError) as caught:
        prepared(resumed)
    assert caught.value.kind == "data_lost"


def test_lengths_are_known_without_reading_tokens(models: dict[str, Path], tmp_path: Path) -> None:
    from engine.train import data

    job = job_of(tmp_path, random_rows(random.Random(15), 30), models["chatml"])
    prepared(job)
    train, evaluation = data.load(job)
    assert evaluation is None
    assert np.array_equal(data.lengths(train), [len(row["input_ids"]) for row in train])


def test_an_error_is_told_as_the_ranks_tell_theirs_and_nothing_is_trained(
    models: dict[str, Path], tmp_path: Path
) -> None:
    good = random_rows(random.Random(16), 3)
    job = job_of(tmp_path, [*good, {"messages": []}], models["chatml"])
    done = tokenizing.run_tokenize(job, sys.executable, "-c", "print('trains')")
    assert done.returncode == 1 and "trains" not in done.stdout
    error = read_json(job.run.logs / "rank-0.error.json")
    assert error["kind"] == "bad_row" and error["where"].endswith("rows.jsonl:4") and error["attempt"] == 1
    assert [event["outcome"] for event in read_all(job.run.journal) if event["event"] == "end"] == ["failed"]
    assert not (job.run.data / "data.json").exists() and not (job.run.data / ".work").exists()
