"""Whether a model and its KV cache fit: how many cards it takes, and how long a conversation may be.

Bytes. Weights as they are stored (safetensors' sizes); a token of KV cache takes
`2 (key, value) x layers x KV heads x head dimension x bytes of the type` (grouped-query attention keeps few heads).
vLLM takes `gpu_memory_utilization` (0.90) of each card, and of that some for the activations of its largest batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import DoesNotFit
from engine.text import _, gigabytes, number

USABLE = 0.90  # vLLM's default share of a card
ACTIVATIONS = 0.05  # of a card: the largest prefill batch, CUDA graphs
HOST_USABLE = 0.7
LEAST_TOKENS = 2048  # a context that a server is of use with
WIDTH = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class Fit:
    """How a model fits: cards, tokens of context for one conversation, tokens of cache in all, bytes."""

    tensor_parallel: int
    max_length: int
    cache_tokens: int
    weights: int
    token_bytes: int
    room: int

    def to_json(self) -> dict[str, Any]:
        """The fit as a JSON object."""
        return dict(vars(self))


def weights_bytes(folder: Path) -> int:
    """Bytes of a model's weight files."""
    files = list(folder.glob("*.safetensors")) or list(folder.glob("*.bin"))
    return sum(path.stat().st_size for path in files)


def language_part(config: dict[str, Any]) -> dict[str, Any]:
    """The part of a config.json that speaks of the language model."""
    inner = config.get("text_config")
    return inner if isinstance(inner, dict) else config


def token_bytes(config: dict[str, Any], dtype: str) -> int:
    """Bytes of KV cache of one token, over all layers."""
    text = language_part(config)
    heads = int(text.get("num_attention_heads") or 1)
    kv_heads = int(text.get("num_key_value_heads") or heads)
    size = int(text.get("head_dim") or int(text.get("hidden_size") or heads) // heads)
    return 2 * int(text.get("num_hidden_layers") or 1) * kv_heads * size * WIDTH.get(dtype, 2)


def context(config: dict[str, Any]) -> int:
    """The longest conversation that the model was made for, tokens."""
    text = language_part(config)
    return int(text.get("max_position_embeddings") or 4096)


def check(
    folder: Path, config: dict[str, Any], dtype: str, cards: list[int], *, host: int, wanted: int | None = None
) -> Fit:
    """Choose the number of cards and the context.

    Args:
        folder: the model.
        config: its config.json.
        dtype: `float32`, `bfloat16` or `float16`.
        cards: bytes of each card that may be used; none means the CPU.
        host: bytes of host memory that are free, for the CPU.
        wanted: the context that is asked for; the model's own, or what fits, where None.

    Raises:
        DoesNotFit: not even a short context fits.
    """
    weights, per_token = weights_bytes(folder), token_bytes(config, dtype)
    heads = int(language_part(config).get("num_attention_heads") or 1)
    longest = wanted or context(config)
    least = min(longest, LEAST_TOKENS) if wanted is None else wanted
    options = [(0, int(host * HOST_USABLE))] if not cards else _groups(cards, heads)
    for count, room in options:
        left = room - weights
        if left >= least * per_token:
            tokens = left // per_token
            return Fit(max(1, count), int(min(longest, tokens)), int(tokens), weights, per_token, room)
    best = max(room for _count, room in options)
    need = weights + least * per_token
    raise DoesNotFit(
        _("{model} needs {need} with {tokens} tokens of context, and there are {room}").format(
            model=folder.name, need=gigabytes(need), tokens=number(least), room=gigabytes(best)
        ),
        where=str(folder),
        fix=_("serve the FP8 folder of it (`ftui merge --dtype fp8`), a shorter --max-length, or use more cards"),
        kind="does_not_fit",
    )


def _groups(cards: list[int], heads: int) -> list[tuple[int, int]]:
    """(cards, bytes for weights and cache in all), for each number of cards that divides the attention heads."""
    found = []
    for count in (1, 2, 4, 8):
        if count <= len(cards) and heads % count == 0:
            smallest = min(sorted(cards, reverse=True)[:count])
            found.append((count, int(count * smallest * (USABLE - ACTIVATIONS))))
    return found
