"""Intervals that cover, tests that do not see what is not there, and the courage to say "not enough rows"."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from engine.evaluate import statistics
from engine.evaluate.statistics import Corpus, Estimate, Mean, TokenMean, TrainerLoss, compare, estimate

Rng = np.random.Generator


def share(rng: Rng, n: int, p: float) -> Estimate:
    return estimate(Mean((rng.random(n) < p).astype(float), share=True))


def losses(rng: Rng, n: int) -> Estimate:
    tokens = rng.integers(10, 60, n).astype(float)
    return estimate(TokenMean(rng.gamma(4, 0.3, n) * tokens, tokens))


def trainer(rng: Rng, n: int) -> Estimate:
    tokens = rng.integers(10, 60, n).astype(float)
    return estimate(TrainerLoss(rng.gamma(4, 0.3, n) * tokens, tokens, 8))


def difference(rng: Rng, n: int) -> Estimate:
    """Paired shares: both right in 50 %, only the tuned in 20 %, only the base in 10 %."""
    u = rng.random(n)
    base, tuned = Mean((u < 0.6).astype(float), share=True), Mean(((u < 0.5) | (u > 0.8)).astype(float), share=True)
    delta = compare(base, tuned, lower_is_better=False, margin=0.03)
    return Estimate(delta.value, delta.low, delta.high, n)


def score_difference(rng: Rng, n: int) -> Estimate:
    common = rng.random(n)
    base, tuned = Mean(common + 0.2 * rng.standard_normal(n)), Mean(common + 0.1 + 0.2 * rng.standard_normal(n))
    delta = compare(base, tuned, lower_is_better=False, margin=0.03)
    return Estimate(delta.value, delta.low, delta.high, n)


@pytest.mark.parametrize(
    ("make", "truth", "trials"),
    [
        (lambda rng: share(rng, 50, 0.7), 0.7, 2000),
        (lambda rng: share(rng, 200, 0.9), 0.9, 2000),
        (lambda rng: difference(rng, 100), 0.1, 2000),
        (lambda rng: estimate(Mean(rng.beta(2, 3, 60))), 0.4, 900),
        (lambda rng: losses(rng, 100), 1.2, 900),
        (lambda rng: trainer(rng, 100), 1.2, 900),
        (lambda rng: score_difference(rng, 60), 0.1, 500),
    ],
)
def test_95_percent_intervals_cover_93_to_97(
    make: Callable[[Rng], Estimate], truth: float, trials: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statistics, "DRAWS", 600)
    monkeypatch.setattr(statistics, "FLIPS", 19)  # its p is not looked at here
    hits = sum(found.low <= truth <= found.high for found in (make(np.random.default_rng(k)) for k in range(trials)))
    noise = 1.6 * math.sqrt(0.95 * 0.05 / trials)  # of the simulation itself
    assert 0.93 - noise <= hits / trials <= 0.97 + noise, hits / trials


def test_what_is_not_there_is_rarely_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "DRAWS", 200)
    monkeypatch.setattr(statistics, "FLIPS", 399)
    seen = {"mean": 0, "share": 0}
    for k in range(400):
        rng = np.random.default_rng(k)
        a, b = rng.random(40), rng.random(40)
        seen["mean"] += compare(Mean(a), Mean(b), lower_is_better=False, margin=0.03).p < 0.05
        one, other = Mean((a < 0.5).astype(float), share=True), Mean((b < 0.5).astype(float), share=True)
        seen["share"] += compare(one, other, lower_is_better=False, margin=0.03).p < 0.05
    assert seen["mean"] / 400 < 0.08 and seen["share"] / 400 < 0.06


def test_the_exact_tests_values() -> None:
    assert statistics.sign_test(8, 0) == pytest.approx(2 / 256)
    assert statistics.sign_test(5, 5) == 1 and statistics.sign_test(0, 0) == 1
    assert statistics.sign_test(9, 1) == pytest.approx(22 / 1024)
    low, high = statistics.wilson(0.0, 25)
    assert low == 0 and high == pytest.approx(0.1332, abs=1e-3)  # nothing right of 25 is not "0 for sure"


@pytest.mark.parametrize(
    ("won", "lost", "n", "verdict"),
    [(20, 0, 25, "better"), (0, 20, 25, "worse"), (3, 0, 25, "not_enough_rows"), (5, 0, 8, "not_enough_rows"),
     (4, 4, 2000, "same")],
)  # fmt: skip
def test_verdicts(won: int, lost: int, n: int, verdict: str) -> None:
    base, tuned = np.zeros(n), np.zeros(n)
    tuned[:won] = 1
    base[won : won + lost] = 1
    delta = compare(Mean(base, share=True), Mean(tuned, share=True), lower_is_better=False, margin=0.03)
    assert delta.verdict == verdict
    assert (delta.rows_needed is not None) == (verdict == "not_enough_rows")
    assert delta.value == pytest.approx((won - lost) / n)


def test_lower_is_better_of_a_loss() -> None:
    rng = np.random.default_rng(0)
    tokens = rng.integers(10, 60, 50).astype(float)
    base, tuned = TokenMean(2.0 * tokens, tokens), TokenMean((1.5 + 0.1 * rng.random(50)) * tokens, tokens)
    delta = compare(base, tuned, lower_is_better=True, margin=0.02)
    assert delta.verdict == "better" and delta.value < 0 and delta.high < 0 and delta.p < 0.001


def test_the_trainers_mean_is_that_of_batches() -> None:
    measure = TrainerLoss([1.0, 2.0, 9.0], [1.0, 3.0, 3.0], 2)
    assert measure.value == pytest.approx(((1 + 2) / 4 * 2 + 9 / 3) / 3)


def test_one_row_says_nothing() -> None:
    delta = compare(Mean([0.1]), Mean([0.9]), lower_is_better=False, margin=0.03)
    assert delta.verdict == "not_enough_rows" and delta.p == 1 and math.isinf(delta.high)


def test_sums_are_compared_too() -> None:
    rng = np.random.default_rng(1)
    bad, good = rng.integers(0, 3, (40, 2)), rng.integers(5, 9, (40, 2))

    def value(sums: list[int]) -> float:
        return sums[0] / (sums[0] + sums[1] + 10)

    delta = compare(
        Corpus(bad.tolist(), value), Corpus((good * [3, 1]).tolist(), value), lower_is_better=False, margin=0.03
    )
    assert delta.verdict == "better" and delta.low > 0 and delta.p < 0.01
