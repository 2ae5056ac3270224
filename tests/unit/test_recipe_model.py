"""What the model's folder says against a recipe, before anything is loaded."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from engine import recipe
from engine.findings import Finding

LAYER = ("self_attn.q_proj", "self_attn.v_proj", "mlp.down_proj", "input_layernorm")


def check(folder: Path, body: str, *, single: bool = False, **config: Any) -> list[Finding]:
    model = folder / "model"
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text(json.dumps({"model_type": "qwen3", **config}))
    (model / "tokenizer.json").write_text("{}")
    names = [f"model.layers.{layer}.{name}.weight" for layer in range(2) for name in LAYER]
    if single:
        header = json.dumps({"__metadata__": {}, **{name: {} for name in names}}).encode()
        (model / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    else:
        (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": dict.fromkeys(names, "a")}))
    (folder / "rows.jsonl").write_text('{"text": "x"}\n')
    path = folder / "recipe.yaml"
    path.write_text(f"model_name_or_path: ./model\ndataset_path: rows.jsonl\n{body}\n")
    return recipe.check(recipe.load(path))


@pytest.mark.parametrize("single", [False, True])
def test_targets_that_are_no_modules(tmp_path: Path, single: bool) -> None:
    (found,) = check(tmp_path, "lora_target_modules: [q_proj, k_prj]", single=single)
    assert (found.kind, found.level, found.lines) == ("no_such_module", "error", [1, 3])
    assert "k_prj" in found.detail and "q_proj" not in found.detail and "down_proj, q_proj, v_proj" in found.fix
    assert check(tmp_path, "lora_target_modules: [q_proj, v_proj]", single=single) == []
    assert check(tmp_path, r"lora_target_modules: '.*\.(q|v)_proj'", single=single) == []
    (found,) = check(tmp_path, r"lora_target_modules: '.*\.(x|y)_proj'", single=single)
    assert found.kind == "no_such_module"
    assert check(tmp_path, "", single=single) == []


@pytest.mark.parametrize(
    ("body", "config", "words"),
    [
        ("", {"num_experts": 8}, "lora_dropout is 0.05"),
        ("attn_implementation: sdpa", {"model_type": "gemma2"}, "gemma2 has no sdpa"),
        ("method: full", {"quantization_config": {"quant_method": "gptq"}}, "cannot train them"),
        ("method: qlora", {"quantization_config": {"quant_method": "awq"}}, "quantized already"),
        ("random_init: true\nmethod: full", {}, "only task pretrain"),
    ],
)
def test_what_the_model_cannot(tmp_path: Path, body: str, config: dict[str, Any], words: str) -> None:
    (found,) = check(tmp_path, body, **config)
    assert found.level == "error" and words in found.detail and found.fix


def test_what_it_can(tmp_path: Path) -> None:
    assert check(tmp_path, "lora_dropout: 0", num_experts=8) == []
    assert check(tmp_path, "", num_local_experts=8, model_type="gpt_oss") == []
    assert check(tmp_path, "attn_implementation: eager", model_type="gemma2") == []
    assert check(tmp_path, "lora_target_modules: [q_proj, v_proj]", num_experts=8) == []
