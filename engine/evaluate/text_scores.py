"""Scores of one text against another: words in common, ROUGE, numbers. For every script: words are Unicode's.

(The usual ROUGE package keeps a-z and 0-9 only: a Russian answer has no words to it.)
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

_WORDS = re.compile(r"\w+")
# A sign, digits with thousands apart (space, comma, apostrophe) or not, and decimals.
_NUMBER = re.compile(r"[-−+]?(?:\d{1,3}(?:[,’' \u00a0\u202f]\d{3})+(?![\d])|\d+)(?:[.,]\d+)?(?:[eE][-+]?\d+)?")


def words(text: str) -> list[str]:
    """The words of a text in lower case, without punctuation."""
    return _WORDS.findall(text.casefold())


def f1(answer: str, reference: str) -> float:
    """Words in common: the harmonic mean of precision and recall."""
    return _f(Counter(words(answer)), Counter(words(reference)))


def rouge_n(answer: str, reference: str, n: int) -> float:
    """ROUGE-N: the F-measure of runs of n words."""
    return _f(_runs(words(answer), n), _runs(words(reference), n))


def rouge_l(answer: str, reference: str) -> float:
    """ROUGE-L: the F-measure of the longest common subsequence of words."""
    said, wanted = words(answer), words(reference)
    if not said or not wanted:
        return float(said == wanted)
    common = _subsequence(said, wanted)
    return 2 * common / (len(said) + len(wanted))


def last_number(text: str) -> float | None:
    """The last number in a text: of an answer that reasons, its result."""
    found = _NUMBER.findall(text)
    return _value(found[-1]) if found else None


def _value(text: str) -> float | None:
    text = re.sub(r"[ \u00a0\u202f’']", "", text).replace("−", "-")
    whole, comma, rest = text.partition(",")
    if comma:
        thousands = re.fullmatch(r"[-+]?\d{1,3}(,\d{3})+(\.\d+)?([eE][-+]?\d+)?", text)
        text = text.replace(",", "") if thousands else f"{whole}.{rest}"
    try:
        return float(text)
    except ValueError:
        return None


def _runs(items: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(items[at : at + n]) for at in range(len(items) - n + 1))


def _f(said: Counter[Any], wanted: Counter[Any]) -> float:
    total = said.total() + wanted.total()
    if not total:
        return 1.0
    return 2 * (said & wanted).total() / total


def _subsequence(a: Sequence[str], b: Sequence[str]) -> int:
    before = [0] * (len(b) + 1)
    for word in a:
        row = [0]
        for at, other in enumerate(b):
            row.append(before[at] + 1 if word == other else max(before[at + 1], row[at]))
        before = row
    return before[-1]
