"""The plan that a run starts with: kept, refused, a note; and what the run measured in the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from engine.errors import DoesNotFit
from engine.files import write_json
from engine.plan import measured, models, mounts
from engine.recipe import defaults, limits
from engine.run import gpus, measure, planned, resuming, status
from engine.workspace import Workspace
from tests.support.fake_run import GB, FakeRun
from tests.support.plans import NO_GPU, cards


@pytest.fixture(autouse=True)
def room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disks and a memory with room: what this machine has is no part of these tests."""
    monkeypatch.setattr(mounts, "free", lambda _place: 1e13)
    monkeypatch.setattr(mounts, "host_memory", lambda: 2e12)


def make(house: Path, placement: Any = NO_GPU, *, auto: bool = True, **given: Any) -> planned.Planned:
    given = {"model_name_or_path": "Qwen/Qwen3-8B", "method": "lora", **given}
    resolved = defaults.fill(given, num_gpus=len(placement.gpus))
    return planned.make(house, resolved, placement, given=given, auto=auto)


def test_a_plan_that_fits_is_kept_whole(house: Path) -> None:
    plan = make(house, cards(1))
    assert plan.document is not None
    assert plan.document["format"] == 1
    assert plan.document["result"]["verdict"] == "fits"
    assert plan.document["card"] == "H100-SXM"
    planned.refuse(plan, where="x", force=False)
    assert [finding for finding in plan.findings if finding.level != "note"] == []


def test_a_plan_that_does_not_fit_is_refused_with_figures_and_a_fix(house: Path) -> None:
    plan = make(house, cards(1, name="NVIDIA L4", size=24 << 30), max_length=8192, per_device_train_batch_size=4)
    with pytest.raises(DoesNotFit) as caught:
        planned.refuse(plan, where="mine.yaml", force=False)
    error = caught.value
    assert (error.exit_code, error.kind, error.where) == (3, "does_not_fit", "mine.yaml")
    assert "GB" in error.what and "25.8" in error.what, error.what
    assert error.fix is not None and "=" in error.fix and "--force" in error.fix
    assert error.to_json()["plan"]["verdict"] == "no"


def test_the_fix_is_one_that_this_version_can_train(house: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(limits.SUPPORTED, "sharding", ("auto", "none", "ddp"))
    monkeypatch.setitem(limits.SUPPORTED, "cpu_offload", (False,))
    plan = make(house, cards(2, name="NVIDIA L4", size=24 << 30), max_length=8192)
    assert plan.result is not None and plan.result.verdict == "no"
    assert any(row["change"].get("sharding") == "fsdp2" for row in plan.result.advice), "or this tests nothing"
    fix = planned.best_fix(plan.result, {})
    assert fix and "fsdp2" not in fix and "cpu_offload" not in fix


def test_force_makes_it_a_warning(house: Path) -> None:
    plan = make(house, NO_GPU)
    assert plan.result is not None and plan.result.verdict == "no"
    planned.refuse(plan, where="x", force=True)
    assert {finding.level for finding in plan.findings} == {"warning"}


def test_without_gpus_the_limit_is_the_memory_of_the_host(house: Path) -> None:
    plan = make(house, NO_GPU)
    assert plan.result is not None and plan.document is not None
    assert "this server's memory" in planned.describe(plan.result)
    assert plan.document["request"]["gpu"] == "cpu"
    small = make(house, NO_GPU, model_name_or_path="builtin:tiny", dataset_path="builtin:support", max_length=256)
    assert small.result is not None and small.result.verdict == "fits"


@pytest.mark.parametrize("model", ["nobody/knows-this", "/nowhere/model"])
def test_no_plan_is_a_note_and_no_obstacle(house: Path, model: str) -> None:
    plan = make(house, cards(1), model_name_or_path=model)
    assert plan.document is None and plan.result is None
    (finding,) = plan.findings
    assert (finding.kind, finding.level) == ("no_plan", "note") and model in finding.detail
    planned.refuse(plan, where="x", force=False)


def test_a_fault_of_the_planner_is_a_note_too(house: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_args: object, **_more: object) -> None:
        raise KeyError("layers")

    monkeypatch.setattr("engine.plan.plan.plan", broken)
    (finding,) = make(house, cards(1)).findings
    assert (finding.kind, finding.level) == ("no_plan", "note")


def test_the_planner_chooses_the_sharding_where_it_can_be_trained(house: Path) -> None:
    plan = make(house, cards(4), auto=True)
    assert plan.sharding == "ddp"
    (note,) = [finding for finding in plan.findings if finding.key == "sharding"]
    assert "ddp" in note.detail and note.level == "note"
    assert make(house, cards(4), auto=False).findings == []


def test_a_sharding_that_this_version_lacks_is_said_and_not_taken(house: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(limits.SUPPORTED, "sharding", ("auto", "none", "ddp"))
    plan = make(house, cards(8), method="full", model_name_or_path="meta-llama/Llama-3.1-8B")
    assert plan.sharding is None
    (note,) = [finding for finding in plan.findings if finding.key == "sharding"]
    assert "fsdp2" in note.detail and "trains with ddp" in note.detail
    assert plan.document is not None and plan.document["request"]["sharding"] == "ddp"
    monkeypatch.setitem(limits.SUPPORTED, "sharding", ("auto", "none", "ddp", "fsdp2"))
    assert make(house, cards(8), method="full", model_name_or_path="meta-llama/Llama-3.1-8B").sharding == "fsdp2"


def test_checkpoints_that_the_disk_cannot_hold(house: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = {"model_name_or_path": str(house)}  # a folder: nothing to download
    (house / "config.json").write_bytes(orjson.dumps(models.config("Qwen/Qwen3-8B")))
    monkeypatch.setattr(mounts, "_others", lambda _own, _least: [])
    monkeypatch.setattr(mounts, "free", lambda _place: 2e9)
    plan = make(house, cards(1), **model)
    (warning,) = plan.findings
    assert warning.level == "warning" and warning.key == "disk" and "2.0 GB free" in warning.detail
    monkeypatch.setattr(mounts, "free", lambda _place: 0.5e9)
    with pytest.raises(DoesNotFit, match="too small"):
        planned.refuse(make(house, cards(1), **model), where="x", force=False)


def with_plan(house: Path, **given: Any) -> FakeRun:
    fake = FakeRun(house, "run-1", gpus=2, max_steps=100)
    plan = make(house, cards(2), packing=True, max_length=4096, **given)
    write_json(fake.run.plan, plan.document)
    return fake


def test_a_run_leaves_what_it_measured(house: Path) -> None:
    fake = with_plan(house)
    assert measure.of(fake.run) is None, "nothing was trained yet"
    fake.begin()
    fake.train([2.0] * 20)
    fake.sample(used=37.1 * GB, gpu1={"processes": [{"pid": 7, "memory": 38 * GB}]})
    measure.keep(fake.run)
    (line,) = measured.read(house).lines
    assert line["measured"] == {
        "memory": 31 * GB, "reserved": 35 * GB, "device": 38 * GB, "tokens_per_s": 10112.0,
            "batch_tokens": 2048.0,
    }  # fmt: skip
    assert (line["run"], line["steps"], line["card"]) == ("run-1", 20, "H100-SXM")


def test_a_gpu_that_others_use_measures_nothing(house: Path) -> None:
    fake = with_plan(house)
    fake.begin()
    fake.train([2.0] * 20)
    fake.sample(gpu0={"processes": [{"pid": 1, "memory": 5}, {"pid": 2, "memory": 6}]})
    record = measure.of(fake.run)
    assert record is not None and record["measured"]["device"] is None


def test_without_a_plan_or_with_a_broken_one_nothing_is_kept(house: Path) -> None:
    fake = with_plan(house)
    fake.begin()
    fake.train([2.0] * 20)
    fake.run.plan.write_text("{ no json")
    measure.keep(fake.run)
    assert measured.read(house).lines == [] and status.read_plan(fake.run) is None


def test_the_next_plan_of_the_kind_is_corrected(house: Path) -> None:
    """The whole way: plan, run, measure, plan again."""
    fake = with_plan(house)
    first = status.read_plan(fake.run)
    assert first is not None
    predicted = first["result"]["per_gpu"]["allocated_gb"]
    fake.begin()
    line = {"memory_allocated": [round(1.1 * predicted * GB)] * 2, "memory_reserved": [1] * 2, "tokens_per_s": 5000.0}
    for step in range(1, 4):
        fake.journal("log", step=step, epoch=0.1, **line)
    measure.keep(fake.run)
    again = make(house, cards(2), packing=True, max_length=4096, auto=False)
    assert again.document is not None
    assert again.document["result"]["per_gpu"]["allocated_gb"] == pytest.approx(1.1 * predicted, rel=1e-3)
    assert again.document["result"]["corrected_by"]["run"] == "run-1"
    assert again.document["result"]["time"]["tokens_per_s_total"] == pytest.approx(5000.0, rel=1e-3)


def test_a_resume_whose_checkpoint_does_not_fit_is_refused_unless_forced(house: Path) -> None:
    fake = with_plan(house)
    document = status.read_plan(fake.run)
    assert document is not None
    planned.refuse_resume(document, fake.run, force=False)
    planned.refuse_resume(None, fake.run, force=False)  # no plan is no obstacle
    card = document["result"]["per_gpu"]
    card["capacity_gb"] = card["resume_gb"] - 0.1
    with pytest.raises(planned.PlanRefused) as caught:
        planned.refuse_resume(document, fake.run, force=False)
    assert (caught.value.exit_code, caught.value.kind) == (3, "does_not_fit")
    assert "--force" in str(caught.value.fix) and "loading the checkpoint" in caught.value.what
    planned.refuse_resume(document, fake.run, force=True)


def test_more_host_memory_than_there_is_is_a_warning(house: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mounts, "host_memory", lambda: 16e9)
    plan = make(house, cards(8, size=180 << 30, name="NVIDIA B200"), model_name_or_path="meta-llama/Llama-3.1-70B")
    (warning,) = [finding for finding in plan.findings if finding.key == "host"]
    assert warning.level == "warning" and "16 GB" in warning.detail
    planned.refuse(plan, where="x", force=False)


def test_a_resume_keeps_the_sharding_that_was_planned_and_the_processes_of_a_cpu(house: Path) -> None:
    """Resolved anew, `sharding: auto` must not become another: the checkpoint is stored in its way."""
    run = FakeRun(house, "run-1").run
    recipe = defaults.fill({"global_batch_size": 16, "sharding": "fsdp2"}, num_gpus=8)
    document = {"format": 1, "recipe": recipe, "origin": {"sharding": "derived", "global_batch_size": "recipe"}}
    write_json(run.resolved, document)
    four, _given = resuming.resolve_again(run, cards(4), {})
    assert (four["recipe"]["sharding"], four["recipe"]["gradient_accumulation_steps"]) == ("fsdp2", 2)
    one, _given = resuming.resolve_again(run, cards(1), {})
    assert one["recipe"]["sharding"] == "none"

    given = {"device": "cpu", "num_gpus": 2, "global_batch_size": 16}
    recipe = defaults.fill(given, num_gpus=0)
    write_json(run.resolved, {"format": 1, "recipe": recipe, "origin": dict.fromkeys(given, "recipe")})
    placement = gpus.place_again(Workspace(house / "ft"), recipe, {"world_size": 2}, None)
    assert (placement.ranks, placement.device) == (2, "cpu")
    placement = gpus.place_again(Workspace(house / "ft"), recipe, {"world_size": 2}, 4)
    four, _given = resuming.resolve_again(run, placement, {})
    assert (four["recipe"]["num_gpus"], four["recipe"]["gradient_accumulation_steps"]) == (4, 2)
