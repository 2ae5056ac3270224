"""What a recipe asks of its model and cannot have, told by the model's config.json and the names of its tensors."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from engine.files import read_json
from engine.findings import Finding
from engine.recipe.model import Recipe
from engine.text import _

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
EXPERT_NAMES = {"gate_proj", "up_proj", "down_proj", "w1", "w2", "w3"}
UNFUSED = {"gpt_oss"}  # whose experts PEFT leaves alone under all-linear
# Families whose attention transformers computes without sdpa (soft-capped scores, sinks).
WITHOUT_SDPA = {"gemma2", "gpt_oss", "t5gemma", "vaultgemma"}
HEADER_LIMIT = 100 << 20
LISTED = 12


def check(recipe: Recipe, folder: Path, config: dict[str, Any]) -> Iterator[Finding]:
    """Findings about a recipe and a model's folder."""
    inner = config.get("text_config")
    text = inner if isinstance(inner, dict) else config
    yield from _attention(recipe, config, text)
    yield from _quantized(recipe, config)
    if recipe.method != "full":
        yield from _targets(recipe, folder, text)
    yield from _random(recipe, folder)


def _attention(recipe: Recipe, config: dict[str, Any], text: dict[str, Any]) -> Iterator[Finding]:
    kind = text.get("model_type") or config.get("model_type")
    if recipe.given.get("attn_implementation") == "sdpa" and kind in WITHOUT_SDPA:
        detail = _("{kind} has no sdpa attention in transformers").format(kind=kind)
        fix = _("delete attn_implementation: eager is taken, or use flash_attention_2")
        yield recipe.finding("conflict", "error", detail, fix, ("attn_implementation", "model_name_or_path"))


def _quantized(recipe: Recipe, config: dict[str, Any]) -> Iterator[Finding]:
    """A folder whose weights are quantized themselves."""
    given = config.get("quantization_config")
    if not isinstance(given, dict):
        return
    name = str(given.get("quant_method") or "?")
    if recipe.method == "full":
        detail = _("the model's weights are quantized ({name}): method full cannot train them").format(name=name)
        fix = _("use the model's 16-bit weights, or method: lora")
        yield recipe.finding("conflict", "error", detail, fix, ("model_name_or_path", "method"))
    elif recipe.method == "qlora" and name != "bitsandbytes":
        detail = _("the model's weights are quantized already ({name}); method qlora quantizes 16-bit ones")
        fix = _("use the model's 16-bit weights, or method: lora")
        yield recipe.finding("conflict", "error", detail.format(name=name), fix, ("model_name_or_path", "method"))


def _targets(recipe: Recipe, folder: Path, text: dict[str, Any]) -> Iterator[Finding]:
    targets = recipe.get("lora_target_modules")
    experts = any(isinstance(text.get(key), int) and text[key] > 1 for key in EXPERTS)
    fused = experts and text.get("model_type") not in UNFUSED
    listed = targets if isinstance(targets, list) else [targets]
    all_linear = "all-linear" in listed
    if fused and recipe.get("lora_dropout") and (all_linear or {"gate_proj", "up_proj"} <= set(listed)):
        detail = _(
            "the model's experts are fused parameters, and PEFT has no dropout on those; lora_dropout is {value}"
        )
        keys = ("lora_dropout", "lora_target_modules", "model_name_or_path")
        fix = _("set lora_dropout: 0, or list the attention's modules")
        yield recipe.finding("conflict", "error", detail.format(value=recipe.get("lora_dropout")), fix, keys)
    if all_linear or targets is None:
        return
    names = modules(folder)
    if not names:
        return
    missing = [str(t) for t in listed if not _matches(t, names, whole=isinstance(targets, str))]
    missing = [name for name in missing if not (fused and name in EXPERT_NAMES)]
    if missing:
        leaves = sorted({n.rpartition(".")[2] for n in names if ".layers." in f".{n}" and "norm" not in n})
        detail = _("no module of the model is called {names}").format(names=", ".join(missing[:5]))
        fix = _("its layers: {names}; or use all-linear").format(names=", ".join(leaves[:LISTED]))
        yield recipe.finding("no_such_module", "error", detail, fix, ("lora_target_modules", "model_name_or_path"))


def _matches(target: str, names: set[str], *, whole: bool) -> bool:
    """PEFT's own rule: a text is a regular expression for the whole name, an entry of a list its end."""
    if whole:
        try:
            return any(re.fullmatch(target, name) for name in names)
        except (re.error, RecursionError, OverflowError):
            return True  # said elsewhere
    return any(name == target or name.endswith(f".{target}") for name in names)


def _random(recipe: Recipe, folder: Path) -> Iterator[Finding]:
    if recipe.task == "pretrain" or not recipe.get("random_init"):
        return
    detail = _("random_init begins with random weights, which only task pretrain can teach to speak")
    yield recipe.finding("conflict", "error", detail, _("use task: pretrain"), ("random_init", "task"))


def modules(folder: Path) -> set[str]:
    """The names of the modules that have weights, by the headers of the safetensors files; empty when not known."""
    index = read_json(folder / "model.safetensors.index.json")
    tensors: list[str] = []
    if isinstance(index, dict) and isinstance(index.get("weight_map"), dict):
        tensors = [str(name) for name in index["weight_map"]]
    elif (single := folder / "model.safetensors").is_file():
        tensors = _header(single)
    return {name.rpartition(".")[0] for name in tensors if "." in name}


def _header(path: Path) -> list[str]:
    try:
        with open(path, "rb") as file:
            (size,) = struct.unpack("<Q", file.read(8))
            if size > min(HEADER_LIMIT, os.fstat(file.fileno()).st_size):
                return []
            found = orjson.loads(file.read(size))
    except (OSError, ValueError, struct.error):
        return []
    return [str(name) for name in found if name != "__metadata__"] if isinstance(found, dict) else []
