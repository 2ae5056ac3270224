"""The small configuration of a rehearsal, and the values it replaces."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.errors import UsageError
from engine.plan.models import catalogue
from engine.smoke import rehearsal
from engine.smoke.shrink import HEADS, LAYERS, shrink
from tests.support.recipes import furnish, load


def test_every_architecture_of_the_catalogue_becomes_small() -> None:
    for name, entry in catalogue().items():
        config = entry["config"]
        small = shrink(config)
        part, full = (c.get("text_config") or c for c in (small, config))
        assert part.get("vocab_size") == full.get("vocab_size"), name
        layers = part.get("num_hidden_layers", part.get("n_layer", part.get("num_layers")))
        heads = part.get("num_attention_heads", part.get("n_head"))
        assert (layers, heads) == (LAYERS, HEADS), name
        assert HEADS % int(part.get("num_key_value_heads") or HEADS) == 0, name
        assert part.get("layer_types") is None or len(part["layer_types"]) == LAYERS, name
        assert shrink(small) == small, name


def test_a_mixed_model_stays_mixed() -> None:
    small = shrink({"num_hidden_layers": 6, "layer_types": ["slide"] * 5 + ["full"]})
    assert small["layer_types"] == ["slide", "full"]


def test_what_a_rehearsal_replaces(tmp_path: Path) -> None:
    furnish(tmp_path)
    loaded = load(tmp_path, "num_train_epochs: 3\ngates: ['eval_loss < 1']\nlora_r: 8\n")
    values = dict(text.split("=", 1) for text in rehearsal.overrides(loaded, tmp_path / "small", 20))
    assert values["max_steps"] == "20" and values["save_steps"] == values["eval_steps"] == "10"
    assert values["model_name_or_path"] == str(tmp_path / "small")
    assert values["gates"] == "null"
    assert not {"lora_r", "dataset_path", "per_device_train_batch_size", "sharding", "max_length"} & set(values)
    again = load(tmp_path, "num_train_epochs: 3\n", [f"{k}={v}" for k, v in values.items() if "model" not in k])
    assert not [finding for finding in again.findings if finding.level == "error"]


def test_a_model_that_is_not_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    loaded = load(tmp_path, base="model_name_or_path: maker/none\ndataset_path: ./train.jsonl\n")
    with pytest.raises(UsageError) as caught:
        rehearsal.source(loaded)
    assert "ftui model get maker/none" in str(caught.value.fix)


def test_a_built_in_model_is_small_already(tmp_path: Path) -> None:
    loaded = load(tmp_path, base="model_name_or_path: builtin:tiny\ndataset_path: builtin:support\n")
    assert rehearsal.source(loaded) is None


def test_config_that_is_not_json(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    from engine.workspace import Workspace

    with pytest.raises(UsageError):
        rehearsal.small_model(Workspace(tmp_path / "home").prepare(), tmp_path)
