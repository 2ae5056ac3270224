"""Reading a recipe: keys, types, ranges, overrides, paths."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from engine import recipe
from engine.errors import UsageError
from engine.recipe import keys, ranges
from engine.recipe.loader import MAX_FINDINGS
from engine.recipe.own import OWN
from tests.support.recipes import BASE, FIRST, furnish, load, only, seen


def test_every_number_has_a_range():
    known = {**keys.table("sft"), **keys.table("dpo")}
    assert {name for name, key in known.items() if key.numeric} == set(ranges.RANGES)
    assert set(ranges.VALUE_RANGES) <= set(known)


def test_every_default_is_in_its_range():
    for task in ("sft", "dpo"):
        for name, key in keys.table(task).items():
            if isinstance(key.default, int | float) and not isinstance(key.default, bool):
                assert key.default in ranges.interval(ranges.RANGES[name]), name


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("num_train_epochs: three", "wrong_type"),
        ("num_train_epochs: 0", "out_of_range"),
        ("num_train_epochs: .nan", "out_of_range"),
        ("learning_rate: -0.0002", "out_of_range"),
        ("learning_rate: 0", "out_of_range"),
        ('learning_rate: "2e-4"', "wrong_type"),
        ("learning_rate:", "wrong_type"),
        ("gradient_accumulation_steps: 0", "out_of_range"),
        ("lora_r: 8.5", "wrong_type"),
        ("lora_r: [8]", "wrong_type"),
        ("lora_dropout: 1", "out_of_range"),
        ("warmup_ratio: 1.7", "out_of_range"),
        ("warmup_steps: 2.5", "out_of_range"),
        ("max_steps: 0", "out_of_range"),
        ("max_steps: -2", "out_of_range"),
        ("seed: 4294967296", "out_of_range"),
        ("seed: " + "9" * 400, "out_of_range"),
        ("bf16: maybe", "wrong_type"),
        ("bf16: 'true'", "wrong_type"),
        ("bf16: 1", "wrong_type"),
        ("packing: {a: 1}", "wrong_type"),
        ("lr_scheduler_type: cosin", "out_of_range"),
        ("method: lorra", "out_of_range"),
        ("eval_strategy: yes", "out_of_range"),
        ("rank_pattern: {q_proj: 0}", "out_of_range"),
        ("rank_pattern: {q_proj: many}", "wrong_type"),
        ("fsdp_config: {a: 99999999999999999999}", "out_of_range"),
        ('run_name: "a\\0b"', "wrong_type"),
        ("layers_to_transform: [0, -1]", "out_of_range"),
        ("lora_target_modules: [q_proj, [k_proj]]", "wrong_type"),
        ("lora_target_modules: 8", "wrong_type"),
        ("lora_modules_to_save: true", "wrong_type"),
        ("attn_implementation: true", "wrong_type"),
        ("optim: 8", "wrong_type"),
    ],
)
def test_wrong_values(tmp_path, line, kind):
    found = only(load(tmp_path, "\n" + line + "\n").findings, kind)
    assert (found.level, found.lines, found.key) == ("error", [FIRST + 1], line.split(":")[0])
    assert found.detail
    assert found.fix


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("learning_rate: 2e-4", 0.0002),
        ("learning_rate: 1", 1),
        ("lora_r: 8.0", 8),
        ("max_steps: 1e3", 1000),
        ("bf16: yes", True),
        ("packing: Off", False),
        ("bf16: null", None),
        ("max_length: none", None),
        ("eval_strategy: no", "no"),
        ("eval_strategy: false", "no"),
        ("report_to: none", "none"),
        ("report_to: None", "none"),
        ("run_name: no", "no"),
        ("model_revision: 1e5", "1e5"),
        ("report_to: wandb, tensorboard", ["wandb", "tensorboard"]),
        ("lora_target_modules: q_proj", ["q_proj"]),
        ("lora_target_modules: q_proj, v_proj", ["q_proj", "v_proj"]),
        ("lora_target_modules: all-linear", "all-linear"),
        ("lora_target_modules: .*\\.(q|v)_proj", ".*\\.(q|v)_proj"),
        ("target_modules: [q_proj]", ["q_proj"]),
        ("lora_rank_pattern: {q_proj: 4}", {"q_proj": 4}),
        ("gradient_checkpointing_kwargs: '{\"use_reentrant\": false}'", {"use_reentrant": False}),
        ("run_name: 2024-01-01", "2024-01-01"),
        ("project: 007", "007"),
        ("init_lora_weights: pissa_niter_16", "pissa_niter_16"),
        ("init_lora_weights: false", False),
        ("layers_to_transform: 3", 3),
        ("pad_to_multiple_of: 8", 8),
    ],
)
def test_right_values(tmp_path, line, value):
    loaded = load(tmp_path, line + "\n")
    name = keys.canonical(line.split(":")[0])
    assert loaded.recipe.given[name] == value
    assert type(loaded.recipe.given[name]) is type(value)
    assert loaded.origin[name] == ("recipe" if loaded.recipe[name] == value else "derived")
    assert {f.kind for f in loaded.findings} <= {"not_supported_yet", "conflict"}


@pytest.mark.parametrize(
    ("key", "suggestion"),
    [
        ("per_device_train_batchsize", "per_device_train_batch_size"),
        ("learning-rate", "learning_rate"),
        ("lerning_rate", "learning_rate"),
        ("Lora_R", "lora_r"),
        ("evaluation_strategy", "eval_strategy"),
        ("max_seq_length", "max_length"),
        ("torch_dtype", "dtype"),
        ("dataset_name", "dataset_path"),
        ("overwrite_output_dir", None),
        ("zzz", None),
        ("no", None),
    ],
)
def test_unknown_keys(tmp_path, key, suggestion):
    found = only(load(tmp_path, f"{key}: 1\n").findings, "unknown_key")
    assert (found.key, found.lines, found.extra["suggestion"]) == (key, [FIRST], suggestion)


def test_two_names_of_one_key_are_a_duplicate(tmp_path):
    found = only(load(tmp_path, "target_modules: [q_proj]\nlora_target_modules: [k_proj]\n").findings, "duplicate_key")
    assert (found.lines, found.extra["first_line"]) == ([FIRST + 1], FIRST)


def test_keys_of_another_task_are_named(tmp_path):
    found = only(load(tmp_path, "beta: 0.2\n").findings, "conflict")
    assert (found.level, found.key, found.subtype) == ("warning", "beta", "unused")
    assert load(tmp_path, "task: dpo\nbeta: 0.2\nloss_type: sigmoid, sft\n").recipe["loss_type"] == ["sigmoid", "sft"]


def test_merged_keys_keep_their_lines(tmp_path):
    loaded = load(tmp_path, "x-mine: &a\n  lora_r: 0\n  lora_alpha: 16\n<<: *a\n")
    assert seen(loaded.findings) == [("error", "out_of_range", [FIRST + 1])]
    assert loaded.recipe["lora_alpha"] == 16


def test_many_findings_are_cut_and_counted(tmp_path):
    loaded = load(tmp_path, "".join(f"qqq{n}: 1\n" for n in range(3000)))
    assert len(loaded.findings) == MAX_FINDINGS + 1
    assert loaded.findings[-1].count == 3000 - MAX_FINDINGS


def test_all_findings_at_once(tmp_path):
    body = "learning_rat: 1\nlora_alpha: x\nseed: -1\nfp16: true\nbf16: true\nlora_r: 8\nlora_r: 4\n"
    kinds = {finding.kind for finding in load(tmp_path, body).findings}
    assert kinds == {"unknown_key", "wrong_type", "out_of_range", "conflict", "duplicate_key"}


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("lora_r=8.5", "wrong_type"),
        ("learning_rate=-1", "out_of_range"),
        ("learnin_rate=1", "unknown_key"),
        ("lora_r", "bad_override"),
        ("=3", "bad_override"),
        ("dataset_path=$FTUI_NOT_SET/x", "undefined_variable"),
        ("lora_target_modules=[a", "yaml_syntax"),
        ("run_name=!!python/name:os.system x", "yaml_unsafe_tag"),
    ],
)
def test_wrong_overrides_are_named(tmp_path, text, kind):
    found = only(load(tmp_path, "", [text]).findings, kind)
    assert found.level == "error"
    assert found.lines == []
    assert found.extra["override"] == text


def test_overrides_replace_what_the_file_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    overrides = ["lora_r=4", "learning_rate=1e-3", "dataset_path=*.jsonl", "run_name=a: b", "packing=on"]
    loaded = load(tmp_path / "sub", "lora_r: wrong\n", overrides)
    assert loaded.findings == []
    given = loaded.recipe.given
    assert (given["lora_r"], given["learning_rate"], given["run_name"], given["packing"]) == (4, 1e-3, "a: b", True)
    assert given["dataset_path"] == str(tmp_path / "*.jsonl")
    assert given["model_name_or_path"] == str(tmp_path / "sub" / "model")
    assert loaded.origin["lora_r"] == "override"


def test_a_conflict_with_an_override_names_it(tmp_path):
    found = only(load(tmp_path, "method: full\n", ["load_in_4bit=true"]).findings, "conflict")
    assert (found.lines, found.extra["override"]) == ([FIRST], "load_in_4bit=true")


def test_paths(tmp_path, monkeypatch):
    monkeypatch.setenv("DATA", "/data")
    monkeypatch.setenv("HOME", "/home/me")
    body = "model_name_or_path: ~/models/a\ndataset_path: ${DATA}/x.jsonl\noutput_dir: ../out\n"
    given = load(tmp_path, body, base="").recipe.given
    assert given["model_name_or_path"] == "/home/me/models/a"
    assert given["dataset_path"] == "/data/x.jsonl"
    assert given["output_dir"] == str(tmp_path.parent / "out")


@pytest.mark.parametrize("name", ["Qwen/Qwen3-8B", "gpt2", "builtin:tiny", "remote:models/x"])
def test_models_that_are_no_paths_stay_as_they_are(tmp_path, name):
    assert load(tmp_path, f"model_name_or_path: {name}\n", base="").recipe.given["model_name_or_path"] == name


def test_a_folder_comes_before_a_name_on_the_hub(tmp_path):
    (tmp_path / "Qwen" / "Qwen3-8B").mkdir(parents=True)
    given = load(tmp_path, "model_name_or_path: Qwen/Qwen3-8B\n", base="").recipe.given
    assert given["model_name_or_path"] == str(tmp_path / "Qwen" / "Qwen3-8B")


def test_undefined_variables_are_findings(tmp_path):
    found = only(load(tmp_path, "output_dir: $FTUI_NOT_SET/x\n").findings, "undefined_variable")
    assert found.lines == [FIRST]
    assert "FTUI_NOT_SET" in found.detail


@pytest.mark.parametrize("what", ["missing", "folder"])
def test_a_recipe_that_cannot_be_read(tmp_path, what):
    path = tmp_path if what == "folder" else tmp_path / "none.yaml"
    with pytest.raises(UsageError) as raised:
        recipe.load(path)
    assert raised.value.where == str(path)
    assert raised.value.fix


@pytest.mark.parametrize(
    ("text", "line"), [("", 1), ("# only a comment\n", 1), ("- a\n- b\n", 1), ("\n\njust words\n", 3)]
)
def test_not_a_mapping(tmp_path, text, line):
    assert seen(load(tmp_path, text, base="").findings) == [("error", "recipe_not_mapping", [line])]


def test_line_ends_and_marks_of_other_systems(tmp_path):
    furnish(tmp_path)
    path = tmp_path / "recipe.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + (BASE + "run_name: mine\n").replace("\n", "\r\n").encode())
    loaded = recipe.load(path)
    assert recipe.check(loaded) == []
    assert loaded.recipe.run_name == "mine"


def test_built_in_recipes_are_found_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert recipe.names()[0] == "demo"
    assert recipe.find("demo").name == recipe.find("demo.yaml").name == "demo.yaml"
    (tmp_path / "demo.yaml").write_text("a: 1\n")
    assert recipe.find("demo.yaml").resolve() == tmp_path / "demo.yaml"
    assert recipe.find("demo").parent != tmp_path
    os.mkfifo(tmp_path / "pipe")  # reading it would wait for ever
    for wrong in ("demoo", "./demo", str(tmp_path), "x" * 10_000, "./" + "y" * 300, "~nobody-here/x", "./pipe", "a\0"):
        with pytest.raises(UsageError):
            recipe.find(wrong)


@pytest.mark.parametrize("name", recipe.names())
def test_built_in_recipes_are_right(name, tmp_path):
    furnish(tmp_path)
    place = [f"model_name_or_path={tmp_path}/model", f"dataset_path={tmp_path}/train.jsonl", "max_length=2048"]
    overrides = [] if name == "demo" else place
    assert recipe.check(recipe.load(recipe.find(name), overrides)) == []


def test_the_documentation_names_every_key_of_our_own_and_every_finding():
    root = Path(__file__).parents[2]
    text = (root / "docs" / "recipes.md").read_text()
    assert [key for key in OWN if f"`{key}`" not in text] == []
    sources = [*(root / "engine" / "recipe").glob("*.py"), root / "engine" / "yamldoc.py"]
    calls = re.compile(r'(?:[Ff]inding|_Refused|Unusable|_unreadable)\(\s*(?:recipe, )?"(\w+)"')
    used = {kind for path in sources for kind in calls.findall(path.read_text())}
    assert len(used) > 20
    assert sorted(kind for kind in used if f"`{kind}`" not in text) == []
