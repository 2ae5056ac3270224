"""Every built-in recipe loads without a word, and fits the servers that it is written for."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine import recipe
from engine.plan import from_recipe
from engine.plan.plan import Result, plan
from engine.plan.request import parse
from engine.plan.servers import user_file

FITS = [
    ("qwen3-8b-qlora", "1xL4", 1), ("qwen3-8b-qlora", "1xRTX4090", 1), ("qwen3-8b-lora", "1xA40", 1),
    ("qwen3-8b-lora", "1xL40S", 1), ("llama-3.1-8b-full", "8xH100", 8), ("llama-3.1-70b-qlora", "1xH100", 1),
    ("llama-3.1-70b-lora", "8xH100", 8), ("llama-3.1-70b-full", "8xB200", 8), ("llama-3.1-70b-full", "8xB300", 8),
    ("llama-3.1-70b-full-h200", "8xH200", 8), ("dpo", "1xA40", 1), ("pretrain", "1xH100", 1), ("smoke", "1xL4", 1),
]  # fmt: skip


def planned(name: str, server: str, gpus: int, *changes: str) -> Result:
    resolved = recipe.resolve(recipe.load(recipe.find(name), list(changes)), num_gpus=gpus)
    values = from_recipe.values(resolved, num_gpus=gpus) | {"server": server}
    return plan(parse(values), user=user_file())


@pytest.mark.parametrize("name", recipe.names())
def test_a_built_in_recipe_is_clean(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE")  # a model may be downloaded, and only that is said
    loaded = recipe.load(recipe.find(name))
    for key in ("dataset_path",):
        if not str(loaded.recipe[key]).startswith("builtin:"):
            data = tmp_path / "rows.jsonl"
            data.write_text('{"text": "x"}\n')
            loaded = recipe.load(recipe.find(name), [f"{key}={data}"])
    assert [f.detail for f in recipe.check(loaded) if f.kind != "model_not_here"] == []


@pytest.mark.parametrize(("name", "server", "gpus"), FITS)
def test_it_fits_where_it_says(name: str, server: str, gpus: int) -> None:
    result = planned(name, server, gpus)
    assert (result.problems, result.verdict) == ([], "fits"), result.to_json()["per_gpu"]


def test_every_recipe_with_a_server_in_its_title_is_planned() -> None:
    assert set(recipe.names()) - {name for name, _server, _gpus in FITS} <= {
        "demo",
        "lora-sft",
        "qlora-sft",
        "full-sft",
    }


def test_what_the_large_ones_avoid_does_not_fit() -> None:
    plain = ("bf16_master=fp32", "optim=adamw_torch_fused")
    assert planned("llama-3.1-70b-full-h200", "8xH200", 8, *plain).verdict != "fits"
    assert planned("llama-3.1-70b-full-h200", "8xH200", 8, *plain, "cpu_offload=true").verdict == "fits"
    assert planned("llama-3.1-70b-lora", "1xH100", 1, "sharding=none", "num_gpus=1").verdict == "no"
