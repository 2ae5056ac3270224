"""Shapes of models: exact counts, where they are found, configs that make no sense."""

from __future__ import annotations

import json

import orjson
import pytest

from engine.errors import UsageError
from engine.plan import models, shapes

CATALOGUE = orjson.loads(models.CATALOGUE.read_bytes())["models"]
LLAMA = CATALOGUE["meta-llama/Llama-3.1-8B"]["config"]


@pytest.mark.parametrize("name", sorted(CATALOGUE))
def test_the_catalogue_counts_as_its_publishers_do(name):
    assert models.resolve(name).parameters == CATALOGUE[name]["parameters"]


def test_every_family_of_the_catalogue_is_known():
    from engine.plan.families import BUILDERS

    assert {entry["config"]["model_type"] for entry in CATALOGUE.values()} <= set(BUILDERS)


def test_spellings_of_one_model_share_a_shape():
    for name in ("Llama-3.1-8B", "META-LLAMA/llama-3.1-8b", "meta-llama/Llama-3.1-8B-Instruct"):
        assert models.resolve(name).parameters == 8_030_261_248


def test_a_folder_with_config_json_is_read_and_reread_after_an_edit(tmp_path):
    import os

    config = {**LLAMA, "num_hidden_layers": 2}
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    two = models.resolve(str(tmp_path)).parameters
    file.write_text(json.dumps({**config, "num_hidden_layers": 3}))
    os.utime(file, (1, 1))
    assert models.resolve(str(tmp_path)).parameters - two == 218_112_000


def test_the_hub_cache_is_looked_into(tmp_path, monkeypatch):
    snapshot = tmp_path / "hub" / "models--some--model" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(json.dumps({**LLAMA, "num_hidden_layers": 1}))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    assert models.resolve("some/model").layers == 1


def test_the_text_part_of_a_multimodal_config_is_taken():
    shape = shapes.from_config({"model_type": "gemma3", "text_config": CATALOGUE["google/gemma-3-4b-pt"]["config"]})
    assert shape.parameters == 3_880_263_168
    assert shape.notes


def test_defaults_of_a_family_fill_in_what_a_config_leaves_out():
    config = {k: v for k, v in LLAMA.items() if k not in ("num_key_value_heads", "tie_word_embeddings")}
    shape = shapes.from_config(config)
    assert (shape.kv_heads, shape.head_dim, shape.tied) == (32, 128, False)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"hidden_size": 0}, "config.hidden_size"),
        ({"hidden_size": -1}, "config.hidden_size"),
        ({"hidden_size": "4096"}, "config.hidden_size"),
        ({"hidden_size": True}, "config.hidden_size"),
        ({"num_hidden_layers": 10**12}, "config.num_hidden_layers"),
        ({"vocab_size": None}, "config.vocab_size"),
        ({"num_key_value_heads": 5}, "config.num_key_value_heads"),
        ({"num_attention_heads": 7, "num_key_value_heads": 7}, "config.num_attention_heads"),
    ],
)
def test_nonsense_is_an_error_that_names_the_key(change, key):
    with pytest.raises(UsageError) as error:
        shapes.from_config({**LLAMA, **change})
    assert error.value.where == key


def test_an_unknown_model_is_an_error_with_near_names():
    with pytest.raises(UsageError) as error:
        models.resolve("meta-llama/Llama-3.1-80B")
    assert error.value.where == "model"
    assert "meta-llama/Llama-3.1-70B" in (error.value.fix or "")


def test_a_broken_config_json_is_an_error(tmp_path):
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UsageError) as error:
        models.resolve(str(tmp_path))
    assert "config.json" in (error.value.where or "")


def test_targets_are_names_of_the_model_its_synonyms_or_an_error():
    llama, phi3, neox = (models.resolve(m) for m in ("Llama-3.1-8B", "microsoft/phi-4", "EleutherAI/pythia-1b"))
    assert shapes.target_names(llama, "all-linear") == {*shapes.ATTENTION, *shapes.MLP}
    assert shapes.target_names(llama, ["model.layers.0.self_attn.q_proj", "v_proj"]) == {"q_proj", "v_proj"}
    assert shapes.target_names(phi3, ["q_proj", "gate_proj"]) == {"qkv_proj", "gate_up_proj"}
    assert shapes.target_names(neox, ["query_key_value", "dense"]) == {"qkv_proj", "o_proj"}
    with pytest.raises(UsageError) as error:
        shapes.target_names(llama, ["qproj"])
    assert error.value.where == "lora_target_modules"


def test_experts_are_active_only_for_the_tokens_that_they_get():
    shape = models.resolve("Qwen/Qwen3-30B-A3B")
    assert shape.parameters == 30_532_122_624
    assert 3.0e9 < shape.active_parameters < 3.5e9


def test_the_built_in_model_is_the_one_that_the_engine_makes():
    from engine.train import builtin

    config = CATALOGUE["builtin:tiny"]["config"]
    assert {key: builtin.SHAPE[key] for key in config if key in builtin.SHAPE} == {
        key: config[key] for key in builtin.SHAPE if key in config
    }
    assert len(set(config) & set(builtin.SHAPE)) >= 7
    assert config["vocab_size"] == builtin.VOCABULARY
