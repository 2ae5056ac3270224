"""MinHash signatures of rows, many at a time in numpy.

Words are found and hashed in the bytes of all texts of a block at once; Python never sees a word. Two things are kept
of a row: band keys over its word pairs, by which candidates are found (pairs tell more about a text than words), and
minima over its words, of which the share of equal ones estimates the share of common words (an edit costs one word, but
two pairs). These minima are kept for the whole row and for prompt and answer alone, because one prompt with different
answers makes no duplicates, and neither does one answer to different prompts.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

U64 = NDArray[np.uint64]
BANDS, BAND = 42, 3  # of rows with 0.4 of their pairs in common 94 % share a band
WHOLE = 96  # minima kept of a row's words
SIDE = 32  # and of its prompt's and of its answer's
PLACES = WHOLE + 2 * SIDE
SEED = 20240607
TEXT_LIMIT = 100_000  # bytes of a row that are compared
BATCH = 1 << 19  # bytes hashed at once: the tables of powers stay in the cache
BASE = np.uint64(0x9E3779B97F4A7C15)  # odd, so that its powers have inverses modulo 2^64
NONE = np.uint32(0xFFFFFFFF)  # the minimum of no words


@functools.cache
def _powers() -> tuple[U64, U64]:
    """Powers of the base and of its inverse, for every place of a batch."""
    size = BATCH + TEXT_LIMIT + 8
    inverse = np.uint64(pow(int(BASE), -1, 1 << 64))
    up, down = np.empty(size, np.uint64), np.empty(size, np.uint64)
    up[0] = down[0] = 1
    np.multiply.accumulate(np.full(size - 1, BASE), out=up[1:])
    np.multiply.accumulate(np.full(size - 1, inverse), out=down[1:])
    return up, down


@functools.cache
def _permutations() -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    random = np.random.default_rng(SEED)
    count = BANDS * BAND
    return (
        random.integers(0, 1 << 32, count, dtype=np.uint32),
        random.integers(0, 1 << 32, count, dtype=np.uint32) | np.uint32(1),
    )


@functools.cache
def _word_bytes() -> NDArray[np.bool_]:
    """Which bytes of lower-case UTF-8 belong to words: letters, digits, and all that is not ASCII."""
    table = np.zeros(256, np.bool_)
    for first, last in ((0x30, 0x39), (0x61, 0x7A), (0x80, 0xFF)):
        table[first : last + 1] = True
    return table


def _mixed(value: U64) -> U64:
    """Spread every bit over all others (the finalizer of splitmix64)."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def signatures(rows: Sequence[Sequence[tuple[int, bytes]]]) -> tuple[NDArray[np.uint32], NDArray[np.uint8]]:
    """The band keys and the minima of each row; both are zero for a row without words.

    Args:
        rows: each row's texts in lower case as (side, bytes): even sides are prompts, odd ones answers.
    """
    keys = np.zeros((len(rows), BANDS), np.uint32)
    minima = np.zeros((len(rows), PLACES), np.uint8)
    first = 0
    while first < len(rows):
        last, size = first, 0
        while last < len(rows) and (last == first or size < BATCH):
            size += min(TEXT_LIMIT, sum(len(text) + 1 for _side, text in rows[last]))
            last += 1
        _batch(rows[first:last], keys[first:last], minima[first:last])
        first = last
    return keys, minima


def _batch(rows: Sequence[Sequence[tuple[int, bytes]]], keys: NDArray[np.uint32], minima: NDArray[np.uint8]) -> None:
    parts: list[bytes] = []
    side_of: list[int] = []
    row_of: list[int] = []
    for number, row in enumerate(rows):
        room = TEXT_LIMIT
        for side, text in sorted(row, key=lambda part: part[0] & 1):
            if room <= 0:
                break
            parts.append(text[:room])
            side_of.append(side)
            row_of.append(number)
            room -= len(text) + 1
    if not parts:
        return
    ends = np.cumsum([len(part) + 1 for part in parts])
    data = np.frombuffer(b"\n".join(parts) + b"\n", np.uint8)
    starts, stops = _words(data)
    if not len(starts):
        return
    up, down = _powers()
    sums = np.zeros(len(data) + 1, np.uint64)
    np.cumsum((data.astype(np.uint64) + np.uint64(1)) * up[: len(data)], out=sums[1:])
    words = _mixed((sums[stops] - sums[starts]) * down[starts])
    part = np.searchsorted(ends, starts, side="right")
    sides = np.asarray(side_of, np.uint64)[part]
    numbers = np.asarray(row_of)[part]
    words = _mixed(words + sides * np.uint64(0xA0761D6478BD642F))
    before = np.zeros_like(words)
    before[1:] = np.where(part[1:] == part[:-1], words[:-1], np.uint64(0))
    pairs = _mixed(before * np.uint64(0xD6E8FEB86659FD93) + words)
    _band_keys(_short(pairs), numbers, keys)
    _word_minima(_short(words), numbers, (sides & np.uint64(1)).astype(np.int64), minima)


def _short(hashes: U64) -> NDArray[np.uint32]:
    return (hashes >> np.uint64(32)).astype(np.uint32)


def _band_keys(pairs: NDArray[np.uint32], row: NDArray[np.int64], keys: NDArray[np.uint32]) -> None:
    """A key for each band: the least pairs under its permutations, mixed into one number."""
    first = np.flatnonzero(np.diff(row, prepend=-1))
    flips, factors = _permutations()
    for band in range(BANDS):
        key = np.zeros(len(first), np.uint64)
        for place in range(band * BAND, (band + 1) * BAND):
            least = np.minimum.reduceat((pairs ^ flips[place]) * factors[place], first)
            key = _mixed(key + least)
        keys[row[first], band] = _short(key)


def _word_minima(
    words: NDArray[np.uint32], row: NDArray[np.int64], answer: NDArray[np.int64], minima: NDArray[np.uint8]
) -> None:
    """The least words of each row and side. The low bits of a least value tell as much as all of it."""
    group = row * 2 + answer  # in order: the texts of a row are sorted by side
    first = np.flatnonzero(np.diff(group, prepend=-1))
    at = group[first]
    flips, factors = _permutations()
    rows = len(minima)
    for place in range(WHOLE):
        least = np.full(2 * rows, NONE)
        least[at] = np.minimum.reduceat((words ^ factors[place]) * (flips[place] | np.uint32(1)), first)
        sides = least.reshape(rows, 2)
        minima[:, place] = sides.min(axis=1).astype(np.uint8)
        if place < SIDE:
            minima[:, WHOLE + place] = sides[:, 0].astype(np.uint8)
            minima[:, WHOLE + SIDE + place] = sides[:, 1].astype(np.uint8)


def _words(data: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where words begin and end. A sign of a script without spaces (3-byte Chinese, Japanese) is a word of its own."""
    inside = _word_bytes()[data]
    wide = (data >= 0xE3) & (data <= 0xE9)
    begins = inside.copy()
    begins[1:] &= ~inside[:-1]
    if wide.any():
        begins |= wide
        begins[3:] |= wide[:-3] & inside[3:]
    starts = np.flatnonzero(begins)
    closes = np.flatnonzero(inside[:-1] & ~inside[1:]) + 1  # the text ends with a line feed, so every word closes
    # A word ends where the next begins or where the run of word bytes closes, whichever comes first.
    stops = closes[np.searchsorted(closes, starts, side="right")]
    if wide.any():
        stops[:-1] = np.minimum(stops[:-1], starts[1:])
    return starts, stops
