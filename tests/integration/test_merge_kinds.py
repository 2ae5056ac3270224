"""FP8, several adapters, the quantized base and other file sizes: against PEFT, bitsandbytes and the exact numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load_file, save_file  # noqa: E402

from engine.merge import adapter as adapters  # noqa: E402
from engine.merge import base as bases  # noqa: E402
from engine.merge import check, combine, fp8, fp8_arithmetic, logits, nf4  # noqa: E402
from engine.merge.plan import Plan, draw  # noqa: E402
from engine.merge.report import Report  # noqa: E402
from engine.merge.stream import Stream  # noqa: E402
from tests.support import merging  # noqa: E402

pytestmark = pytest.mark.heavy
ATTENTION = ["q_proj", "v_proj"]


def write(base: Path, adapter: Path, out: Path, dtype: str | None = None, **options: Any) -> Plan:
    report = Report()
    read, model = adapters.read(adapter, report), bases.read(base, report)
    assert read is not None and model is not None, report.findings
    plan = draw(model, read, dtype, report, **options)
    assert not report.broken, report.findings
    out.mkdir()
    (out / "config.json").write_text(json.dumps(plan.config))
    job = json.loads(json.dumps(plan.to_json()))
    names = {tensor["name"] for shard in job["shards"] for tensor in shard["tensors"]}
    start = nf4.QuantizedBase(base, job["quantized"], names) if job["quantized"] else None
    stream = Stream(out, lambda done: None, start)
    stream.write(job["shards"])
    checked = check.tensors(out, job["shards"], start)
    assert not checked["bad"]
    return plan


def stored(folder: Path) -> dict[str, Any]:
    return {name: tensor for path in folder.glob("*.safetensors") for name, tensor in load_file(path).items()}


def pair(tmp_path: Path, dtype: Any, make: Any = merging.llama, **config: Any) -> tuple[Path, Path]:
    torch.manual_seed(0)
    base = merging.save_base(make(), tmp_path / "base", dtype, shard="12KB")
    options = {"r": 4, "lora_alpha": 8, "target_modules": ATTENTION, **config}
    return base, merging.save_adapter(base, tmp_path / "adapter", dtype, **options)


@pytest.mark.parametrize("given", [torch.bfloat16, torch.float32], ids=str)
def test_fp8_is_the_exact_merge_rounded_once(given: Any, tmp_path: Path) -> None:
    base, adapter = pair(tmp_path, given, use_dora=True)
    plan = write(base, adapter, tmp_path / "out", fp8.DTYPE)
    exact = merging.peft_merged(base, adapter, torch.float32)[1]
    got = stored(tmp_path / "out")
    scales = {name for name in got if name.endswith("_scale")}
    assert {name.removesuffix("_scale") for name in scales} == {name for name in exact if "proj" in name}
    for name, wanted in exact.items():
        if name + "_scale" not in scales:
            assert got[name].dtype == torch.bfloat16
            assert torch.equal(got[name], wanted.bfloat16())
            continue
        scale = got[name + "_scale"]
        assert got[name].dtype == torch.float8_e4m3fn and scale.dtype == torch.bfloat16
        assert scale.shape == (wanted.shape[0], 1)
        off = (fp8_arithmetic.restored(got[name], scale) - wanted).abs()
        # One rounding to three bits: at most a sixteenth, and the same of the smallest step near zero.
        assert (off <= torch.maximum(wanted.abs() / 16, scale.float() * 2.0**-10) * 1.01).all()
        assert off.max() > 0
    described = plan.config["quantization_config"]
    assert described["quant_method"] == "compressed-tensors" and described["ignore"] == ["lm_head"]
    assert plan.config["dtype"] == "bfloat16"
    size = sum(tensor.numel() * tensor.element_size() for tensor in got.values())
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert plan.bytes == size == index["metadata"]["total_size"]
    assert index["weight_map"].keys() == got.keys()
    found = logits.compare(str(base), str(adapter), tmp_path / "out", plan.to_json(), plan.numbers)
    assert found["passed"] and 0 < found["max_abs_diff"] < found["effect"]


def test_fp8_keeps_routers_and_refuses_what_is_stored_otherwise(tmp_path: Path) -> None:
    base, adapter = pair(tmp_path, torch.bfloat16, merging.qwen_moe, target_modules=["q_proj"])
    plan = write(base, adapter, tmp_path / "out", fp8.DTYPE)
    by_name = {output.name: output for output in plan.outputs}
    experts = [output for name, output in by_name.items() if "experts.0." in name]
    assert experts and all(output.scale for output in experts)
    assert not by_name["model.layers.0.mlp.gate.weight"].scale
    assert "model.layers.0.mlp.gate" in plan.config["quantization_config"]["ignore"]
    gpt = merging.save_base(merging.gpt2(), tmp_path / "gpt")
    other = merging.save_adapter(gpt, tmp_path / "other", torch.float32, r=4, target_modules=["c_attn"])
    report = Report()
    read, model = adapters.read(other, report), bases.read(gpt, report)
    assert read is not None and model is not None
    draw(model, read, fp8.DTYPE, report)
    assert [finding.kind for finding in report.findings if finding.level == "error"] == ["unsupported_base"]


def test_rows_of_zeros_and_of_one_large_number() -> None:
    weight = torch.zeros(3, 8)
    weight[1] = torch.tensor([448.0, 1e-4, -1, 3, 5, 7, 100, -448])
    weight[2] = 1e-30
    for kind in (torch.bfloat16, torch.float16):
        number, scale = fp8_arithmetic.quantized(weight, kind)
        back = fp8_arithmetic.restored(number, scale)
        assert torch.isfinite(back).all() and (back[0] == 0).all()
        assert (back - weight).abs().le(fp8_arithmetic.tolerance(weight, scale)).all()


def test_several_adapters_are_those_of_add_weighted_adapter_to_the_bit(tmp_path: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base, one = pair(tmp_path, torch.float32, rank_pattern={"v_proj": 2}, alpha_pattern={"q_proj": 3})
    other = merging.save_adapter(
        base, tmp_path / "other", torch.float32, r=6, target_modules=["q_proj", "embed_tokens"], lora_alpha=5
    )
    tensors = load_file(other / "adapter_model.safetensors")
    save_file({name: t for name, t in tensors.items() if "lora_" in name}, other / "adapter_model.safetensors")
    weights = [0.7, -0.25]
    model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    model = PeftModel.from_pretrained(model, one, adapter_name="one")
    model.load_adapter(other, adapter_name="other")
    model.add_weighted_adapter(["one", "other"], weights, "sum", combination_type="cat")
    wanted = model.merge_and_unload(adapter_names=["sum"]).state_dict()

    report = Report()
    read = [adapters.read(folder, report) for folder in (one, other)]
    parts = [combine.Part(part, weight) for part, weight in zip(read, weights, strict=True) if part is not None]
    combine.check(parts, report)
    assert not report.findings
    combine.write(parts, tmp_path / "sum")
    write(base, tmp_path / "sum", tmp_path / "out")
    got = stored(tmp_path / "out")
    assert {name for name in wanted if not torch.equal(got[name], wanted[name])} == set()


def test_the_quantized_base_is_the_one_that_was_trained_on(tmp_path: Path) -> None:
    import bitsandbytes
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    def make() -> Any:
        return merging.llama(hidden_size=64, intermediate_size=128)

    base, adapter = pair(tmp_path, torch.bfloat16, make)
    how = {"type": "nf4", "nested": True, "dtype": "BF16"}
    plan = write(base, adapter, tmp_path / "out", quantized=how)
    config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True)
    loaded = AutoModelForCausalLM.from_pretrained(
        base, dtype=torch.bfloat16, quantization_config=config, device_map={"": "cpu"}
    )
    model = PeftModel.from_pretrained(loaded, adapter)
    got = stored(tmp_path / "out")
    compared = 0
    for name, module in model.base_model.model.named_modules():
        if not isinstance(module, bitsandbytes.nn.Linear4bit):
            continue
        plain = name.replace(".base_layer", "")
        weight = bitsandbytes.functional.dequantize_4bit(module.weight.data, module.weight.quant_state)
        if name != plain:
            weight = weight + model.base_model.model.get_submodule(plain).get_delta_weight("default")
        assert torch.equal(got[f"{plain}.weight"], weight.to(torch.bfloat16)), plain
        compared += 1
    assert compared == 14
    plain_base = stored(base)
    assert torch.equal(got["lm_head.weight"], plain_base["lm_head.weight"])
    assert not torch.equal(got["model.layers.0.mlp.up_proj.weight"], plain_base["model.layers.0.mlp.up_proj.weight"])
    found = logits.compare(str(base), str(adapter), tmp_path / "out", plan.to_json(), plan.numbers)
    other = logits.compare(
        str(base), str(adapter), tmp_path / "out", {**plan.to_json(), "quantized": None}, plan.numbers
    )
    assert found["passed"] and found["max_abs_diff"] < other["max_abs_diff"] / 4


def test_files_of_another_size_hold_the_same(tmp_path: Path) -> None:
    base, adapter = pair(tmp_path, torch.bfloat16)
    write(base, adapter, tmp_path / "as-it-is")
    limit = 20_000
    write(base, adapter, tmp_path / "divided", shard=limit)
    write(base, adapter, tmp_path / "whole", shard=10**9)
    one, other = stored(tmp_path / "as-it-is"), stored(tmp_path / "divided")
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
    sizes = [path.stat().st_size for path in (tmp_path / "divided").glob("*.safetensors")]
    assert 2 < len(sizes) < len(list(base.glob("*.safetensors"))) and max(sizes) < limit + 4096
    assert [path.name for path in (tmp_path / "whole").glob("*.safetensors*")] == ["model.safetensors"]
