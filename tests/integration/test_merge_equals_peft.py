"""Merged tensors against `merge_and_unload`, bit by bit, for every kind of adapter, in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from engine.merge import adapter as adapters  # noqa: E402
from engine.merge import base as bases  # noqa: E402
from engine.merge import check, logits  # noqa: E402
from engine.merge.plan import Plan, draw  # noqa: E402
from engine.merge.report import Report  # noqa: E402
from engine.merge.stream import Stream  # noqa: E402
from tests.support import merging  # noqa: E402

pytestmark = pytest.mark.heavy
ATTENTION = ["q_proj", "v_proj"]
KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "lora": (merging.llama, {"r": 4, "lora_alpha": 8, "target_modules": ATTENTION}),
    "all-linear": (merging.llama, {"r": 8, "target_modules": "all-linear"}),
    "rslora": (merging.llama, {"r": 4, "use_rslora": True, "target_modules": ATTENTION}),
    "dora": (merging.llama, {"r": 4, "use_dora": True, "target_modules": ["q_proj", "down_proj"]}),
    "patterns": (
        merging.llama,
        {
            "r": 4,
            "target_modules": ATTENTION,
            "rank_pattern": {"layers.1.self_attn.q_proj": 6},
            "alpha_pattern": {"v_proj": 3, r"layers\.0\..*q_proj": 5},
        },
    ),
    "modules-to-save": (merging.llama, {"r": 4, "target_modules": ATTENTION, "modules_to_save": ["lm_head", "norm"]}),
    "embedding": (merging.llama, {"r": 4, "target_modules": ["embed_tokens", "q_proj", "lm_head"]}),
    "embedding-dora": (merging.llama, {"r": 4, "use_dora": True, "target_modules": ["embed_tokens", "q_proj"]}),
    "bias": (
        lambda: merging.llama(attention_bias=True),
        {"r": 4, "target_modules": ["q_proj"], "bias": "all", "lora_bias": False},
    ),
    "lora-bias": (
        lambda: merging.llama(attention_bias=True),
        {"r": 4, "target_modules": ["q_proj"], "lora_bias": True},
    ),
    "conv1d": (merging.gpt2, {"r": 4, "target_modules": ["c_attn", "c_proj"], "fan_in_fan_out": True}),
    "conv1d-dora": (merging.gpt2, {"r": 4, "use_dora": True, "target_modules": ["c_attn"], "fan_in_fan_out": True}),
    "experts": (
        merging.qwen_moe,
        {
            "r": 3,
            "target_modules": ["q_proj"],
            "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
        },
    ),
    "tokens": (merging.llama, {"r": 4, "target_modules": ATTENTION, "trainable_token_indices": [3, 7, 95]}),
    "tied-both-saved": (
        lambda: merging.llama(tie_word_embeddings=True),
        {"r": 4, "target_modules": ATTENTION, "modules_to_save": ["lm_head", "embed_tokens"]},
    ),
    "tied-head-saved": (
        lambda: merging.llama(tie_word_embeddings=True),
        {"r": 4, "target_modules": ATTENTION, "modules_to_save": ["lm_head"]},
    ),
    "tied-embedding-saved": (
        lambda: merging.llama(tie_word_embeddings=True),
        {"r": 4, "target_modules": ATTENTION, "modules_to_save": ["embed_tokens"]},
    ),
}
# Both sides of a tied pair share memory in merge_and_unload; here what was trained counts (engine/merge/tying.py).
OWN_WAY: dict[str, dict[str, Any]] = {
    "tied-embedding-lora": {"r": 4, "target_modules": ["embed_tokens", "q_proj"]},
    "tied-head-lora": {"r": 4, "target_modules": ["lm_head", "q_proj"]},
    "tied-both-lora": {"r": 4, "target_modules": ["lm_head", "embed_tokens"]},
    "tied-tokens": {"r": 4, "target_modules": ["q_proj"], "trainable_token_indices": [3, 7]},
    "tied-ensured": {"r": 4, "target_modules": ["embed_tokens"], "ensure_weight_tying": True},
}
DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16}


def write(base: Path, adapter: Path, out: Path, dtype: str | None = None) -> tuple[Plan, Report]:
    import json

    report = Report()
    read = adapters.read(adapter, report)
    model = bases.read(base, report)
    assert read is not None and model is not None, report.findings
    plan = draw(model, read, dtype, report)
    assert not report.broken, report.findings
    out.mkdir()
    (out / "config.json").write_text(json.dumps(plan.config))
    job = json.loads(json.dumps(plan.to_json()))
    stream = Stream(out, lambda done: None)
    stream.write(job["shards"])
    assert not stream.not_finite
    checked = check.tensors(out, job["shards"])
    assert not checked["bad"]
    return plan, report


def compare_all(out: Path, dtype: Any, wanted: dict[str, Any]) -> None:
    """The model that loads from the folder has PEFT's tensors, all of them, to the bit."""
    from transformers import AutoModelForCausalLM

    model, told = AutoModelForCausalLM.from_pretrained(out, dtype=dtype, output_loading_info=True)
    assert not told["missing_keys"] and not told["unexpected_keys"]
    got = model.state_dict()
    assert got.keys() == wanted.keys()
    different = [name for name in got if not torch.equal(got[name], wanted[name])]
    assert not different


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_bit_is_that_of_merge_and_unload(kind: str, dtype: str, tmp_path: Path) -> None:
    make, config = KINDS[kind]
    torch.manual_seed(0)
    base = merging.save_base(make(), tmp_path / "base", DTYPES[dtype], shard="12KB" if dtype == "BF16" else None)
    assert len(list(base.glob("*.safetensors"))) > 1 or dtype == "F32"
    adapter = merging.save_adapter(base, tmp_path / "adapter", DTYPES[dtype], **config)
    _model, wanted = merging.peft_merged(base, adapter, DTYPES[dtype])
    write(base, adapter, tmp_path / "out")
    compare_all(tmp_path / "out", DTYPES[dtype], wanted)


@pytest.mark.parametrize("kind", [*OWN_WAY, "lora", "experts", "embedding-dora", "conv1d-dora", "tied-head-saved"])
def test_the_merged_model_says_what_base_and_adapter_say(kind: str, tmp_path: Path) -> None:
    make, config = KINDS.get(kind) or (lambda: merging.llama(tie_word_embeddings=True), OWN_WAY[kind])
    torch.manual_seed(0)
    base = merging.save_base(make(), tmp_path / "base")
    adapter = merging.save_adapter(base, tmp_path / "adapter", torch.float32, **config)
    plan, report = write(base, adapter, tmp_path / "out")
    found = logits.compare(str(base), str(adapter), tmp_path / "out", plan.to_json(), plan.numbers)
    assert found["passed"] and found["effect"] > 100 * found["tolerance"]
    untied = any(f.kind == "tied_embeddings_untied" for f in report.findings)
    assert untied == (kind.startswith("tied") and kind not in ("tied-tokens", "tied-ensured"))


@pytest.mark.parametrize("tied", [False, True])
def test_a_grown_vocabulary(tied: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    base = merging.save_base(merging.llama(tie_word_embeddings=tied), tmp_path / "base")
    rows = merging.VOCAB + 5
    saved = {} if tied else {"modules_to_save": ["embed_tokens", "lm_head"]}
    adapter = merging.save_adapter(
        base, tmp_path / "adapter", torch.float32, rows, r=4, target_modules=ATTENTION, **saved
    )
    _model, wanted = merging.peft_merged(base, adapter, torch.float32, rows)
    plan, report = write(base, adapter, tmp_path / "out")
    assert plan.vocab == plan.config["vocab_size"] == rows
    assert {f.kind for f in report.findings} == {"vocab_resized"}
    compare_all(tmp_path / "out", torch.float32, wanted)


@pytest.mark.parametrize("given,dtype", [("F32", "BF16"), ("BF16", "F32"), ("BF16", "F16")])
def test_another_type_is_one_rounding_of_the_float32_merge(given: str, dtype: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    base = merging.save_base(merging.llama(), tmp_path / "base", DTYPES[given])
    adapter = merging.save_adapter(base, tmp_path / "adapter", DTYPES[given], r=4, target_modules=ATTENTION)
    _model, exact = merging.peft_merged(base, adapter, torch.float32)
    target = {**DTYPES, "F16": torch.float16}[dtype]
    plan, _report = write(base, adapter, tmp_path / "out", dtype)
    assert plan.config["dtype"] == str(target).removeprefix("torch.")
    compare_all(tmp_path / "out", target, {name: tensor.to(target) for name, tensor in exact.items()})


def test_blocks_of_rows_give_the_bits_of_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large tensors are worked on in blocks; PEFT multiplies in one piece."""
    from engine.merge import arithmetic
    from engine.merge.layers import Op
    from engine.merge.tensors import Ref

    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Any:
        return torch.randn(*shape, generator=generator)

    held = {
        "w": random(5000, 96),
        "a": random(16, 96),
        "b": random(5000, 16),
        "ea": random(16, 5000),
        "eb": random(96, 16),
    }
    refs = {name: Ref(name, 0, t.numel() * 4, "F32", tuple(t.shape)) for name, t in held.items()}
    monkeypatch.setattr(arithmetic, "read_rows", lambda ref, low, high: held[ref.file][low:high].clone())
    arithmetic.factor.cache_clear()
    ops = {
        "linear": Op("linear", 0.7, refs["a"], refs["b"]),
        "embedding": Op("embedding", 0.7, refs["ea"], refs["eb"], transposed=True),
    }
    for op in ops.values():
        whole = torch.cat(list(arithmetic.merged(refs["w"], "F32", [op])))
        with monkeypatch.context() as patch:
            patch.setattr(arithmetic, "BLOCK", 1024 * 96)
            parts = list(arithmetic.merged(refs["w"], "F32", [op]))
        assert len(parts) == 4 and torch.equal(torch.cat(parts), whole)
    arithmetic.factor.cache_clear()
