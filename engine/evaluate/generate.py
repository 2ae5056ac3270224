"""Greedy answers in batches: rows of like length together, with the KV cache. Loads torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from engine.evaluate.models import causal

MOST_ROWS = 64
CPU_TOKENS = 4096  # of a batch on a CPU: what leaves the caches is slower together than apart
SHARE = 0.4  # of the free memory that the cache of a batch may take
DEFAULT_CACHE = 1 << 20  # bytes a token where the config does not tell


@torch.no_grad()
def answer(
    model: Any,
    prompts: Sequence[list[int]],
    *,
    max_new_tokens: int,
    stop: Sequence[int],
    pad: int,
    done: Callable[[int, list[int]], None],
    most_rows: int = MOST_ROWS,
) -> None:
    """Continue each prompt greedily; `done` gets its number and the new tokens (the one that stopped it left out).

    The same tokens as `model.generate` gives for each prompt alone: padding stands at the left and is masked. Long
    prompts come first, so that a batch too large for the memory shows at once and not at the end.
    """
    from transformers import GenerationConfig

    settings = GenerationConfig(  # type: ignore[no-untyped-call]
        do_sample=False,
        num_beams=1,
        max_new_tokens=max_new_tokens,
        eos_token_id=list(stop) or None,
        pad_token_id=pad,
        use_cache=True,
    )
    inner = causal(model)
    own = getattr(inner, "generation_config", None)
    inner.generation_config = settings  # what a model's folder says (a repetition penalty) is not greedy decoding
    device = inner.get_input_embeddings().weight.device
    order = sorted(range(len(prompts)), key=lambda i: -len(prompts[i]))
    at = 0
    try:
        while at < len(order):
            width = len(prompts[order[at]])
            rows = max(1, min(most_rows, _rows(inner, width + max_new_tokens, device)))
            batch = order[at : at + rows]
            ids = torch.full((len(batch), width), pad, dtype=torch.long)
            mask = torch.zeros_like(ids)
            for place, number in enumerate(batch):
                prompt = prompts[number]
                ids[place, width - len(prompt) :] = torch.tensor(prompt)
                mask[place, width - len(prompt) :] = 1
            try:
                out = model.generate(
                    input_ids=ids.to(device), attention_mask=mask.to(device), generation_config=settings
                )
            except torch.OutOfMemoryError:
                if len(batch) == 1:
                    raise
                torch.cuda.empty_cache()
                most_rows = len(batch) // 2
                continue
            for number, tokens in zip(batch, out[:, width:].tolist(), strict=True):
                done(number, cut(tokens, stop))
            at += len(batch)
    finally:
        inner.generation_config = own


def cut(tokens: list[int], stop: Sequence[int]) -> list[int]:
    """The tokens before the first one that ends an answer; what follows it is padding."""
    ends = set(stop)
    return tokens[: next((at for at, token in enumerate(tokens) if token in ends), len(tokens))]


def _rows(model: Any, length: int, device: torch.device) -> int:
    """How many rows of this length fit, by the size of their cache."""
    if device.type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # torch's own, unused
        free = torch.cuda.mem_get_info(device)[0] + kept
    else:
        import psutil

        free = psutil.virtual_memory().available
    rows = int(free * SHARE // (length * _cache_bytes(model)))
    return rows if device.type == "cuda" else min(rows, CPU_TOKENS // length)


def _cache_bytes(model: Any) -> int:
    """Bytes of keys and values a token, from the config."""
    config = model.config.get_text_config() if hasattr(model.config, "get_text_config") else model.config
    try:
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return 2 * int(config.num_hidden_layers) * int(heads) * int(width) * int(model.dtype.itemsize)
    except (AttributeError, TypeError):
        return DEFAULT_CACHE
