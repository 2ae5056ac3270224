"""A small model trained for real beside its dry run: whether fake and real agree with the installed libraries."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from engine.dryrun import build, standins, step
from engine.dryrun.counter import LiveBytes
from engine.dryrun.spec import Spec

MODEL = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512, "tie_word_embeddings": True,
    "max_position_embeddings": 256,
}  # fmt: skip
CASES = (
    Spec(MODEL, "full", 2, 64, target="cpu", checkpointing=False),
    Spec(MODEL, "lora", 2, 64, target="cpu", bf16_master="bf16", loss="full"),
    Spec(MODEL, "qlora", 2, 64, target="cpu", bf16_master="bf16", lora_dtype="bf16"),
)
MOST = 0.01


def real(spec: Spec) -> step.Peaks:
    """The peaks of the same step on real tensors of this machine."""
    model: nn.Module = build.on_meta(spec)
    counter = LiveBytes()
    with counter, standins.applied(spec, counter, fake=False):
        build.fill(model, _values)
        return step.run(model, spec, counter)


def _values(meta: torch.Tensor) -> torch.Tensor:
    made = torch.zeros(meta.shape, dtype=meta.dtype)
    if made.is_floating_point():
        made.normal_(0.0, 0.02)
    return made


def errors() -> Iterator[tuple[str, float]]:
    """The error of each case's peaks: the largest over the phases, as a share of the real one."""
    for spec in CASES:
        fake, true = step.measure(spec), real(spec)
        worst = max(abs(sum(fake[phase].values()) / sum(true[phase].values()) - 1) for phase in true)
        yield spec.method, worst
