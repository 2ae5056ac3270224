"""What the models say: base with adapter against the merged one on a few prompts, where memory allows."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import torch

from engine.merge import fp8
from engine.merge.fp8_arithmetic import restored
from engine.text import _, gigabytes

PROMPTS = (
    "The quick brown fox jumps over the lazy dog.",
    "Question: how do I reset my password?\nAnswer:",
    "def add(a, b):\n    return",
)
LENGTH = 32
EXACT_LIMIT = 8e9  # bytes in float32 up to which the comparison computes in float32
SHARE = 0.6  # of the free memory that a model may take
# Largest difference, relative to the largest logit. With 16-bit weights the rounding of each merged weight remains,
# with FP8 ones that of e4m3's three bits.
TOLERANCE = {"F32": 1e-4, "BF16": 0.05, "F16": 0.02, fp8.DTYPE: 0.25}


class Skipped(Exception):
    """The comparison cannot be made here; the text says why."""


def compare(base: str, adapter: str, merged: Path, plan: dict[str, Any], numbers: int) -> dict[str, Any]:
    """Compare the logits.

    Args:
        base: the base model's folder.
        adapter: the adapter's folder.
        merged: the merged model's folder.
        plan: the type that the merged model is stored in, the size of a grown vocabulary, how the base is quantized.
        numbers: how many numbers the model has.

    Raises:
        Skipped: too little memory, or a model that cannot be loaded here.
    """
    dtype = plan["dtype"]
    compute = _compute_type(numbers, dtype)
    from peft import PeftModel

    model = _model(base, compute)
    if plan["quantized"] is not None:
        _quantize(model, base, plan["quantized"])
    if plan["vocab"] is not None:
        model.resize_token_embeddings(plan["vocab"], mean_resizing=False)
    rows = int(model.get_input_embeddings().weight.shape[0])
    prompts = _prompts(merged, rows)
    alone = _logits(model, prompts)
    try:
        model = PeftModel.from_pretrained(model, adapter).eval()
    except (ValueError, KeyError, RuntimeError, TypeError, ImportError) as error:
        raise Skipped(_("PEFT cannot load the adapter: {reason}").format(reason=_line(error))) from error
    both = _logits(model, prompts)
    del model
    gc.collect()
    ours = _logits(_restored(merged, compute) if dtype == fp8.DTYPE else _model(str(merged), compute), prompts)
    largest = max(1.0, *(float(x.abs().max()) for x in both))
    difference = _difference(both, ours)
    limit = TOLERANCE[dtype if compute == torch.float32 else "BF16"]
    top = [x.argmax(-1) == y.argmax(-1) for x, y in zip(both, ours, strict=True)]
    return {
        "prompts": len(prompts),
        "dtype": str(compute).removeprefix("torch."),
        "max_abs_diff": difference,
        "tolerance": limit * largest,
        "effect": _difference(alone, both),
        "top1_agreement": float(torch.cat([t.flatten() for t in top]).float().mean()),
        "passed": difference <= limit * largest,
    }


def _compute_type(numbers: int, dtype: str) -> torch.dtype:
    import psutil

    free = psutil.virtual_memory().available * SHARE
    if numbers * 4 <= min(free, EXACT_LIMIT):
        return torch.float32
    if dtype != "F32" and numbers * 2 <= free:
        return torch.float16 if dtype == "F16" else torch.bfloat16
    text = _("the model takes {need} in memory, and {free} may be used")
    raise Skipped(text.format(need=gigabytes(numbers * 2), free=gigabytes(free)))


def _model(folder: str, dtype: torch.dtype) -> Any:
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, local_files_only=True, trust_remote_code=False, output_loading_info=True
        )
        model, told = loaded
    except Exception as error:  # whatever a model's own code raises: then it cannot be compared
        text = _("transformers cannot load {folder}: {reason}")
        raise Skipped(text.format(folder=folder, reason=_line(error))) from error
    if told["missing_keys"]:
        names = ", ".join(sorted(told["missing_keys"])[:3])
        raise Skipped(_("{folder} lacks tensors of its architecture: {names}").format(folder=folder, names=names))
    return model.eval()


@torch.no_grad()
def _quantize(model: Any, folder: str, how: dict[str, Any]) -> None:
    """Make the loaded base the quantized one that the adapter was trained on."""
    from engine.merge import nf4

    for name in nf4.parameters(folder):
        weight = model.get_parameter(name)
        weight.copy_(nf4.dequantized(weight, how))


def _restored(folder: Path, dtype: torch.dtype) -> Any:
    """The FP8 model with its weights as they count, so that no package for FP8 is needed."""
    from safetensors import safe_open
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    del config.quantization_config
    state: dict[str, torch.Tensor] = {}
    scales: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as reader:
            for name in reader.keys():  # noqa: SIM118 - it is no dictionary
                (scales if name.endswith(fp8.SCALE) else state)[name] = reader.get_tensor(name)
    for name, scale in scales.items():
        weight = name.removesuffix(fp8.SCALE)
        state[weight] = restored(state[weight], scale).to(dtype)
    try:
        with torch.device("meta"):
            kind: Any = type(AutoModelForCausalLM.from_config(config))  # type: ignore[no-untyped-call]
        model = kind.from_pretrained(None, config=config, state_dict=state, dtype=dtype)
    except Exception as error:  # whatever a model's own code raises: then it cannot be compared
        text = _("transformers cannot load {folder}: {reason}")
        raise Skipped(text.format(folder=folder, reason=_line(error))) from error
    return model.eval()


def _prompts(folder: Path, vocab: int) -> list[torch.Tensor]:
    """Token ids of the prompts; where there is no tokenizer, ids spread over the vocabulary."""
    try:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        ids = [tokenizer.encode(text).ids[:LENGTH] for text in PROMPTS]
        if all(len(row) > 1 and max(row) < vocab for row in ids):
            return [torch.tensor([row]) for row in ids]
    except Exception:  # noqa: BLE001, S110 - the library raises plain exceptions; the ids below do as well
        pass
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(0, vocab, (1, 8), generator=generator) for _text in PROMPTS]


@torch.no_grad()
def _logits(model: Any, prompts: list[torch.Tensor]) -> list[torch.Tensor]:
    return [model(input_ids=ids).logits.float() for ids in prompts]


def _difference(one: list[torch.Tensor], other: list[torch.Tensor]) -> float:
    """The largest difference over the tokens that both know."""
    least = min(one[0].shape[-1], other[0].shape[-1])
    return max(float((x[..., :least] - y[..., :least]).abs().max()) for x, y in zip(one, other, strict=True))


def _line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
