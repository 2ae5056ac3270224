"""What the models say: base with adapter against the merged one on a few prompts, where memory allows."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import torch

from engine.text import _, gigabytes

PROMPTS = (
    "The quick brown fox jumps over the lazy dog.",
    "Question: how do I reset my password?\nAnswer:",
    "def add(a, b):\n    return",
)
LENGTH = 32
EXACT_LIMIT = 8e9  # bytes in float32 up to which the comparison computes in float32
SHARE = 0.6  # of the free memory that a model may take
# Largest difference, relative to the largest logit. With 16-bit weights the rounding of each merged weight remains.
TOLERANCE = {"F32": 1e-4, "BF16": 0.05, "F16": 0.02}


class Skipped(Exception):
    """The comparison cannot be made here; the text says why."""


def compare(base: str, adapter: str, merged: Path, dtype: str, vocab: int | None, numbers: int) -> dict[str, Any]:
    """Compare the logits.

    Args:
        base: the base model's folder.
        adapter: the adapter's folder.
        merged: the merged model's folder.
        dtype: the type that the merged model is stored in.
        vocab: the number of tokens of a grown vocabulary.
        numbers: how many numbers the model has.

    Raises:
        Skipped: too little memory, or a model that cannot be loaded here.
    """
    compute = _compute_type(numbers, dtype)
    from peft import PeftModel

    model = _model(base, compute)
    if vocab is not None:
        model.resize_token_embeddings(vocab, mean_resizing=False)
    rows = int(model.get_input_embeddings().weight.shape[0])
    prompts = _prompts(merged, rows)
    alone = _logits(model, prompts)
    try:
        model = PeftModel.from_pretrained(model, adapter).eval()
    except (ValueError, KeyError, RuntimeError, TypeError, ImportError) as error:
        raise Skipped(_("PEFT cannot load the adapter: {reason}").format(reason=_line(error))) from error
    both = _logits(model, prompts)
    del model
    gc.collect()
    ours = _logits(_model(str(merged), compute), prompts)
    largest = max(1.0, *(float(x.abs().max()) for x in both))
    difference = _difference(both, ours)
    limit = TOLERANCE[dtype if compute == torch.float32 else "BF16"]
    top = [x.argmax(-1) == y.argmax(-1) for x, y in zip(both, ours, strict=True)]
    return {
        "prompts": len(prompts),
        "dtype": str(compute).removeprefix("torch."),
        "max_abs_diff": difference,
        "tolerance": limit * largest,
        "effect": _difference(alone, both),
        "top1_agreement": float(torch.cat([t.flatten() for t in top]).float().mean()),
        "passed": difference <= limit * largest,
    }


def _compute_type(numbers: int, dtype: str) -> torch.dtype:
    import psutil

    free = psutil.virtual_memory().available * SHARE
    if numbers * 4 <= min(free, EXACT_LIMIT):
        return torch.float32
    if dtype != "F32" and numbers * 2 <= free:
        return torch.bfloat16 if dtype == "BF16" else torch.float16
    text = _("the model takes {need} in memory, and {free} may be used")
    raise Skipped(text.format(need=gigabytes(numbers * 2), free=gigabytes(free)))


def _model(folder: str, dtype: torch.dtype) -> Any:
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, local_files_only=True, trust_remote_code=False, output_loading_info=True
        )
        model, told = loaded
    except Exception as error:  # whatever a model's own code raises: then it cannot be compared
        text = _("transformers cannot load {folder}: {reason}")
        raise Skipped(text.format(folder=folder, reason=_line(error))) from error
    if told["missing_keys"]:
        names = ", ".join(sorted(told["missing_keys"])[:3])
        raise Skipped(_("{folder} lacks tensors of its architecture: {names}").format(folder=folder, names=names))
    return model.eval()


def _prompts(folder: Path, vocab: int) -> list[torch.Tensor]:
    """Token ids of the prompts; where there is no tokenizer, ids spread over the vocabulary."""
    try:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        ids = [tokenizer.encode(text).ids[:LENGTH] for text in PROMPTS]
        if all(len(row) > 1 and max(row) < vocab for row in ids):
            return [torch.tensor([row]) for row in ids]
    except Exception:  # noqa: BLE001, S110 - the library raises plain exceptions; the ids below do as well
        pass
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(0, vocab, (1, 8), generator=generator) for _text in PROMPTS]


@torch.no_grad()
def _logits(model: Any, prompts: list[torch.Tensor]) -> list[torch.Tensor]:
    return [model(input_ids=ids).logits.float() for ids in prompts]


def _difference(one: list[torch.Tensor], other: list[torch.Tensor]) -> float:
    """The largest difference over the tokens that both know."""
    least = min(one[0].shape[-1], other[0].shape[-1])
    return max(float((x[..., :least] - y[..., :least]).abs().max()) for x, y in zip(one, other, strict=True))


def _line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
