"""Fixtures of the integration tests."""

from tests.support.train import tiny_home, train_runs

__all__ = ["tiny_home", "train_runs"]
