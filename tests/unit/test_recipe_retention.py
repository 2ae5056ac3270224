"""The rules for keeping checkpoints in a recipe: each mistake told by its own line."""

from __future__ import annotations

import pytest

from tests.support.recipes import FIRST, furnish, load

RULES = """retention:
  keep_last: 2
  keep_best: 1
  metric: accuracy
  greater_is_better: true
  keep_every: 100
  weights_only: true
  max_gb: 0.5
  min_free_gb: 20
async_save: false
"""


@pytest.fixture(autouse=True)
def furnished(tmp_path):
    furnish(tmp_path)


def test_all_rules_together(tmp_path):
    loaded = load(tmp_path, RULES)
    assert not [finding for finding in loaded.findings if finding.level == "error"]
    assert loaded.recipe["retention"]["max_gb"] == 0.5
    assert loaded.recipe["async_save"] is False


@pytest.mark.parametrize(
    ("rule", "kind", "says"),
    [
        ("kep_best: 2", "unknown_key", "kep_best"),
        ("keep_last: 0", "out_of_range", "0"),
        ("keep_last: 1.5", "out_of_range", "1.5"),
        ("keep_last: three", "wrong_type", "three"),
        ("keep_every: true", "wrong_type", "keep_every"),
        ("max_gb: -1", "out_of_range", "-1"),
        ("min_free_gb: much", "wrong_type", "much"),
        ("weights_only: 1", "wrong_type", "weights_only"),
        ("metric: 3", "wrong_type", "metric"),
        ("greater_is_better: true", "conflict", "without a metric"),
    ],
)
def test_a_mistake_is_told_by_its_line(tmp_path, rule, kind, says):
    found = load(tmp_path, f"retention:\n  keep_best: 1\n  {rule}\n").findings
    errors = [finding for finding in found if finding.level == "error"]
    assert [(finding.kind, finding.lines) for finding in errors] == [(kind, [FIRST + 2])]
    assert says in errors[0].detail
    assert errors[0].fix
