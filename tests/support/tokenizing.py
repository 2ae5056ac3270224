"""Tokenizers and rows for tests of the data pipeline, and TRL's own preparation of the same rows."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from engine.files import write_json
from engine.train import job as jobs
from engine.train.events import Events
from engine.train.rank import Rank
from engine.train.tokenize import prepare
from engine.workspace import RunFolder
from tests.integration.test_data_mask import CHATML, CONTROL, MISTRAL, make_model, template_text

__all__ = ["CHATML", "MISTRAL", "bpe", "job_of", "make_model", "prepared", "random_rows", "template_text", "trl_rows"]

WORDS = (
    "egg", "water", "eight", "minutes", "boil", "naïve", "時間", "Привет", "мир", "👩‍🍳", "tea", "two  spaces",
    "and\n\nlines", "<think>", "tokens", "of", "language", "why", "how",
)  # fmt: skip


_number = itertools.count()


def bpe(sample: list[str], size: int = 800) -> str:
    """A byte-level tokenizer with the control tokens of well-known families, as JSON."""
    from tokenizers import ByteLevelBPETokenizer

    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator(sample, vocab_size=size, min_frequency=2, show_progress=False)
    trained.add_special_tokens(CONTROL)
    return str(trained.to_str())


def text(random: Any, words: int) -> str:
    """Words at random."""
    return " ".join(random.choice(WORDS) for _ in range(words))


def random_rows(random: Any, count: int, *, longest: int = 40, system: bool = True) -> list[dict[str, Any]]:
    """Conversations of one to three exchanges, some with a system turn."""
    rows = []
    for _ in range(count):
        messages = []
        if system and random.random() < 0.3:
            messages.append({"role": "system", "content": text(random, random.randint(1, 6))})
        for _turn in range(random.randint(1, 3)):
            messages.append({"role": "user", "content": text(random, random.randint(1, longest))})
            messages.append({"role": "assistant", "content": text(random, random.randint(1, longest))})
        rows.append({"messages": messages})
    return rows


def job_of(folder: Path, rows: list[Any] | Path, model: Path, **recipe: Any) -> jobs.Job:
    """A run in a workspace of its own that trains on these rows."""
    if isinstance(rows, list):
        path = folder / "rows.jsonl"
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    else:
        path = rows
    run = RunFolder(folder / "runs" / f"run-{next(_number)}")
    run.path.mkdir(parents=True)
    known = {
        "model_name_or_path": str(model), "dataset_path": str(path), "test_size": 0.0, "seed": 42, "max_length": 64,
        "eval_strategy": "no", "device": "cpu", **recipe,
    }  # fmt: skip
    skip = known.pop("skip_bad_rows", False)
    write_json(run.resolved, {"format": 1, "run": run.name, "recipe": known, "origin": {}, "skip_bad_rows": skip})
    return jobs.load(Rank(run, 0, 0, 1, 1, None))


def prepared(job: jobs.Job) -> dict[str, Any]:
    """data.json of the job, made here and now."""
    return prepare.prepare(job, Events(job.run.journal, 1))


def run_tokenize(job: jobs.Job, *command: str) -> subprocess.CompletedProcess[str]:
    """`python -m engine.train.tokenize` on the run, as the launcher starts it."""
    argv = [sys.executable, "-m", "engine.train.tokenize", str(job.run.path), *(("--", *command) if command else ())]
    return subprocess.run(argv, env={**os.environ, "PYTHONSAFEPATH": "1"}, capture_output=True, text=True)


def trl_rows(model: Path, rows: list[Any], **options: Any) -> Any:
    """The same rows as SFTTrainer prepares them in its constructor."""
    from datasets import Dataset, Features, Json, List, Value
    from transformers import AutoTokenizer
    from trl import SFTConfig, SFTTrainer
    from trl.chat_template_utils import get_training_chat_template, has_generation_markers

    tokenizer = AutoTokenizer.from_pretrained(str(model))
    kinds = {}
    for row in rows:
        for name, value in row.items():
            kinds[name] = (
                Value("string") if isinstance(value, str) else List(Json()) if isinstance(value, list) else Json()
            )
    dataset = Dataset.from_list(
        [{name: row.get(name, [] if name == "tools" else None) for name in kinds} for row in rows],
        features=Features(kinds),
    )
    packing = options.pop("packing", False)
    arguments = SFTConfig(
        output_dir=str(model / "out"), use_cpu=True, bf16=False, report_to=[], shuffle_dataset=False, **options
    )
    template = None
    if arguments.assistant_only_loss and not has_generation_markers(tokenizer.chat_template):
        template = get_training_chat_template(tokenizer)
    completion = options.get("completion_only_loss")
    trainer = SimpleNamespace(
        _tokenizer=tokenizer,
        chat_template=template,
        completion_only_loss="prompt" in kinds if completion is None else completion,
    )
    return SFTTrainer._prepare_dataset(trainer, dataset, tokenizer, arguments, packing, None, "train")
