"""The checks that look at the disk."""

from __future__ import annotations

import gzip
import json
import os

import pytest

from engine import recipe
from tests.support.recipes import FIRST, furnish, load, only, seen


@pytest.fixture
def place(tmp_path):
    furnish(tmp_path)
    return tmp_path


def check(place, body="", **kwargs):
    return recipe.check(load(place, body), **kwargs)


def test_all_is_well(place):
    assert check(place, run=True) == []


@pytest.mark.parametrize(("gone", "subtype"), [("tokenizer.json", "tokenizer"), ("model.safetensors", "weights")])
def test_an_incomplete_model_can_be_checked_but_not_run(place, gone, subtype):
    (place / "model" / gone).unlink()
    found = only(check(place), "model_incomplete")
    assert (found.level, found.subtype, found.lines) == ("warning", subtype, [1])
    assert only(check(place, run=True), "model_incomplete").level == "error"


@pytest.mark.parametrize("how", ["nothing there", "a file", "no config", "config is not JSON", "config is a list"])
def test_no_model(place, how):
    config = place / "model" / "config.json"
    if how == "nothing there":
        (place / "model").rename(place / "elsewhere")
    elif how == "a file":
        (place / "model").rename(place / "elsewhere")
        (place / "model").write_text("")
    elif how == "no config":
        config.unlink()
    else:
        config.write_text("[]" if how == "config is a list" else "{")
    assert ("error", "missing_model", [1]) in seen(check(place))


@pytest.mark.parametrize(
    "config",
    [{"max_position_embeddings": 1024}, {"n_positions": 1024}, {"text_config": {"max_position_embeddings": 1024}}],
)
def test_max_length_over_the_model(place, config):
    (place / "model" / "config.json").write_text(json.dumps(config))
    found = only(check(place, "max_length: 4096\n"), "max_length_over_model")
    assert (found.level, found.lines) == ("warning", [FIRST])
    assert "4096 >" in found.detail
    assert "1024" in found.detail
    assert check(place, "max_length: 1024\n") == []
    assert only(check(place), "max_length_over_model").lines == []  # the default, too


@pytest.mark.parametrize("max_position_embeddings", [None, "many", True, 0, -1, 1e9])
def test_a_config_that_does_not_say_a_length(place, max_position_embeddings):
    text = json.dumps({"max_position_embeddings": max_position_embeddings})
    (place / "model" / "config.json").write_text(text)
    assert check(place) == []


@pytest.mark.parametrize(
    ("content", "kind"),
    [(None, "missing_dataset"), (b"", "empty_dataset"), (b"{}\n[1]\n", "dataset_unreadable"),
     (b"{}\nnot json\n", "dataset_unreadable"), (b"\xff\xfe", "dataset_unreadable")],
)  # fmt: skip
def test_data_that_cannot_be_trained_on(place, content, kind):
    path = place / "train.jsonl"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    assert seen(check(place)) == [("error", kind, [2])]


def test_data_in_other_forms(place):
    rows = (place / "train.jsonl").read_bytes()
    (place / "many" / "deep").mkdir(parents=True)
    (place / "many" / "deep" / "a.jsonl").write_bytes(b"\xef\xbb\xbf\n" + rows)
    (place / "b.jsonl.gz").write_bytes(gzip.compress(rows))
    for path in ("many", "'*.jsonl'", "many/**/*.jsonl", "b.jsonl.gz"):
        assert check(place, f"eval_dataset_path: {path}\n") == []
    (place / "b.jsonl.gz").write_bytes(rows)
    assert ("error", "dataset_unreadable", [FIRST]) in seen(check(place, "eval_dataset_path: b.jsonl.gz\n"))
    (place / "empty").mkdir()
    for path in ("empty", "'nothing*.jsonl'", "trl-lib/Capybara"):
        found = only(check(place, f"eval_dataset_path: {path}\n"), "missing_dataset")
        assert found.lines == [FIRST]
    assert "hf://" in found.fix


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_data_that_may_not_be_read(place):
    (place / "train.jsonl").chmod(0)
    assert seen(check(place)) == [("error", "dataset_unreadable", [2])]


def test_required_keys(place):
    path = place / "recipe.yaml"
    path.write_text("lora_r: 8\n")
    assert [f.key for f in recipe.check(recipe.load(path))] == ["model_name_or_path", "dataset_path"]
    path.write_text("- a\n")  # nothing more is asked of what is no recipe
    assert seen(recipe.check(recipe.load(path))) == [("error", "recipe_not_mapping", [1])]


@pytest.mark.parametrize("key", ["chat_template_path: t.jinja", "deepspeed: ds.json"])
def test_other_files(place, key):
    assert ("error", "missing_file", [FIRST]) in seen(check(place, key + "\n"))


def test_output_dir(place):
    run = place / "runs" / "demo-1"
    run.mkdir(parents=True)
    (run / "resolved.json").write_text("{}")
    (run / "state.json").write_text("{}")
    (place / "full").mkdir()
    (place / "full" / "x").write_text("")
    (place / "void").mkdir()
    for value, kind in (
        ("runs/demo-1", "output_inside_run"),
        ("runs/demo-1/final", "output_inside_run"),
        ("train.jsonl", "conflict"),
        ("recipe.yaml", "output_exists"),
        ("model", "conflict"),
        ("full", "output_exists"),
        ("train.jsonl/x", "output_exists"),
    ):
        assert ("error", kind) in [(f.level, f.kind) for f in check(place, f"output_dir: {value}\n")], value
    for value in ("void", "new/deep", "~/out"):
        assert check(place, f"output_dir: {value}\n") == []
    assert not (place / "new").exists()


@pytest.mark.parametrize("place_of_data", ["remote:data/x.jsonl", "hf://a/b"])
def test_data_elsewhere_is_fetched_later_and_a_model_on_a_remote_is_refused(place, place_of_data):
    assert seen(check(place, f"eval_dataset_path: {place_of_data}\n", run=True)) == []
    body = "model_name_or_path: remote:models/x\ndataset_path: builtin:support\n"
    found = recipe.check(load(place, body, base=""), run=True)
    assert [(f.level, f.kind) for f in found] == [("error", "not_supported_yet")]


@pytest.mark.parametrize("name", ["x" * 5000, "a/" * 3000 + "b", '"\\u0001"'], ids=["long", "deep", "control"])
def test_paths_that_no_disk_takes(place, name):
    body = f"model_name_or_path: /{name}\ndataset_path: /{name}\noutput_dir: /{name}\n"
    if name.startswith('"'):
        body = f"model_name_or_path: {name}\ndataset_path: {name}\noutput_dir: {name}\n"
    found = recipe.check(load(place, body, base=""))
    assert {"error"} == {f.level for f in found}
    assert all(len(f.detail) <= 600 for f in found)


def test_built_in_things_that_are_not_there(place):
    assert seen(check(place, "eval_dataset_path: builtin:nothing\n")) == [("error", "missing_dataset", [FIRST])]
    (place / "recipe.yaml").write_text("model_name_or_path: builtin:tyny\ndataset_path: builtin:support\n")
    found = only(recipe.check(recipe.load(place / "recipe.yaml")), "missing_model")
    assert (found.level, found.lines) == ("error", [1])
    assert "builtin:tiny" in found.fix


@pytest.fixture
def hub_recipe(place, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(place / "hub"))
    path = place / "recipe.yaml"
    path.write_text("model_name_or_path: Qwen/Some-1B\ndataset_path: builtin:support\nmax_length: 4096\n")
    return path


def test_a_model_of_the_hub_that_is_not_on_this_machine(hub_recipe, monkeypatch):
    found = only(recipe.check(recipe.load(hub_recipe)), "missing_model")
    assert (found.level, found.lines) == ("error", [1])
    assert "HF_HUB_OFFLINE" in found.detail and "ftui model get Qwen/Some-1B" in found.fix
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    found = only(recipe.check(recipe.load(hub_recipe), run=True), "model_not_here")
    assert found.level == "warning" and "downloaded" in found.detail


def test_a_model_of_the_hub_that_is_in_the_cache(hub_recipe, place):
    folder = place / "hub" / "models--Qwen--Some-1B" / "snapshots" / "abc"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"max_position_embeddings": 2048}')
    assert [f.kind for f in recipe.check(recipe.load(hub_recipe))] == ["max_length_over_model"]
    other = recipe.check(recipe.load(hub_recipe, ["model_revision=v2"]))
    assert ("error", "missing_model") in {(f.level, f.kind) for f in other}


def test_findings_stand_in_the_order_of_their_lines(place):
    found = check(place, "max_length: 999999\nlerning_rate: 1\noutput_dir: train.jsonl\n")
    assert len(found) == 3
    assert [f.lines for f in found] == sorted(f.lines for f in found)
    assert [f.level for f in found] == ["error", "warning", "error"]


def test_the_same_files_are_data_for_the_check_and_for_the_run():
    from engine.data import sources
    from engine.recipe import disk

    assert set(disk.DATA_SUFFIXES) == set(sources.SUFFIXES)
