"""At each evaluation: what the model answers to a few held-out prompts, always the same ones; into samples.jsonl."""

from __future__ import annotations

import time
from typing import Any

import orjson
import torch
from transformers import GenerationConfig, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from engine.journal import JournalWriter
from engine.train.job import Job

FILE = "samples.jsonl"
LONGEST = 64  # tokens of an answer: a sample is looked at, not scored
SLOWEST_S = 60.0  # an evaluation whose samples take longer makes no more of them


def attach(job: Job, trainer: Any, tokenizer: Any) -> None:
    """Make samples in this run where that is possible: on rank 0, of models that are whole there."""
    count = int(job.get("eval_samples", 4))
    whole = job.rank.world_size == 1 or job.get("sharding", "auto") in ("none", "ddp")
    if not count or not job.rank.first or not whole or job.get("task", "sft") != "sft":
        return
    rows = _rows(job, count)
    if rows and tokenizer.chat_template:
        trainer.add_callback(SampleCallback(job, tokenizer, rows))


def _rows(job: Job, count: int) -> list[tuple[list[dict[str, Any]], str]]:
    """Prompts with their expected answers."""
    found: list[tuple[list[dict[str, Any]], str]] = []
    try:
        with open(job.run.data / "held_out.jsonl", "rb") as file:
            for line in file:
                messages = orjson.loads(line).get("messages")
                if messages and len(messages) > 1 and messages[-1].get("role") == "assistant":
                    found.append((messages[:-1], str(messages[-1].get("content") or "")))
                if len(found) == count:
                    break
    except (OSError, ValueError):
        return []
    return found


class SampleCallback(TrainerCallback):
    """Greedy answers in one batch. Whatever goes wrong with them, the training goes on."""

    def __init__(self, job: Job, tokenizer: Any, rows: list[tuple[list[dict[str, Any]], str]]) -> None:
        self.job = job
        self.tokenizer = tokenizer
        self.rows = rows
        self.off = False

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self.off:
            return
        begin = time.monotonic()
        try:
            texts = self._answers(kwargs["model"], args.device)
            writer = JournalWriter(self.job.run.path / FILE, attempt=self.job.rank.attempt)
            for number, ((messages, reference), text) in enumerate(zip(self.rows, texts, strict=True)):
                writer.append(
                    "sample",
                    step=state.global_step,
                    prompt_id=number,
                    prompt=str(messages[-1].get("content") or ""),
                    reference=reference,
                    text=text,
                )
            writer.close()
        except Exception as error:  # noqa: BLE001 - a look at the model must not end the training
            self.off = True
            print(f"samples: {type(error).__name__}: {error}; no more of them", flush=True)  # noqa: T201 - the rank's log
            if args.device.type == "cuda":
                torch.cuda.empty_cache()
        if time.monotonic() - begin > SLOWEST_S:
            self.off = True
            print("samples take too long; no more of them", flush=True)  # noqa: T201

    @torch.no_grad()
    def _answers(self, model: Any, device: torch.device) -> list[str]:
        limit = min(LONGEST, int(self.job.get("eval_max_new_tokens", LONGEST)))
        prompts = [
            self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]
            for messages, _reference in self.rows
        ]
        end = self.tokenizer.eos_token_id
        pad = self.tokenizer.pad_token_id if self.tokenizer.pad_token_id is not None else end
        width = max(len(prompt) for prompt in prompts)
        ids = torch.full((len(prompts), width), pad)
        mask = torch.zeros_like(ids)
        for place, prompt in enumerate(prompts):
            ids[place, width - len(prompt) :] = torch.tensor(prompt)
            mask[place, width - len(prompt) :] = 1
        settings = GenerationConfig(
            do_sample=False, max_new_tokens=limit, eos_token_id=end, pad_token_id=pad, use_cache=True
        )
        training = model.training
        model.eval()
        try:
            out = model.generate(input_ids=ids.to(device), attention_mask=mask.to(device), generation_config=settings)
        finally:
            model.train(training)
        return [self.tokenizer.decode(row[width:], skip_special_tokens=True) for row in out.tolist()]
