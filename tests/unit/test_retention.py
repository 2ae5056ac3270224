"""Which checkpoints stay, which are reduced to their weights, and which go."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from engine.checkpoint import choice, ledger, manifest, pruning, retention, verify, weights
from engine.checkpoint.retention import Policy
from engine.files import write_json
from tests.support.checkpoints import write_checkpoint


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "resolved.json").write_text("{}")
    (tmp_path / "checkpoints").mkdir()
    return tmp_path


def seal(run: Path, step: int, **metrics: Any) -> Path:
    staging = write_checkpoint(run / "checkpoints" / f".staging-{step}", step)
    final = run / "checkpoints" / f"checkpoint-{step}"
    manifest.seal(staging, final, {"step": step, "metrics": metrics})
    return final


def steps(run: Path) -> list[int]:
    return sorted(entry.step for entry in ledger.list(run / "checkpoints"))


def decided(run: Path, policy: Policy, **facts: Any) -> dict[int, str]:
    return {v.entry.step: v.action for v in retention.decide(ledger.list(run / "checkpoints"), policy, **facts)}


def whys(run: Path, policy: Policy, **facts: Any) -> dict[int, list[str]]:
    return {v.entry.step: v.why for v in retention.decide(ledger.list(run / "checkpoints"), policy, **facts)}


def test_the_newest_the_best_the_protected_and_what_is_not_ours_stay(run):
    for step in (1, 2, 3, 4, 5):
        seal(run, step)
    (run / "checkpoints" / "checkpoint-0").mkdir()  # no seal: somebody else's
    (run / "backup").mkdir()
    write_json(run / "backup" / "protected.json", {"format": 1, "checkpoints": ["checkpoint-2"]})
    gone = retention.retire(run / "checkpoints", Policy(keep_last=2), best="/elsewhere/checkpoint-1")
    assert [path.name for path in gone] == ["checkpoint-3"]
    assert steps(run) == [0, 1, 2, 4, 5]


def test_a_broken_one_never_pushes_a_whole_one_out(run):
    for step in (1, 2, 3):
        seal(run, step)
    (run / "checkpoints" / "checkpoint-3" / "optimizer.pt").unlink()
    retention.retire(run / "checkpoints", Policy(keep_last=1))
    assert ledger.newest(run / "checkpoints").step == 2


def test_one_that_resumes_but_not_exactly_never_costs_the_last_exact_one(run):
    for step in (1, 2, 3):
        seal(run, step)
    for step in (2, 3):
        folder = run / "checkpoints" / f"checkpoint-{step}"
        document = json.loads((folder / "MANIFEST.json").read_text())
        write_json(folder / "MANIFEST.json", {**document, "world_size": 2})  # random states of one rank only
    assert decided(run, Policy(keep_last=1)) == {1: "stay", 2: "go", 3: "stay"}


@pytest.mark.parametrize("content", ["{", '{"checkpoints": "checkpoint-1"}', "[]"])
def test_nothing_is_deleted_while_the_protected_list_cannot_be_read(run, content):
    for step in (1, 2, 3):
        seal(run, step)
    (run / "backup").mkdir()
    (run / "backup" / "protected.json").write_text(content)
    assert retention.retire(run / "checkpoints", Policy(keep_last=1)) == []
    assert steps(run) == [1, 2, 3]


def test_the_best_by_a_metric_and_every_so_many_steps(run):
    for step, loss in ((10, 3.0), (20, 1.0), (30, 2.0), (40, float("nan")), (50, 2.5), (60, 4.0)):
        seal(run, step, eval_loss=loss, eval_accuracy=loss)
    lower = Policy(keep_last=1, keep_best=2)
    assert [step for step, action in decided(run, lower).items() if action == "stay"] == [20, 30, 60]
    higher = Policy(keep_last=1, keep_best=2, metric="eval_accuracy", greater_is_better=True)
    assert [step for step, action in decided(run, higher).items() if action == "stay"] == [10, 60]
    every = Policy(keep_last=1, keep_every=20)
    assert [step for step, action in decided(run, every).items() if action == "stay"] == [20, 40, 60]
    assert whys(run, every)[60] == ["newest_good", "last", "every"]


def test_the_recipe_says_the_rules():
    assert Policy.of({"save_total_limit": 3}) == Policy(keep_last=3)
    assert Policy.of({"save_total_limit": 3, "retention": {"keep_last": 1, "max_gb": 0.5}}) == Policy(
        keep_last=1, max_bytes=500_000_000
    )
    assert Policy.of({}).idle
    accuracy = Policy.of({"retention": {"keep_best": 2, "metric": "accuracy"}})
    assert (accuracy.metric, accuracy.greater_is_better) == ("eval_accuracy", True)
    assert not Policy.of({"retention": {"keep_best": 2}}).greater_is_better


def test_beyond_the_newest_only_the_weights_stay(run):
    for step in (10, 20, 30):
        seal(run, step, eval_loss=float(step))
    policy = Policy(keep_last=1, keep_best=1, weights_only=True)
    assert decided(run, policy) == {10: "reduce", 20: "go", 30: "stay"}
    before = {p.name: p.stat().st_ino for p in (run / "checkpoints" / "checkpoint-10").iterdir()}
    retention.retire(run / "checkpoints", policy)
    folder = run / "checkpoints" / "checkpoint-10"
    assert steps(run) == [10, 30]
    names = {p.name for p in folder.iterdir()}
    assert names == {"adapter_model.safetensors", "adapter_config.json", "trainer_state.json", "MANIFEST.json"}
    assert (folder / "adapter_model.safetensors").stat().st_ino == before["adapter_model.safetensors"]  # no copy
    checked = {entry.step: entry for entry in verify.verify(run).checkpoints}
    assert (checked[10].state, checked[10].resumable) == ("complete", False)
    assert [f.kind for f in checked[10].findings] == ["weights_only"]
    assert choice.choose(run / "checkpoints", step=10).entry is None
    assert choice.choose(run / "checkpoints").entry.step == 30
    assert decided(run, policy) == {10: "stay", 30: "stay"}  # once


def test_a_reduction_that_is_cut_short_leaves_the_full_one(run, monkeypatch):
    folder = seal(run, 10)
    monkeypatch.setattr(manifest, "write_json", lambda *a, **k: (_ for _ in ()).throw(OSError(28, "full")))
    with pytest.raises(OSError, match="full"):
        weights.reduce(folder)
    assert ledger.inspect(folder, check_hash=True).exact
    retention.clean(run / "checkpoints")
    assert steps(run) == [10]


def test_what_has_no_weights_of_its_own_is_not_reduced(run):
    folder = seal(run, 10)
    content = manifest.read(folder)
    content.files["global_step10/mp_rank_00_model_states.pt"] = content.files.pop("adapter_model.safetensors")
    write_json(folder / "MANIFEST.json", {"format": 1, "step": 10, "files": content.files})
    assert weights.of(manifest.read(folder)) == {}


def test_a_byte_budget_takes_the_oldest_first_and_never_what_must_stay(run):
    for step in (10, 20, 30, 40):
        seal(run, step, eval_loss=float(step))
    each = ledger.inspect(run / "checkpoints" / "checkpoint-40").bytes
    policy = Policy(keep_last=4, max_bytes=int(2.5 * each))
    assert decided(run, policy) == {10: "go", 20: "go", 30: "stay", 40: "stay"}
    assert decided(run, policy, pinned={"checkpoint-10"}) == {10: "stay", 20: "go", 30: "go", 40: "stay"}
    assert decided(run, Policy(keep_last=4, max_bytes=1)) == {10: "go", 20: "go", 30: "go", 40: "stay"}
    assert decided(run, Policy(max_bytes=1)) == {10: "go", 20: "go", 30: "go", 40: "stay"}  # no other rule
    every = Policy(keep_last=1, keep_every=10, max_bytes=int(2.5 * each))
    assert decided(run, every) == {10: "go", 20: "go", 30: "stay", 40: "stay"}
    assert whys(run, every)[10] == ["every", "over_budget"]


def test_weights_alone_are_kept_before_all_goes(run):
    for step in (10, 20, 30):
        seal(run, step)
    each = ledger.inspect(run / "checkpoints" / "checkpoint-30").bytes
    small = weights.size(run / "checkpoints" / "checkpoint-10")
    policy = Policy(keep_last=3, weights_only=True, max_bytes=each + 2 * small)
    assert decided(run, policy) == {10: "reduce", 20: "reduce", 30: "stay"}
    policy = Policy(keep_last=3, weights_only=True, max_bytes=each + small)
    assert decided(run, policy) == {10: "go", 20: "reduce", 30: "stay"}


def test_a_floor_of_free_space(run):
    for step in (10, 20, 30):
        seal(run, step)
    each = ledger.inspect(run / "checkpoints" / "checkpoint-30").bytes
    policy = Policy(keep_last=3, min_free=10 * each)
    assert decided(run, policy, free=10 * each) == {10: "stay", 20: "stay", 30: "stay"}
    assert decided(run, policy, free=9 * each) == {10: "go", 20: "stay", 30: "stay"}
    assert decided(run, policy, free=0) == {10: "go", 20: "go", 30: "stay"}


def test_whatever_the_rules_and_the_damage_the_newest_good_one_stays(run):
    """All combinations of rules against all combinations of three damaged ones of five."""
    for step in (1, 2, 3, 4, 5):
        seal(run, step, eval_loss=float(step))
    policies = [
        Policy(*rules)
        for rules in itertools.product(
            (None, 1, 3), (0, 1), ("eval_loss",), (False, True), (None, 2), (False, True), (None, 1), (None, 10**15)
        )
    ]
    entries = ledger.list(run / "checkpoints")
    for broken in itertools.chain(*(itertools.combinations(range(5), n) for n in range(5))):
        shown = [
            entry
            if index not in broken
            else ledger.Entry(entry.step, entry.path, "broken", sealed=True, bytes=entry.bytes)
            for index, entry in enumerate(entries)
        ]
        newest = max(entry.step for entry in shown if entry.exact)
        for policy in policies:
            verdicts = retention.decide(shown, policy, pinned={"checkpoint-1"}, best="checkpoint-2", free=0)
            actions = {v.entry.step: v.action for v in verdicts}
            assert (actions[newest], actions[1], actions[2]) == ("stay", "stay", "stay")


def test_the_dry_run_gives_a_reason_for_each(run):
    for step in (10, 20, 30, 40):
        seal(run, step, eval_loss=float(step))
    rules = {"keep_last": 1, "keep_best": 1, "keep_every": 20, "weights_only": True}
    write_json(run / "resolved.json", {"recipe": {"retention": rules}})
    plan = pruning.plan(run)
    assert {v.entry.step: (v.action, v.reason) for v in plan.verdicts} == {
        10: ("reduce", "only the weights stay: among the best 1 by eval_loss"),
        20: ("reduce", "only the weights stay: every 20 steps one stays"),
        30: ("go", "older than the newest 1"),
        40: ("stay", "among the newest 1"),
    }
    assert plan.bytes == sum(v.frees for v in plan.verdicts) > 0
    assert steps(run) == [10, 20, 30, 40]
    pruning.remove(plan)
    assert steps(run) == [10, 20, 40]
    assert sum(e.bytes for e in ledger.list(run / "checkpoints")) == sum(v.entry.bytes - v.frees for v in plan.verdicts)


def test_one_that_the_run_retired_meanwhile_does_not_stop_a_prune(run):
    for step in (10, 20, 30):
        seal(run, step)
    plan = pruning.plan(run, limit=1)
    retention.retire(run / "checkpoints", Policy(keep_last=2))
    assert [path.name for path in pruning.remove(plan)] == ["checkpoint-20"]
