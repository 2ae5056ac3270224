"""Fixtures of the tests on GPUs."""

from tests.support.train import tiny_home, train_runs

__all__ = ["tiny_home", "train_runs"]
