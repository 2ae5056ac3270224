"""Which layers a dry run runs, and what it makes of them."""

import json

import pytest

from engine.dryrun import depth
from engine.dryrun.spec import Spec
from engine.errors import UsageError
from engine.plan import dryrun, models, request
from engine.plan.plan import plan

LLAMA = {"model_type": "llama", "num_hidden_layers": 32}


def ask(**values):
    return plan(request.parse({"model": "meta-llama/Llama-3.1-8B", "max_length": 2048} | values), advise=False)


def specification(**values):
    result = ask(**values)
    return dryrun.specification(result.request, models.config(result.request.model))


@pytest.mark.parametrize(
    ("layers", "config", "chosen"),
    [
        (32, {}, (4, 6)),
        (80, {"model_type": "llama"}, (4, 6)),
        (8, {}, (8,)),
        (42, {"model_type": "gemma2"}, (4, 6)),
        (34, {"model_type": "gemma3_text"}, (4, 10)),
        (61, {"model_type": "deepseek_v3", "first_k_dense_replace": 3}, (7, 9)),
        (24, {"layer_types": ["sliding_attention", "full_attention"] * 12}, (4, 6)),
        (36, {"layer_types": ["a", "a", "a", "b"] * 9}, (4, 8)),
    ],
)
def test_depths_end_on_the_same_kind_of_layer(layers, config, chosen):
    found = depth.depths(layers, config)
    assert found == chosen
    assert all((layers - d) % depth.period(config) == 0 for d in found)
    assert len(found) == 1 or found[0] >= depth.LEAST


def test_each_part_of_each_phase_goes_on_in_a_line():
    shallow = {"loss": {"weights": 10.0, "logits": 5.0}}
    deep = {"loss": {"weights": 14.0, "logits": 5.0}}
    assert depth.extrapolate(shallow, deep, (4, 6), 32) == {"loss": {"weights": 66.0, "logits": 5.0}}


def test_a_layer_in_between_that_peaks_is_not_extrapolated():
    assert depth.straight({"backward": {"a": 9.0}, "end": {"a": 10.0}, "middle": {"a": 9.5}})
    assert not depth.straight({"backward": {"a": 9.0}, "end": {"a": 10.0}, "middle": {"a": 11.0}})


def test_phases_are_those_of_the_closed_form():
    peaks = {name: {"a": size} for name, size in (("forward", 1.0), ("head", 3.0), ("loss", 2.0), ("backward", 5.0),
             ("middle", 5.5), ("end", 6.0), ("embedding", 4.0), ("step", 7.0))}  # fmt: skip
    assert depth.named(peaks) == {
        "loss": {"a": 3.0}, "backward": {"a": 5.0}, "end of backward": {"a": 6.0}, "step": {"a": 7.0},
    }  # fmt: skip
    assert set(depth.named(peaks)) == {p.name for p in ask().memory.phases}
    assert depth.named(peaks | {"middle": {"a": 9.0}})["backward"] == {"a": 9.0}


def test_a_figure_near_the_limit_is_not_guessed():
    assert depth.close(95.0, 100.0) and depth.close(109.0, 100.0)
    assert not depth.close(80.0, 100.0) and not depth.close(80.0, None)


def test_a_spec_survives_json_and_shortens_its_lists_of_layers():
    spec = Spec(LLAMA | {"layer_types": ["a"] * 32}, "lora", 1, 2048, lora_targets=("q_proj", "v_proj"))
    assert Spec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
    assert spec.at_depth(4).config["layer_types"] == ["a"] * 4
    assert spec.at_depth(4).layers == 4 and spec.layers == 32


def test_the_request_becomes_the_step():
    spec, notes = specification(method="qlora", lora_dtype="bf16", optim="adamw", gradient_accumulation_steps=16)
    assert (spec.method, spec.lora_dtype, spec.optim, spec.accumulation) == ("qlora", "bf16", "adamw_torch", 2)
    assert spec.lora_targets == () and not notes  # all linear ones
    assert spec.target == "cuda" and spec.config["hidden_size"] == 4096
    spec, notes = specification(packing=True, per_device_train_batch_size=4, attn_implementation="flash_attention_2")
    assert (spec.rows, spec.length, spec.packed_mask, spec.attention) == (1, 8192, False, "flash")
    assert len(notes) == 1
    assert specification(packing=True)[0].packed_mask
    assert specification(num_gpus=8, sharding="fsdp2", method="full")[0].ranks == 8


def test_targets_have_the_names_of_the_code():
    values = {"model": "microsoft/phi-2", "lora_target_modules": ["q_proj", "dense"], "attn_implementation": "eager"}
    spec, _notes = specification(**values)
    assert {"q_proj", "dense"} <= set(spec.lora_targets)


@pytest.mark.parametrize(
    "values",
    [
        {"sharding": "zero3", "num_gpus": 2},
        {"sharding": "pipeline", "num_gpus": 2},
        {"sharding": "fsdp2", "num_gpus": 2, "cpu_offload": True},
        {"task": "dpo"},
        {"framework": "unsloth"},
        {"loss": "liger"},
        {"method": "qlora", "quant": "gptq"},
        {"optim": "muon", "method": "full"},
        {"compile": True},
    ],
)
def test_what_only_the_closed_form_knows_is_refused(values):
    with pytest.raises(UsageError) as error:
        specification(**values)
    assert error.value.kind == "no_dry_run" and error.value.where == "--dry-run-step"


def test_the_tested_versions_are_the_pinned_ones():
    from pathlib import Path

    pins = dict(
        line.split("==") for line in Path("constraints.txt").read_text().splitlines() if line and line[0] != "#"
    )
    assert {name: pins[name] for name in dryrun.TESTED} == dryrun.TESTED


def test_an_answer_from_two_depths_is_not_remembered_near_the_limit(tmp_path):
    file = tmp_path / "answer.json"
    answer = {"format": 1, "phases": {"loss": {"weights": 50.0}}, "depths": [4, 6], "seconds": 1.0, "attention": "sdpa"}
    file.write_text(json.dumps(answer))
    assert dryrun._remembered(file, 100.0)["depths"] == [4, 6]
    assert dryrun._remembered(file, 52.0) is None
    file.write_text(json.dumps(answer | {"depths": [32]}))
    assert dryrun._remembered(file, 52.0)["depths"] == [32]
    file.write_text("{")
    assert dryrun._remembered(file, None) is None
    assert dryrun._remembered(tmp_path / "none", None) is None
