"""Recipes of other tools: what is carried, what is said of the rest, and that a round trip keeps the training."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
import yaml

from engine import recipe
from engine.errors import UsageError
from engine.interop import axolotl, foreign, llamafactory
from engine.interop.exported import export
from engine.recipe.keys import CONFIG_OF_TASK, table
from tests.support.recipes import furnish

AXOLOTL = """\
base_model: Qwen/Qwen3-8B
adapter: lora
load_in_4bit: true
datasets:
  - path: rows.jsonl
    ds_type: json
    type: chat_template
  - path: tatsu-lab/alpaca
    type: alpaca
val_set_size: 0.1
sequence_len: 4096
sample_packing: true
micro_batch_size: 4
gradient_accumulation_steps: 2
num_epochs: 4
learning_rate: 1e-4
optimizer: adamw_bnb_8bit
lora_r: 32
lora_alpha: 64
lora_target_linear: true
evals_per_epoch: 2
saves_per_epoch: 1
flash_attention: true
deepspeed: deepspeed_configs/zero3_bf16_cpuoffload_params.json
bf16: auto
wandb_project: mine
relora: true
special_tokens:
  pad_token: "<pad>"
"""
LLAMAFACTORY = """\
model_name_or_path: meta-llama/Llama-3.1-8B-Instruct
stage: dpo
do_train: true
finetuning_type: lora
lora_rank: 16
lora_target: all
quantization_bit: 4
dataset: pairs
template: llama3
cutoff_len: 1024
pref_beta: 0.2
pref_loss: sigmoid
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
learning_rate: 5.0e-6
num_train_epochs: 3.0
lr_scheduler_type: cosine
warmup_ratio: 0.1
bf16: true
flash_attn: fa2
mask_history: true
"""
TORCHTUNE = """\
output_dir: /tmp/out
model:
  _component_: torchtune.models.qwen2_5.lora_qwen2_5_7b_base
  lora_attn_modules: ['q_proj', 'output_proj']
  apply_lora_to_mlp: True
  lora_rank: 8
  lora_alpha: 16
tokenizer:
  _component_: torchtune.models.qwen2_5.qwen2_5_tokenizer
  max_seq_len: 512
checkpointer:
  _component_: torchtune.training.FullModelHFCheckpointer
  checkpoint_dir: ./model
  output_dir: ${output_dir}
dataset:
  _component_: torchtune.datasets.chat_dataset
  source: json
  data_files: rows.jsonl
  packed: True
batch_size: 2
epochs: 1
optimizer:
  _component_: bitsandbytes.optim.PagedAdamW8bit
  lr: 2e-5
gradient_accumulation_steps: 4
clip_grad_norm: 1.0
dtype: bf16
"""
TRL = """\
model_name_or_path: Qwen/Qwen3-0.6B
dataset_name: trl-lib/Capybara
use_peft: true
load_in_4bit: true
lora_r: 4
max_steps: 100
learning_rate: 2e-4
"""


def _read(folder: Path, text: str, tool: str | None = None) -> foreign.Imported:
    path = folder / "theirs.yaml"
    path.write_text(text)
    return foreign.read(path, tool)


def _said(imported: foreign.Imported, key: str) -> list[tuple[str, list[int]]]:
    return [(finding.level, finding.lines) for finding in imported.findings if finding.key == key]


def _line(text: str, start: str) -> int:
    return next(n for n, line in enumerate(text.splitlines(), 1) if line.startswith(start))


def test_axolotl(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("{}\n")
    imported = _read(tmp_path, AXOLOTL)
    assert imported.tool == "axolotl"
    values = imported.values
    expected = {
        "task": "sft",
        "method": "qlora",
        "model_name_or_path": "Qwen/Qwen3-8B",
        "dataset_path": str(tmp_path / "rows.jsonl"),
        "test_size": 0.1,
        "max_length": 4096,
        "packing": True,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "num_train_epochs": 4,
        "learning_rate": 1e-4,
        "optim": "adamw_bnb_8bit",
        "lora_r": 32,
        "lora_target_modules": "all-linear",
        "eval_steps": 0.125,
        "save_steps": 0.25,
        "attn_implementation": "flash_attention_2",
        "sharding": "zero3",
        "cpu_offload": True,
        "lora_dropout": 0.0,  # its default, which is not ours
    }
    assert {key: values.get(key) for key in expected} == expected
    assert "report_to" not in values  # the run would be refused for it
    assert _said(imported, "wandb_project") == [("warning", [_line(AXOLOTL, "wandb_project")])]
    assert _said(imported, "relora") == [("warning", [_line(AXOLOTL, "relora")])]
    assert _said(imported, "special_tokens") == [("warning", [_line(AXOLOTL, "special_tokens")])]
    assert ("error", [_line(AXOLOTL, "datasets")]) in _said(imported, "datasets")


def test_llamafactory(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "dataset_info.json").write_text(json.dumps({"pairs": {"file_name": "pairs.json", "ranking": True}}))
    imported = _read(tmp_path, LLAMAFACTORY)
    assert imported.tool == "llamafactory"
    expected = {
        "task": "dpo",
        "method": "qlora",
        "lora_r": 16,
        "lora_alpha": 32,
        "lora_target_modules": "all-linear",
        "dataset_path": str(data / "pairs.json"),
        "beta": 0.2,
        "loss_type": ["sigmoid"],
        "max_length": 1024,
        "warmup_ratio": 0.1,
        "learning_rate": 5e-6,
        "attn_implementation": "flash_attention_2",
    }
    assert {key: imported.values.get(key) for key in expected} == expected
    assert _said(imported, "mask_history") == [("warning", [_line(LLAMAFACTORY, "mask_history")])]


def test_torchtune(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    imported = _read(tmp_path, TORCHTUNE)
    assert imported.tool == "torchtune"
    expected = {
        "method": "lora",
        "model_name_or_path": str(tmp_path / "model"),
        "dataset_path": str(tmp_path / "rows.jsonl"),
        "lora_target_modules": ["q_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
        "max_length": 512,
        "optim": "paged_adamw_8bit",
        "learning_rate": 2e-5,
        "max_grad_norm": 1.0,
        "packing": True,
        "bf16": True,
    }
    assert {key: imported.values.get(key) for key in expected} == expected


def test_trl(tmp_path: Path) -> None:
    imported = _read(tmp_path, TRL)
    assert imported.tool == "trl"
    assert imported.values["method"] == "qlora"
    assert imported.values["dataset_path"] == "hf://trl-lib/Capybara"
    assert imported.values["num_train_epochs"] == 3  # its default
    refused = _read(tmp_path, TRL + "push_to_hub: true\n")
    assert refused.values["push_to_hub"] is True  # known here, and refused with its reason by the recipe's check


@pytest.mark.parametrize("text", [AXOLOTL, LLAMAFACTORY, TORCHTUNE, TRL], ids=["axolotl", "llamafactory", "tt", "trl"])
def test_no_key_is_dropped_silently(tmp_path: Path, text: str) -> None:
    """A key that this program has never heard of is listed, whatever the tool."""
    imported = _read(tmp_path, text + "never_heard_of: 3\n")
    line = text.count("\n") + 1
    assert _said(imported, "never_heard_of") == [("warning", [line])]


@pytest.mark.parametrize("text", [AXOLOTL, LLAMAFACTORY, TORCHTUNE, TRL], ids=["axolotl", "llamafactory", "tt", "trl"])
def test_what_is_written_is_a_recipe(tmp_path: Path, text: str) -> None:
    imported = _read(tmp_path, text)
    path = tmp_path / "ours.yaml"
    path.write_text(foreign.recipe_text(imported, "theirs.yaml"))
    loaded = recipe.load(path)
    assert not [f for f in loaded.findings if f.level == "error" and f.kind != "not_supported_yet"], loaded.findings
    assert loaded.recipe.given["method"] == imported.values["method"]


def test_targets_are_keys_of_a_recipe() -> None:
    known = {name for task in CONFIG_OF_TASK for name in table(task)}
    for tool in (axolotl, llamafactory):
        named = {target if isinstance(target, str) else target[0] for target in tool.TABLE.values()}
        assert named <= known, named - known


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("- 1\n- 2\n", "recipe_not_mapping"),
        ("", "recipe_not_mapping"),
        ("a: b\n", "unknown_tool"),
        ("a: [1\n", None),
        ("a: !!python/object/apply:os.system ['true']\nbase_model: x\n", None),
    ],
)
def test_what_is_no_recipe_of_a_tool(tmp_path: Path, text: str, kind: str | None) -> None:
    with pytest.raises(UsageError) as caught:
        _read(tmp_path, text)
    assert kind in (None, caught.value.kind)
    assert str(tmp_path / "theirs.yaml") in str(caught.value.where)


@pytest.mark.parametrize("value", ["[]", "7", "{a: {b: [1, {c: 2}]}}", "'x'", "null", "[[1]]"])
@pytest.mark.parametrize("text", [AXOLOTL, LLAMAFACTORY, TORCHTUNE, TRL], ids=["axolotl", "llamafactory", "tt", "trl"])
def test_values_of_another_kind_raise_nothing(tmp_path: Path, text: str, value: str) -> None:
    """Each top-level key in turn with a value of another kind."""
    names = [line.partition(":")[0] for line in text.splitlines() if line[0].isalpha()]
    given = yaml.safe_load(text)
    for name in names:
        changed = {**given, name: yaml.safe_load(value)}
        tool = _read(tmp_path, text).tool
        try:
            _read(tmp_path, yaml.safe_dump(changed), tool)
        except UsageError:
            pass


def _exported(folder: Path, target: str, body: str = "") -> dict[str, str]:
    furnish(folder)
    path = folder / "mine.yaml"
    path.write_text("model_name_or_path: ./model\ndataset_path: ./train.jsonl\n" + body)
    loaded = recipe.load(path)
    return export(loaded, recipe.resolve(loaded, num_gpus=loaded.recipe.given.get("num_gpus", 1)), target).files


@pytest.mark.parametrize("method", ["lora", "qlora", "full"])
@pytest.mark.parametrize("target", ["axolotl", "llamafactory"])
def test_round_trip_keeps_the_training(tmp_path: Path, target: str, method: str) -> None:
    body = f"method: {method}\nlearning_rate: 3e-4\nmax_length: 777\nper_device_train_batch_size: 3\n"
    body += "global_batch_size: 12\nnum_train_epochs: 5\npacking: true\n"
    files = _exported(tmp_path, target, body)
    (tmp_path / "data").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    values = foreign.read(tmp_path / f"{target}.yaml").values
    expected = {
        "method": method,
        "learning_rate": 3e-4,
        "max_length": 777,
        "per_device_train_batch_size": 3,
        "gradient_accumulation_steps": 4,
        "num_train_epochs": 5,
        "packing": True,
        "dataset_path": str(tmp_path / "train.jsonl"),
        "bf16": True,
    }
    if method != "full":
        expected.update(lora_r=16, lora_alpha=32, lora_dropout=0.05, lora_target_modules="all-linear")
    assert {key: values.get(key) for key in expected} == expected


@pytest.mark.parametrize("sharding", ["none", "ddp", "fsdp2", "zero3"])
@pytest.mark.parametrize("method", ["lora", "qlora", "full"])
def test_the_script_is_python(tmp_path: Path, method: str, sharding: str) -> None:
    files = _exported(tmp_path, "trl", f"method: {method}\nsharding: {sharding}\nnum_gpus: 4\n")
    ast.parse(files["train.py"])
    config = yaml.safe_load(files["accelerate.yaml"])
    kinds = {"none": "MULTI_GPU", "ddp": "MULTI_GPU", "fsdp2": "FSDP", "zero3": "DEEPSPEED"}
    assert config["distributed_type"] == kinds[sharding]
    assert config["num_processes"] == 4


def test_what_only_this_program_has_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("model_name_or_path: builtin:tiny\ndataset_path: builtin:support\n")
    loaded = recipe.load(path)
    with pytest.raises(UsageError, match="this program only"):
        export(loaded, recipe.resolve(loaded, num_gpus=1), "trl")


@pytest.mark.parametrize("value", [None, -1, True, [], {}, {"a": None}, "x", "A" * 3000, [[None]], 10**400])
@pytest.mark.parametrize("text", [AXOLOTL, LLAMAFACTORY, TORCHTUNE, TRL], ids=["axolotl", "llamafactory", "tt", "trl"])
def test_inner_values_of_another_kind_raise_nothing(tmp_path: Path, text: str, value: object) -> None:
    """What stands inside a mapping, and texts that are too long for a file's name."""
    given = yaml.safe_load(text)
    tool = _read(tmp_path, text).tool
    changed = [{**given, name: value} for name in given]
    for name, whole in given.items():
        part = whole[0] if isinstance(whole, list) and whole else whole
        if isinstance(part, dict):
            inner = [{**part, key: value} for key in [*part, "lr", "data_files"]]
            changed += [{**given, name: [new] if isinstance(whole, list) else new} for new in inner]
    for document in changed:
        try:
            _read(tmp_path, yaml.safe_dump(document, width=10**6), tool)
        except UsageError:
            pass
