"""Tokens of a run: what it computes, padding included, and how much of that is no padding."""

from __future__ import annotations

from engine.plan.request import Request


def train_tokens(r: Request) -> float | None:
    """Tokens that the whole run computes, padding included; None when the data is not known."""
    per_step = float(r.max_length * r.per_device_train_batch_size * r.accumulation * r.data_parallel)
    if r.max_steps is not None:
        if r.lengths and not r.packing:  # batches are padded to their longest row, not to max_length
            per_step *= padded_tokens(r) / (r.max_length * sum(rows for _length, rows in r.lengths))
        return r.max_steps * per_step
    if r.train_tokens is not None:
        return r.train_tokens * r.num_train_epochs
    if r.lengths:
        if r.packing:
            return r.num_train_epochs * sum(min(length, r.max_length) * rows for length, rows in r.lengths)
        return r.num_train_epochs * padded_tokens(r)
    if r.rows is not None:
        return r.rows * r.num_train_epochs * float(r.max_length)
    return None


def padded_tokens(r: Request) -> float:
    """Tokens of one epoch when each batch is padded to its longest row (rows in random order)."""
    total = sum(rows for _length, rows in r.lengths)
    batch, expected, below = r.per_device_train_batch_size, 0.0, 0
    for length, rows in r.lengths:
        reach = ((below + rows) / total) ** batch - (below / total) ** batch
        expected += min(length, r.max_length) * reach
        below += rows
    return expected * total


def useful_share(r: Request) -> float | None:
    """What is left of the computed tokens without padding: the share that a trainer counts; None when not known."""
    if r.packing:
        return 1.0
    if not r.lengths:
        return None
    return sum(min(length, r.max_length) * rows for length, rows in r.lengths) / padded_tokens(r)
