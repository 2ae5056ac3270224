"""Negative log-likelihoods of given tokens, row by row; the logits of a few positions at a time. Loads torch."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from engine.evaluate.models import causal

IGNORED = -100
LOGITS_BYTES = 256 << 20  # of one piece of logits in float32, with what the softmax needs beside it
TOKENS_A_BATCH = 8192


@dataclass(frozen=True)
class Scored:
    """What the model thinks of a row: the sum over the counted tokens, their number, and how many came first."""

    nll: float
    tokens: int
    correct: int


@torch.no_grad()
def score(
    model: Any,
    rows: Sequence[tuple[list[int], list[int]]],
    autocast: torch.dtype | None,
    done: Callable[[int, Scored], None],
    tokens_a_batch: int = TOKENS_A_BATCH,
) -> None:
    """Score rows of token ids and labels; `done` gets each row's number and result, long rows first.

    Padding stands at the right, behind everything that is counted, so it changes nothing.
    """
    order = sorted(range(len(rows)), key=lambda i: -len(rows[i][0]))
    device = causal(model).get_input_embeddings().weight.device
    at = 0
    while at < len(order):
        width = len(rows[order[at]][0])
        batch = order[at : at + max(1, tokens_a_batch // max(1, width))]
        ids = torch.zeros(len(batch), width, dtype=torch.long)
        labels = torch.full_like(ids, IGNORED)
        mask = torch.zeros_like(ids)
        for place, number in enumerate(batch):
            row, wanted = rows[number]
            ids[place, : len(row)] = torch.tensor(row)
            labels[place, : len(row)] = torch.tensor(wanted)
            mask[place, : len(row)] = 1
        try:
            with torch.autocast(device.type, autocast) if autocast is not None else contextlib.nullcontext():
                results = _batch(causal(model), ids.to(device), mask.to(device), labels.to(device))
        except torch.OutOfMemoryError:
            if len(batch) == 1:
                raise
            torch.cuda.empty_cache()
            tokens_a_batch = max(1, len(batch) * width // 2)
            continue
        for number, result in zip(batch, results, strict=True):
            done(number, result)
        at += len(batch)


def _batch(model: Any, ids: torch.Tensor, mask: torch.Tensor, labels: torch.Tensor) -> list[Scored]:
    targets = labels[:, 1:]
    nll = torch.zeros(len(ids), dtype=torch.float64)
    correct = torch.zeros(len(ids), dtype=torch.long)
    # The logits at a position speak of the token after it.
    places = torch.nonzero((targets != IGNORED).any(dim=0)).flatten()
    if len(places):
        vocabulary = causal_vocabulary(model)
        at_once = max(1, LOGITS_BYTES // (len(ids) * vocabulary * 12))
        for piece, logits in _logits(model, ids, mask, torch.split(places, at_once)):
            wanted = targets[:, piece].to(logits.device)
            values = logits.float()
            # One row a position: torch's softmax over another dimension than the last is less exact.
            lost = functional.cross_entropy(
                values.flatten(0, 1), wanted.flatten(), ignore_index=IGNORED, reduction="none"
            )
            nll += lost.view(wanted.shape).double().sum(dim=1).cpu()
            correct += ((values.argmax(dim=-1) == wanted) & (wanted != IGNORED)).sum(dim=1).cpu()
    counts = (targets != IGNORED).sum(dim=1).tolist()
    return [Scored(float(n), int(c), int(k)) for n, c, k in zip(nll.tolist(), counts, correct.tolist(), strict=True)]


def causal_vocabulary(model: Any) -> int:
    """The width of the logits."""
    head = model.get_output_embeddings()
    weight = getattr(head, "weight", None)
    return int(weight.shape[0]) if weight is not None and weight.dim() == 2 else int(model.config.vocab_size)


def _logits(
    model: Any, ids: torch.Tensor, mask: torch.Tensor, pieces: Sequence[torch.Tensor]
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The logits at some positions, piece by piece.

    The layers run once. For each piece the model's own forward is called with the layers' output in their place, so
    that whatever an architecture does to its logits (scale, soft cap) is done.
    """
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else None
    takes = "logits_to_keep" in inspect.signature(model.forward).parameters
    if decoder is None or decoder is model or not takes:
        logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
        for piece in pieces:
            yield piece, logits[:, piece]
        return
    hidden = decoder(input_ids=ids, attention_mask=mask, use_cache=False)
    original = decoder.forward
    decoder.forward = lambda *args, **kwargs: hidden
    try:
        for piece in pieces:
            logits = model(input_ids=ids, attention_mask=mask, use_cache=False, logits_to_keep=piece).logits
            yield piece, logits
    finally:
        decoder.forward = original
