"""Which rows lie together in a sequence: by the lengths alone, so that it costs no memory for the tokens.

A sequence is a run of pieces; a piece is a place in the stream of all tokens and a length. Most are whole rows.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]
# Rows that are packed at a time: enough to fill nearly every sequence, and rows of one window lie near each other on
# the disk.
WINDOW = 1 << 18


@dataclass
class Sequences:
    """Pieces in the order of the sequences, and how many each sequence has."""

    begins: Numbers
    lengths: Numbers
    counts: Numbers

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def tokens(self) -> int:
        return int(self.lengths.sum())


def single(begins: Numbers, lengths: Numbers) -> Sequences:
    """Each row a sequence of its own."""
    return Sequences(begins, lengths, np.ones(len(begins), np.int64))


def split(begins: Numbers, lengths: Numbers, longest: int) -> tuple[Numbers, Numbers]:
    """Rows cut into pieces of at most `longest` tokens, in order."""
    pieces = -(-lengths // longest)
    owner = np.repeat(np.arange(len(lengths)), pieces)
    number = np.arange(len(owner)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    return begins[owner] + number * longest, np.minimum(longest, lengths[owner] - number * longest)


def best_fit(begins: Numbers, lengths: Numbers, capacity: int, window: int = WINDOW) -> Sequences:
    """Pieces packed so that each sequence is as full as can be: the longest first, each where it leaves least room.

    Args:
        begins: where the pieces lie.
        lengths: of the pieces; none may be longer than `capacity`.
        capacity: tokens of a sequence.
        window: pieces that are packed at a time.
    """
    orders, counts = [], []
    for first in range(0, len(lengths), window):
        order, count = _best_fit(lengths[first : first + window], capacity)
        orders.append(order + first)
        counts.append(count)
    empty = np.zeros(0, np.int64)
    order = np.concatenate(orders) if orders else empty
    return Sequences(begins[order], lengths[order], np.concatenate(counts) if counts else empty)


def _best_fit(lengths: Numbers, capacity: int) -> tuple[Numbers, Numbers]:
    """The pieces in the order of their sequences, and the number of pieces in each.

    Which rooms are left is kept as the bits of one number: the smallest that is large enough is its lowest bit from
    the length up, found in two operations.
    """
    rooms = 0
    by_room: defaultdict[int, list[int]] = defaultdict(list)
    sequences: list[list[int]] = []
    order = np.argsort(-lengths, kind="stable")
    for piece, length in zip(order.tolist(), lengths[order].tolist(), strict=True):
        large_enough = rooms >> length
        if large_enough:
            room = length + (large_enough & -large_enough).bit_length() - 1
            same = by_room[room]
            number = same.pop()
            if not same:
                rooms ^= 1 << room
            sequences[number].append(piece)
        else:
            room, number = capacity, len(sequences)
            sequences.append([piece])
        left = room - length
        if left:
            by_room[left].append(number)
            rooms |= 1 << left
    flat = np.fromiter((piece for sequence in sequences for piece in sequence), np.int64, len(lengths))
    return flat, np.fromiter(map(len, sequences), np.int64, len(sequences))


def wrapped(begins: Numbers, lengths: Numbers, capacity: int) -> Sequences:
    """All rows one after another, cut wherever a sequence is full: the old way, in which rows see each other."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    cuts = np.union1d(np.concatenate(([0], ends)), np.arange(0, total, capacity))
    starts, sizes = cuts[:-1], np.diff(cuts)
    row = np.searchsorted(ends, starts, side="right")
    places = begins[row] + starts - (ends[row] - lengths[row])
    return Sequences(places, sizes, np.bincount(starts // capacity).astype(np.int64) if total else starts)
