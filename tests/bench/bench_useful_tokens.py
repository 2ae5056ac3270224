"""Useful tokens a second: our batches against a stock TRL script, without packing and with it, on the CPU.

    OMP_NUM_THREADS=1 PYTHONPATH=. .venv/bin/python tests/bench/bench_useful_tokens.py [rows] [rounds] [batch]

Rows have log-normal lengths (median 180 tokens, at most 2,048); all four train one epoch of the same rows with a
model of the built-in one's shape, gradient checkpointing and batch size alike. They take turns; compared is the
processor time of the training alone, by its median, and wall time beside it. Useful tokens are those of the rows.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from typing import Any

import numpy as np
from datasets import Dataset
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen3Config, TrainerCallback, set_seed
from trl import SFTConfig, SFTTrainer

from engine.train.batches import Batches
from engine.train.builtin import SHAPE, VOCABULARY
from engine.train.tokenize import packing
from engine.train.tokenize.store import gather

LONGEST = 2048


class Ours(Batches, SFTTrainer):
    """What a run trains with, without its saves."""


class Clock(TrainerCallback):
    """Times the steps behind the first."""

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        if state.global_step == 1:
            self.cpu, self.wall = time.process_time(), time.monotonic()

    def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self.cpu, self.wall = time.process_time() - self.cpu, time.monotonic() - self.wall


def rows(count: int) -> list[list[int]]:
    """Random tokens in log-normal lengths."""
    random = np.random.default_rng(1)
    sizes = np.clip(np.exp(random.normal(np.log(180), 1.0, count)), 8, LONGEST).astype(int)
    return [random.integers(10, VOCABULARY, size).tolist() for size in sizes]


def packed(every: list[list[int]]) -> Dataset:
    """The rows as our tokenizing packs them."""
    lengths = np.array([len(row) for row in every])
    begins = np.cumsum(lengths) - lengths
    sequences = packing.best_fit(begins, lengths, LONGEST)
    flat = np.concatenate(every)
    found, first = [], 0
    for count in sequences.counts.tolist():
        part = slice(first, first + count)
        ids = gather(flat, sequences.begins[part], sequences.lengths[part])
        labels = ids.copy()
        labels[np.cumsum(sequences.lengths[part]) - sequences.lengths[part]] = -100
        found.append(
            {"input_ids": ids.tolist(), "labels": labels.tolist(), "seq_lengths": sequences.lengths[part].tolist()}
        )
        first += count
    return Dataset.from_list(found)


def run(kind: str, every: list[list[int]], batch: int, folder: str) -> tuple[float, float]:
    """One epoch; processor and wall time of all steps but the first, a useful token."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    words = Tokenizer(WordLevel({str(n): n for n in range(VOCABULARY)}, unk_token="1"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="0", eos_token="2")
    set_seed(3)
    model = AutoModelForCausalLM.from_config(Qwen3Config(vocab_size=VOCABULARY, pad_token_id=0, **SHAPE))
    ours, packs = kind.startswith("ours"), kind.endswith("packed")
    dataset = packed(every) if ours and packs else Dataset.from_list([{"input_ids": r, "labels": r} for r in every])
    arguments = SFTConfig(
        output_dir=folder, use_cpu=True, bf16=False, report_to=[], disable_tqdm=True, max_length=LONGEST,
        per_device_train_batch_size=batch, num_train_epochs=1, logging_steps=1, save_strategy="no", packing=packs,
        train_sampling_strategy="group_by_length" if ours else "random",
        dataset_kwargs={"skip_prepare_dataset": True} if ours else None,
    )  # fmt: skip
    clock = Clock()
    trainer = (Ours if ours else SFTTrainer)(
        model=model, args=arguments, train_dataset=dataset, processing_class=tokenizer, callbacks=[clock]
    )
    used: list[float] = []
    step = trainer.training_step

    def counted(network: Any, inputs: Any, *more: Any) -> Any:
        used.append(int((inputs["labels"] != -100).sum()))
        return step(network, inputs, *more)

    trainer.training_step = counted
    trainer.train()
    useful = sum(used[1:])
    return clock.cpu / useful, clock.wall / useful


def main(count: int = 240, rounds: int = 3, batch: int = 8) -> None:
    """Compare the four; one JSON line a figure."""
    every = rows(count)
    kinds = ("stock", "ours", "stock packed", "ours packed")
    found: dict[str, list[tuple[float, float]]] = {kind: [] for kind in kinds}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(rounds):
            for kind in kinds if turn % 2 == 0 else reversed(kinds):
                found[kind].append(run(kind, every, batch, folder))
                print(kind, found[kind][-1], file=sys.stderr, flush=True)
    cpu, wall = ({k: statistics.median(r[i] for r in found[k]) for k in kinds} for i in (0, 1))
    for kind in kinds:
        print(
            json.dumps(
                {"kind": kind, "useful_tokens_per_cpu_s": round(1 / cpu[kind]), "per_wall_s": round(1 / wall[kind])}
            )
        )
    for one, other in (
        ("ours", "stock"),
        ("ours packed", "stock packed"),
        ("ours packed", "stock"),
        ("ours", "stock packed"),
    ):
        ratio = {"cpu": round(cpu[other] / cpu[one], 2), "wall": round(wall[other] / wall[one], 2)}
        print(json.dumps({"figure": f"useful tokens a second: {one} / {other}", "batch": batch, **ratio}))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
