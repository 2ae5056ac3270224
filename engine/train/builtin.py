"""The built-in model `builtin:tiny`: made on first use, cached, the same on the same machine and versions.

A Qwen3 of about one million parameters with a byte-level BPE tokenizer, trained for some seconds on the built-in
conversations as they are answered without the rule of `builtin:support`: it can speak, and fine-tuning has
something to teach it. Run `python -m engine.train.builtin HOME` to make it ahead of time.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from importlib import metadata
from importlib.resources import files
from pathlib import Path
from typing import Any

from engine.errors import UsageError
from engine.files import Lock, fsync_dir
from engine.text import _

PREFIX = "builtin:"
MODELS = {"builtin:tiny": "tiny"}
DATASETS = {"builtin:support": "support.jsonl"}
PRETRAINING = "support-plain.jsonl"

VOCABULARY = 2048
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
# Two wide layers and large first weights learn to look at the question in fewer steps than four narrow ones.
SHAPE = {
    "hidden_size": 128,
    "intermediate_size": 768,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,  # the smallest that vLLM's kernels take
    "initializer_range": 0.08,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
}
STEPS = 330
ROWS_PER_STEP = 8
PEAK_LEARNING_RATE = 4e-3
THREADS = 1  # more would wait for each other on a busy server; and the order of sums, so the weights, depend on it
SEED = 11
# The marks around the assistant's turn let a trainer count only its tokens into the loss.
TEMPLATE = (
    "{%- for message in messages %}"
    "{%- if message.role == 'assistant' %}"
    "{{- '<|im_start|>assistant\\n' }}"
    "{% generation %}{{- message.content + '<|im_end|>' }}{% endgeneration %}"
    "{{- '\\n' }}"
    "{%- else %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)


def dataset_path(name: str) -> Path:
    """The file behind a built-in data set's name.

    Raises:
        UsageError: there is no such data set.
    """
    if name not in DATASETS:
        raise UsageError(
            _("there is no built-in data set '{name}'").format(name=name),
            fix=_("built-in: {names}").format(names=", ".join(DATASETS)),
            kind="no_such_builtin",
        )
    return Path(str(files("recipes.data") / DATASETS[name]))


def _fingerprint() -> str:
    """A hash of everything that the model depends on."""
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for name in (*DATASETS.values(), PRETRAINING):
        digest.update(dataset_path("builtin:support").with_name(name).read_bytes())
    for package in ("torch", "transformers", "tokenizers"):
        digest.update(f"{package}={metadata.version(package)}".encode())
    return digest.hexdigest()[:12]


def is_made(name: str, cache: Path) -> bool:
    """Whether a built-in model is in the cache."""
    return _folder(name, cache).is_dir()


def _folder(name: str, cache: Path) -> Path:
    return cache / "builtin" / f"{MODELS.get(name, name)}-{_fingerprint()}"


def model_path(name: str, cache: Path) -> Path:
    """The folder of a built-in model below `cache`; made when it is not there.

    Two processes that need it at once build it once; a kill leaves nothing that looks finished.

    Raises:
        UsageError: there is no such model.
    """
    if name not in MODELS:
        raise UsageError(
            _("there is no built-in model '{name}'").format(name=name),
            fix=_("built-in: {names}").format(names=", ".join(MODELS)),
            kind="no_such_builtin",
        )
    target = _folder(name, cache)
    parent = target.parent
    if target.is_dir():
        return target
    parent.mkdir(parents=True, exist_ok=True)
    with Lock(parent / f"{MODELS[name]}.lock").held():
        if target.is_dir():
            return target
        staging = parent / f".staging-{target.name}"
        shutil.rmtree(staging, ignore_errors=True)  # what a killed builder left; the lock says that it is gone
        staging.mkdir()
        build(staging)
        os.replace(staging, target)
        fsync_dir(parent)
    return target


def build(folder: Path) -> float:
    """Make tokenizer and model in `folder`; the mean loss of the last tenth of the training."""
    import torch

    tuned = dataset_path("builtin:support")
    rows = _conversations(tuned.with_name(PRETRAINING))
    tokenizer = _tokenizer(rows + _conversations(tuned))
    threads = torch.get_num_threads()
    rng = torch.random.get_rng_state()
    torch.set_num_threads(THREADS)
    try:
        model, loss = _pretrain(tokenizer, rows)
    finally:
        torch.set_num_threads(threads)
        torch.random.set_rng_state(rng)
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    return loss


def _conversations(path: Path) -> list[list[dict[str, str]]]:
    return [json.loads(line)["messages"] for line in path.read_text(encoding="utf-8").splitlines()]


def _tokenizer(rows: list[list[dict[str, str]]]) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.train_from_iterator(
        (message["content"] for row in rows for message in row),
        trainers.BpeTrainer(
            vocab_size=VOCABULARY,
            special_tokens=SPECIAL,
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        ),
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token="<|im_end|>",  # noqa: S106 - a token of text
        pad_token="<|endoftext|>",  # noqa: S106
        model_max_length=SHAPE["max_position_embeddings"],
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def _pretrain(tokenizer: Any, rows: list[list[dict[str, str]]]) -> tuple[Any, float]:
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(SEED)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
        **SHAPE,
    )
    model = Qwen3ForCausalLM(config)
    encoded = [tokenizer.apply_chat_template(row, return_dict=True, return_assistant_tokens_mask=True) for row in rows]
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, PEAK_LEARNING_RATE, total_steps=STEPS, pct_start=0.1)
    losses: list[float] = []
    batches: list[list[Any]] = []
    model.train()
    for _step in range(STEPS):
        batches = batches or _batches(encoded, torch.randperm(len(encoded)).tolist())
        batch = batches.pop()
        width = max(len(row["input_ids"]) for row in batch)
        ids = torch.full((len(batch), width), tokenizer.pad_token_id)
        mask, answer = torch.zeros_like(ids), torch.zeros_like(ids)
        for i, row in enumerate(batch):
            length = len(row["input_ids"])
            ids[i, :length] = torch.tensor(row["input_ids"])
            mask[i, :length] = 1
            answer[i, :length] = torch.tensor(row["assistant_masks"])
        # Only the answers count: the questions' random parts would take most of the little there is to learn with.
        loss = model(input_ids=ids, attention_mask=mask, labels=ids.masked_fill(answer == 0, -100)).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    tail = losses[-max(1, STEPS // 10) :]
    return model.eval(), sum(tail) / len(tail)


def _batches(encoded: list[Any], order: list[int]) -> list[list[Any]]:
    """Random batches; the rows of a batch are of like length, so that little is spent on padding."""
    batches = []
    window = 8 * ROWS_PER_STEP
    for start in range(0, len(order), window):
        rows = sorted((encoded[i] for i in order[start : start + window]), key=lambda row: len(row["input_ids"]))
        batches += [rows[i : i + ROWS_PER_STEP] for i in range(0, len(rows), ROWS_PER_STEP)]
    return batches[::3] + batches[1::3] + batches[2::3]  # not from short to long


if __name__ == "__main__":
    from engine.workspace import locate

    workspace = locate(sys.argv[1] if len(sys.argv) > 1 else None).prepare()
    print(model_path("builtin:tiny", workspace.cache_dir))  # noqa: T201
