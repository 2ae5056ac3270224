"""How sure a number is: intervals, paired tests, and whether the rows are enough to tell."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Verdict = Literal["better", "worse", "same", "not_enough_rows"]
LEVEL = 0.95
DRAWS = 2000
FLIPS = 9999
BLOCK = 2_000_000  # numbers drawn at once
SEED = 20
FEWEST = 10  # rows below which nothing is said about a difference


@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % interval, and the rows that it is from."""

    value: float
    low: float
    high: float
    n: int

    def to_json(self) -> dict[str, float | int]:
        return {"value": self.value, "low": self.low, "high": self.high, "n": self.n}


@dataclass(frozen=True)
class Delta:
    """Tuned less base: the difference, its interval, how likely one as large is by chance, and what follows."""

    value: float
    low: float
    high: float
    p: float
    n: int
    verdict: Verdict
    rows_needed: int | None = None

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))


class Measure:
    """One metric of one model, row by row. `of(index)` is its value on drawn rows, for many drawings at once."""

    n: int
    share = False  # whether each row is right or wrong

    def of(self, index: NDArray[np.int64]) -> Floats:
        """The values on drawings of rows, one a line of `index`."""
        raise NotImplementedError

    @property
    def value(self) -> float:
        """The value on all rows."""
        return float(self.of(np.arange(self.n)[None, :])[0])


class Mean(Measure):
    """A score a row; shares are the mean of zeros and ones."""

    def __init__(self, scores: list[float] | Floats, *, share: bool = False) -> None:
        self.scores = np.asarray(scores, np.float64)
        self.n, self.share = len(self.scores), share

    def of(self, index: NDArray[np.int64]) -> Floats:
        return np.asarray(self.scores[index].mean(axis=1))


class TrainerLoss(Measure):
    """The trainer's evaluation loss: the mean over batches of their tokens' mean, weighted by their rows."""

    def __init__(self, nll: list[float] | Floats, tokens: list[float] | Floats, batch: int) -> None:
        self.nll, self.tokens = np.asarray(nll, np.float64), np.asarray(tokens, np.float64)
        self.n, self.batch = len(self.nll), max(1, batch)

    def of(self, index: NDArray[np.int64]) -> Floats:
        starts = np.arange(0, self.n, self.batch)
        sizes = np.diff(np.append(starts, self.n))
        sums = np.add.reduceat(self.nll[index], starts, axis=1)
        counts = np.maximum(np.add.reduceat(self.tokens[index], starts, axis=1), 1)
        return np.asarray((sums / counts) @ sizes / self.n)


class TokenMean(Measure):
    """A mean over all tokens (loss, accuracy); as perplexity its exponential."""

    def __init__(self, sums: list[float] | Floats, tokens: list[float] | Floats, *, exponential: bool = False) -> None:
        self.sums, self.tokens = np.asarray(sums, np.float64), np.asarray(tokens, np.float64)
        self.n, self.exponential = len(self.sums), exponential

    def of(self, index: NDArray[np.int64]) -> Floats:
        mean = self.sums[index].sum(axis=1) / np.maximum(self.tokens[index].sum(axis=1), 1)
        return np.asarray(np.exp(np.minimum(mean, 700)) if self.exponential else mean)


class Corpus(Measure):
    """A value made of sums over rows, as BLEU's."""

    def __init__(self, counts: list[list[int]], value: Callable[[list[int]], float]) -> None:
        self.counts, self._value = np.asarray(counts, np.int64), value
        self.n = len(self.counts)

    def of(self, index: NDArray[np.int64]) -> Floats:
        return np.array([self._value(self.counts[row].sum(axis=0).tolist()) for row in index])


def _drawings(n: int, draws: int, rng: np.random.Generator) -> list[NDArray[np.int64]]:
    block = max(1, BLOCK // max(1, n))
    return [rng.integers(0, n, (min(block, draws - at), n)) for at in range(0, draws, block)]


def _quantiles(values: Floats, n: int) -> tuple[float, float]:
    """The interval of drawings: wider by what Student's t asks for few rows (percentiles alone are too narrow)."""
    alpha = NormalDist().cdf(-math.sqrt(n / max(1, n - 1)) * _student(n - 1))
    low, high = np.quantile(values, (alpha, 1 - alpha))
    return float(low), float(high)


def _student(freedom: int) -> float:
    """The 97.5 % point of Student's t (Cornish-Fisher expansion; good to 0.01 from 4 degrees of freedom on)."""
    z, v = NormalDist().inv_cdf(0.5 + LEVEL / 2), max(4, freedom)
    return (
        z
        + (z**3 + z) / (4 * v)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
    )


def estimate(measure: Measure) -> Estimate:
    """A metric's value with its interval: Wilson's for shares, else by drawing rows again."""
    value, n = measure.value, measure.n
    if measure.share:
        return Estimate(value, *wilson(value, n), n)
    if n < 2:
        return Estimate(value, -math.inf, math.inf, n)
    rng = np.random.default_rng(SEED)
    values = np.concatenate([measure.of(index) for index in _drawings(n, DRAWS, rng)])
    return Estimate(value, *_quantiles(values, n), n)


def wilson(share: float, n: int) -> tuple[float, float]:
    """The 95 % interval of a share of n rows."""
    z2 = NormalDist().inv_cdf(0.5 + LEVEL / 2) ** 2
    middle = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = math.sqrt(z2 * (share * (1 - share) / n + z2 / (4 * n * n))) / (1 + z2 / n)
    return max(0.0, middle - half), min(1.0, middle + half)


def compare(base: Measure, tuned: Measure, *, lower_is_better: bool, margin: float) -> Delta:
    """The difference of two models on the same rows.

    Args:
        base: the base's metric.
        tuned: the tuned model's, on the same rows in the same order.
        lower_is_better: of the metric.
        margin: a difference up to this does not matter: an interval inside it means "same".
    """
    assert base.n == tuned.n
    n, value = base.n, tuned.value - base.value
    if base.share:
        low, high, p = _paired_shares(base, tuned)
    elif n < 2:
        low, high, p = -math.inf, math.inf, 1.0
    else:
        rng = np.random.default_rng(SEED)
        index = _drawings(n, DRAWS, rng)
        low, high = _quantiles(np.concatenate([tuned.of(rows) - base.of(rows) for rows in index]), n)
        p = _swapped(base, tuned, value, rng)
    return Delta(value, low, high, p, n, *_judged(value, low, high, p, n, lower_is_better, margin))


def _judged(
    value: float, low: float, high: float, p: float, n: int, lower_is_better: bool, margin: float
) -> tuple[Verdict, int | None]:
    if n >= FEWEST and (low > 0 or high < 0) and p < 1 - LEVEL:
        return ("better" if (value < 0) == lower_is_better else "worse"), None
    if n >= FEWEST and -margin <= low and high <= margin:
        return "same", None
    half = (high - low) / 2
    needed = math.ceil(n * (half / margin) ** 2) if math.isfinite(half) else None
    return "not_enough_rows", max(FEWEST, needed) if needed is not None else FEWEST


def _paired_shares(base: Measure, tuned: Measure) -> tuple[float, float, float]:
    """Bonett and Price's interval and the exact McNemar test: only rows on which the models differ count."""
    assert isinstance(base, Mean) and isinstance(tuned, Mean)
    won = int(((tuned.scores > 0.5) & (base.scores <= 0.5)).sum())
    lost = int(((base.scores > 0.5) & (tuned.scores <= 0.5)).sum())
    n = base.n
    up, down = (won + 1) / (n + 2), (lost + 1) / (n + 2)
    half = NormalDist().inv_cdf(0.5 + LEVEL / 2) * math.sqrt((up + down - (up - down) ** 2) / (n + 2))
    return max(-1.0, up - down - half), min(1.0, up - down + half), sign_test(won, lost)


def sign_test(won: int, lost: int) -> float:
    """How likely a split as uneven is, were each side as likely (two-sided, exact)."""
    total, least = won + lost, min(won, lost)
    if not total:
        return 1.0
    return min(1.0, float(2 * sum(math.comb(total, k) for k in range(least + 1)) / 2**total))


def _swapped(base: Measure, tuned: Measure, value: float, rng: np.random.Generator) -> float:
    """A permutation test: were the two models alike, each row's two results could be swapped."""
    differences = _linear(base, tuned)
    if differences is None:
        return _swapped_sums(base, tuned, value, rng)
    observed, hits, at = abs(float(differences.sum())), 0, 0
    block = max(1, BLOCK // len(differences))
    while at < FLIPS:
        count = min(block, FLIPS - at)
        signs = rng.integers(0, 2, (count, len(differences))) * 2.0 - 1.0
        hits += int((np.abs(signs @ differences) >= observed * (1 - 1e-9)).sum())
        at += count
    return (hits + 1) / (FLIPS + 1)


def _linear(base: Measure, tuned: Measure) -> Floats | None:
    """What each row adds to the difference, where the metric is a weighted sum of rows."""
    if isinstance(base, Mean) and isinstance(tuned, Mean):
        return tuned.scores - base.scores
    if isinstance(base, TrainerLoss) and isinstance(tuned, TrainerLoss):
        starts = np.arange(0, base.n, base.batch)
        counts = np.maximum(np.add.reduceat(base.tokens, starts), 1)
        sizes = np.diff(np.append(starts, base.n))
        return (tuned.nll - base.nll) * np.repeat(sizes / counts, sizes)
    if isinstance(base, TokenMean) and isinstance(tuned, TokenMean):
        return tuned.sums - base.sums
    return None


def _swapped_sums(base: Measure, tuned: Measure, value: float, rng: np.random.Generator) -> float:
    assert isinstance(base, Corpus) and isinstance(tuned, Corpus)
    hits = 0
    for _flip in range(DRAWS):
        swap = rng.integers(0, 2, (base.n, 1)).astype(bool)
        one = np.where(swap, base.counts, tuned.counts).sum(axis=0).tolist()
        other = np.where(swap, tuned.counts, base.counts).sum(axis=0).tolist()
        hits += abs(tuned._value(one) - base._value(other)) >= abs(value) * (1 - 1e-9)
    return (hits + 1) / (DRAWS + 1)
