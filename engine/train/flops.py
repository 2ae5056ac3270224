"""Model FLOPs per token, for the share of the cards' peak that the training reaches (MFU)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def per_token(model: Any, length: int) -> float:
    """FLOPs of one token forward and backward, recomputation not counted.

    A matrix product costs 2 FLOPs a weight forward, 2 for the gradient of its input and 2 for that of its weight;
    frozen weights skip the last. Looking up an embedding costs none, the output head does, tied or not. Causal
    attention over `length` tokens adds 2 x length x width a layer forward, twice that backward.
    """
    config = model.config.get_text_config()
    embedding = model.get_input_embeddings()
    tied = bool(getattr(config, "tie_word_embeddings", False))
    frozen = trained = 0
    looked_up = {id(parameter) for parameter in embedding.parameters()} if not tied else set()
    for parameter, count in weights(model):
        if id(parameter) in looked_up:
            continue
        if parameter.requires_grad:
            trained += count
        else:
            frozen += count
    width = getattr(config, "num_attention_heads", 0) * (
        getattr(config, "head_dim", None) or config.hidden_size // max(1, getattr(config, "num_attention_heads", 1))
    )
    attention = 3 * 2 * length * width * getattr(config, "num_hidden_layers", 0)
    return 4.0 * frozen + 6.0 * trained + attention


def weights(model: Any) -> Iterator[tuple[Any, int]]:
    """Each parameter once, with the number of its weights: those packed two to a byte and those sharded count whole."""
    seen: set[int] = set()
    for module in model.modules():
        packed = type(module).__name__ == "Linear4bit" and type(module).__module__.startswith("bitsandbytes")
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) in seen:
                continue
            seen.add(id(parameter))
            if packed and name == "weight":
                yield parameter, module.in_features * module.out_features
            else:
                yield parameter, getattr(parameter, "ds_numel", None) or parameter.numel()


def peak(device_name: str) -> float | None:
    """The dense bf16 FLOP/s of a card by its driver's name; None when the catalogue does not know it."""
    try:
        from engine.hardware.catalogue import lookup
    except ImportError:
        return None
    card = lookup(device_name)
    tflops = card.bf16_tflops if card is not None else None
    return tflops * 1e12 if tflops else None
