"""The draft behind the planner screen: changes, advice, files."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine import recipe
from engine.errors import UsageError
from engine.plan.draft import Draft, Here, open_recipe
from engine.workspace import Workspace

H100 = Here("NVIDIA H100 80GB HBM3", 85.5, 1)
TEXT = """\
# my recipe
model_name_or_path: Qwen/Qwen3-8B   # the base
dataset_path: train.jsonl
method: lora
r: 16          # a synonym of lora_r
lora_target_modules:
  - q_proj
  - v_proj
max_length: 2048
"""


@pytest.fixture
def mine(house: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = house / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "train.jsonl").write_text('{"text": "' + "a" * 4000 + '"}\n' * 1)
    path = folder / "mine.yaml"
    path.write_text(TEXT)
    return path


def space(house: Path) -> Workspace:
    return Workspace(house / "ft")


def test_a_change_and_its_way_back(mine: Path, house: Path) -> None:
    draft = open_recipe("mine.yaml", H100)
    longer = draft.change("max_length", 8192)
    assert longer.plan(space(house)).device.needs > draft.plan(space(house)).device.needs
    assert longer.overrides() == ["max_length=8192"]
    assert longer.change("max_length", 2048).changes == {}, "what the recipe says is no change"
    assert draft.changes == {}, "a draft is an undo of those made from it"


def test_the_values_are_those_of_the_recipe(mine: Path, house: Path) -> None:
    draft = open_recipe("mine.yaml", H100)
    request = draft.plan(space(house)).request
    assert request.lora_targets == {"q_proj", "v_proj"} and request.lora_r == 16
    assert request.lengths, "its data are looked at"
    assert draft.change("dataset_path", None).plan(space(house)).request.lengths == ()


def test_overrides_open_as_changes(mine: Path) -> None:
    draft = open_recipe("mine.yaml", H100, ["max_length=512", "method=qlora"])
    assert draft.changes == {"max_length": 512, "method": "qlora"}


def test_other_servers(mine: Path, house: Path) -> None:
    draft = open_recipe("mine.yaml", Here("cpu", 24.0, 0))
    assert draft.plan(space(house)).verdict == "no", "without GPUs the limit is the host's memory"
    there = draft.on("8xH100")
    result = there.plan(space(house))
    assert (result.request.num_gpus, result.verdict) == (8, "fits")
    assert result.sharding_reason
    with pytest.raises(UsageError):
        draft.on("8xNothing").plan(space(house))


def test_bad_values_name_their_key(mine: Path, house: Path) -> None:
    draft = open_recipe("mine.yaml", H100)
    for key, value in (("max_length", 10**9), ("lora_r", 10**6), ("global_batch_size", 7), ("max_length", 0)):
        with pytest.raises(UsageError) as caught:
            draft.change("per_device_train_batch_size", 2).change(key, value).plan(space(house))
        assert caught.value.where == key


def test_advice_becomes_a_change(mine: Path, house: Path) -> None:
    draft = open_recipe("mine.yaml", Here("L4", None, 1)).change("max_length", 8192)
    result = draft.plan(space(house))
    assert result.verdict == "no"
    taken = 0
    for row in result.advice:
        other = draft.apply(row)
        if other is None:
            continue
        taken += 1
        again = other.plan(space(house))
        assert again.device.needs / 1e9 == pytest.approx(row["needs_gb"], abs=0.1), row["text"]
    assert taken >= 2


def test_the_accumulation_of_an_advice_is_left_to_the_global_batch(mine: Path) -> None:
    draft = open_recipe("mine.yaml", H100)
    row = {"change": {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 16}}
    taken = draft.apply(row)
    assert taken is not None and taken.changes == {"per_device_train_batch_size": 1}
    assert draft.apply({"change": {"loss": "chunked"}}) is None


def test_saving_keeps_what_the_user_wrote(mine: Path) -> None:
    draft = open_recipe("mine.yaml", H100).change("lora_r", 64).change("method", "qlora").change("max_steps", 50)
    other = mine.with_name("other.yaml")
    saved = draft.save(other)
    text = other.read_text()
    assert "# my recipe" in text and "r: 64          # a synonym of lora_r" in text and "  - v_proj" in text
    assert text.endswith("max_steps: 50\n")
    loaded = recipe.load(other)
    assert not [f for f in loaded.findings if f.level == "error"]
    assert loaded.recipe.given == draft.said
    assert saved.changes == {} and saved.path == other


def test_saving_elsewhere_keeps_paths_leading_where_they_led(mine: Path) -> None:
    target = mine.parent / "deeper"
    target.mkdir()
    open_recipe("mine.yaml", H100).save(target / "copy.yaml")
    given = recipe.load(target / "copy.yaml").recipe.given
    assert given["dataset_path"] == str(mine.with_name("train.jsonl"))
    assert given["model_name_or_path"] == "Qwen/Qwen3-8B"


def test_nothing_is_overwritten_silently(mine: Path) -> None:
    draft = open_recipe("mine.yaml", H100).change("max_length", 512)
    with pytest.raises(UsageError) as caught:
        draft.save(mine)
    assert caught.value.kind == "exists" and mine.read_text() == TEXT
    draft.save(mine, replace=True)
    assert "max_length: 512" in mine.read_text()


def test_a_place_that_cannot_be_written(mine: Path) -> None:
    with pytest.raises(Exception, match="cannot be written"):
        open_recipe("mine.yaml", H100).save(mine.parent / "no-folder" / "a.yaml")


def test_a_recipe_with_errors_opens_and_says_so(mine: Path) -> None:
    mine.write_text(TEXT + "learning_rte: 1\n")
    draft = open_recipe("mine.yaml", H100)
    assert isinstance(draft, Draft)
    assert [finding.kind for finding in draft.problems] == ["unknown_key"]
    with pytest.raises(UsageError):
        open_recipe("nothing-there", H100)
