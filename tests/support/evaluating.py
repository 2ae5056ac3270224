"""A finished run on a tiny model, made without training: base, adapter, tokenizer, held-out rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from engine.files import write_json
from engine.workspace import RunFolder, Workspace
from tests.support.models import make_model

CONTEXT = 256
QUESTIONS = [
    "Name a color.", "What is two and two?", "Как дела?", "Say hello in Turkish, please, and nothing else.", "Why?",
    "Tell me about the sea in one short sentence.", "1+1", "Bir renk söyle.", "Where is the sun?", "Quick: a fruit!",
    "List three animals, separated by commas.", "Да или нет?",
]  # fmt: skip
ANSWERS = ["Blue.", "Four.", "Хорошо.", "Merhaba.", "Because.", "It is wide.", "2", "Mavi.", "In the east.", "Apple.",
           "Cat, dog, cow.", "Да."]  # fmt: skip


def base_model(folder: Path, *, hidden: int = 32, seed: int = 0) -> Path:
    """A Llama of two layers with random weights that are large enough to have opinions, and a byte tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    make_model(folder)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=264, hidden_size=hidden, intermediate_size=2 * hidden, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=CONTEXT, initializer_range=0.3, eos_token_id=257,
        bos_token_id=None, pad_token_id=258, dtype="float32",
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def adapter(base: Path, folder: Path, seed: int = 1) -> Path:
    """A LoRA adapter that changes what the base says; with the tokenizer beside it, as a run's result has."""
    import shutil

    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    model = get_peft_model(
        AutoModelForCausalLM.from_pretrained(base), LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(base / name, folder / name)
    return folder


def tokenized(base: Path, rows: list[dict[str, Any]]) -> list[dict[str, list[int]]]:
    """The rows as the trainer has them: only the assistant's words count."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(base)
    found = []
    for row in rows:
        made = tokenizer.apply_chat_template(row["messages"], return_dict=True, return_assistant_tokens_mask=True)
        labels = [t if counts else -100 for t, counts in zip(made["input_ids"], made["assistant_masks"], strict=True)]
        found.append({"input_ids": list(made["input_ids"]), "labels": labels})
    return found


def conversations() -> list[dict[str, Any]]:
    """Rows for evaluation."""
    return [
        {"messages": [{"role": "user", "content": q}, {"role": "assistant", "content": a}]}
        for q, a in zip(QUESTIONS, ANSWERS, strict=True)
    ]


def write_lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    """A JSONL file."""
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def finished_run(workspace: Workspace, name: str = "tuned-1", **recipe: Any) -> RunFolder:
    """A run folder as a training leaves it."""
    from datasets import Dataset

    base = workspace.root / "base"
    if not base.exists():
        base_model(base)
    run = RunFolder(workspace.runs_dir / name)
    run.data.mkdir(parents=True)
    train = write_lines(workspace.root / f"{name}.jsonl", [*conversations(), *_others()])
    write_lines(run.data / "held_out.jsonl", conversations())
    Dataset.from_list(tokenized(base, _others())).save_to_disk(str(run.data / "train"))
    Dataset.from_list(tokenized(base, conversations())).save_to_disk(str(run.data / "eval"))
    write_json(run.data / "data.json", {"format": 1, "sources": [{"path": str(train), "bytes": train.stat().st_size}]})
    adapter(base, run.final)
    values = {
        "model_name_or_path": str(base), "method": "lora", "dtype": "float32", "device": "cpu", "bf16": False,
        "per_device_eval_batch_size": 5, "eval_max_new_tokens": 12, **recipe,
    }  # fmt: skip
    document = {"format": 1, "run": name, "recipe": values, "origin": {}, "source": str(workspace.root / "r.yaml")}
    write_json(run.resolved, document)
    write_json(run.state, {"format": 1, "run": name, "state": "done", "step": 20, "max_steps": 20})
    return run


def in_process(job: dict[str, Any], *_rest: Any) -> Any:
    """What the child does, in the test's own process: loading torch again and again is most of a test's time."""
    import io

    from engine.evaluate.__main__ import Evaluation

    out = io.StringIO()
    Evaluation(json.loads(json.dumps(job)), out).run()
    yield from (json.loads(line) for line in out.getvalue().splitlines())


def _others() -> list[dict[str, Any]]:
    return [
        {"messages": [{"role": "user", "content": f"Count to {n}."}, {"role": "assistant", "content": f"Up to {n}!"}]}
        for n in range(20)
    ]
