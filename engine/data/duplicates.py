"""The same row twice, nearly the same row twice, and training rows among those for evaluation."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.data.shingles import BANDS, PLACES, SIDE, WHOLE

U64 = NDArray[np.uint64]
# The share of words in common (Jaccard). Where every seventh word of a text was replaced it is 0.75; the estimate is
# good to about 0.05.
THRESHOLD = 0.57
SIDE_THRESHOLD = 0.35  # at least that much of the prompts, and of the answers
NEIGHBORS = 3
CHUNK = 1 << 16


@dataclass
class Prints:
    """What is kept of each row to compare it: hashes of its content, and its signature."""

    line: NDArray[np.int64]
    exact: U64  # of the row's messages as they are
    normal: U64  # of the same in lower case, white space as one space
    prompt: U64  # of the normalized text before the answer; 0 for texts
    answer: U64  # of the normalized last answer; 0 where there is none
    swapped: U64  # of preferences: `exact` with the two answers exchanged; else 0
    label: NDArray[np.bool_]  # whether the answer is one short word
    keys: NDArray[np.uint32]  # of `shingles`
    minima: NDArray[np.uint8]

    @classmethod
    def empty(cls) -> Prints:
        """No rows."""
        none = np.zeros(0, np.uint64)
        keys, minima = np.zeros((0, BANDS), np.uint32), np.zeros((0, PLACES), np.uint8)
        return cls(np.zeros(0, np.int64), none, none, none, none, none, np.zeros(0, np.bool_), keys, minima)

    @classmethod
    def join(cls, parts: list[Prints]) -> Prints:
        """The rows of all parts, in order. The parts are used up, so that no row is in memory twice."""
        if not parts:
            return cls.empty()
        columns = {}
        for column in fields(cls):
            columns[column.name] = np.concatenate([getattr(part, column.name) for part in parts])
            for part in parts:
                setattr(part, column.name, None)
        return cls(**columns)


def first_index(values: U64) -> NDArray[np.int64]:
    """For each place, the first place that holds the same value (its own where it is the first)."""
    _unique, first, back = np.unique(values, return_index=True, return_inverse=True)
    return np.asarray(first[back], np.int64)


def repeats(values: U64) -> NDArray[np.int64]:
    """For each place, the place of the same value before it; -1 where there is none."""
    first = first_index(values)
    return np.where(first < np.arange(len(values)), first, -1)


def contradictions(prints: Prints) -> NDArray[np.int64]:
    """Rows that other rows contradict: two answers preferred the other way round, or two labels for one prompt."""
    asked = np.flatnonzero(prints.swapped != 0)
    turned = asked[np.isin(prints.swapped[asked], prints.exact)]
    labeled = np.flatnonzero(prints.label & (prints.prompt != 0))
    pairs = np.unique(np.stack([prints.prompt[labeled], prints.answer[labeled]], axis=1), axis=0)
    prompts, counts = np.unique(pairs[:, 0], return_counts=True)
    torn = labeled[np.isin(prints.prompt[labeled], prompts[counts > 1])]
    return np.sort(np.concatenate([turned, torn]))


def near(prints: Prints, exact: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each row, an earlier row that is nearly the same; -1 where there is none, or where it is an exact duplicate.

    Args:
        prints: the rows.
        exact: `repeats(prints.exact)`.
    """
    partner = repeats(prints.normal)
    alone = np.flatnonzero((partner < 0) & prints.keys.any(axis=1))
    found = similar(prints, alone)
    hit = found >= 0
    partner[alone[hit]] = found[hit]
    partner[exact >= 0] = -1
    return partner


def similar(prints: Prints, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each of some rows, an earlier one of them that is alike; -1 where there is none.

    Rows that share a band are candidates. Of a band that many rows share (a phrase that all have) each row is compared
    with a few before it and with the first, so that the time grows with the number of rows, not with its square.
    """
    partner = np.full(len(prints.line), -1, np.int64)
    for band in range(BANDS):
        column = prints.keys[rows, band]
        places = np.argsort(column, kind="stable")
        ordered, order = column[places], rows[places]
        for step in range(1, NEIGHBORS + 1):
            same = np.flatnonzero(ordered[step:] == ordered[:-step])
            if not len(same):
                break
            _accept(prints.minima, partner, order[same + step], order[same])
        else:
            first = np.flatnonzero(np.diff(ordered, prepend=ordered[0] ^ np.uint32(1)))
            heads = order[first][np.searchsorted(first, np.arange(len(order)), side="right") - 1]
            far = order != heads
            _accept(prints.minima, partner, order[far], heads[far])
    return partner[rows]


def _accept(
    minima: NDArray[np.uint8], partner: NDArray[np.int64], later: NDArray[np.int64], before: NDArray[np.int64]
) -> None:
    wanted = partner[later] < 0
    later, before = later[wanted], before[wanted]
    for start in range(0, len(later), CHUNK):
        a, b = later[start : start + CHUNK], before[start : start + CHUNK]
        alike = are_alike(minima[a], minima[b])
        partner[a[alike]] = b[alike]


def are_alike(a: NDArray[np.uint8], b: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Whether pairs of rows are near duplicates, by their minima."""
    equal = a == b
    whole = equal[:, :WHOLE].mean(axis=1) >= THRESHOLD
    prompt = equal[:, WHOLE : WHOLE + SIDE].mean(axis=1) >= SIDE_THRESHOLD
    answer = equal[:, WHOLE + SIDE :].mean(axis=1) >= SIDE_THRESHOLD
    return np.asarray(whole & prompt & answer)


@dataclass
class Overlap:
    """Rows for evaluation that are in the training data: for each its training row, or -1."""

    same: NDArray[np.int64]
    alike: NDArray[np.int64]
    prompt: NDArray[np.int64]


def overlap(train: Prints, held_out: Prints) -> Overlap:
    """Which rows for evaluation are in the training data: the same, nearly the same, or with the same prompt."""
    same = _look_up(train.normal, held_out.normal)
    prompt = np.where(held_out.prompt == 0, -1, _look_up(train.prompt, held_out.prompt))
    alike = np.full(len(same), -1, np.int64)
    open_rows = np.flatnonzero((same < 0) & held_out.keys.any(axis=1))
    if len(open_rows) and len(train.line):
        alike[open_rows] = _similar_across(train, held_out, open_rows)
    prompt[same >= 0] = -1
    return Overlap(same, alike, prompt)


def _look_up(known: NDArray[Any], asked: NDArray[Any]) -> NDArray[np.int64]:
    """For each asked value its first place among the known ones, or -1."""
    if not len(known):
        return np.full(len(asked), -1, np.int64)
    order = np.argsort(known, kind="stable")
    place = np.searchsorted(known[order], asked)
    place[place == len(known)] = 0
    hit = known[order[place]] == asked
    return np.where(hit, order[place], -1)


def _similar_across(train: Prints, held_out: Prints, places: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each of the given rows for evaluation, a training row that is alike; -1 where there is none."""
    partner = np.full(len(places), -1, np.int64)
    for band in range(BANDS):
        rows = np.flatnonzero(partner < 0)
        candidates = _look_up(train.keys[:, band], held_out.keys[places[rows], band])
        hit = candidates >= 0
        rows, candidates = rows[hit], candidates[hit]
        for start in range(0, len(rows), CHUNK):
            a, b = rows[start : start + CHUNK], candidates[start : start + CHUNK]
            alike = are_alike(held_out.minima[places[a]], train.minima[b])
            partner[a[alike]] = b[alike]
    return partner
