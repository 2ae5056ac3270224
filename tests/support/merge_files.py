"""A small Llama's files and an adapter for it, written with numpy: what the light half of a merge reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 16, "tie_word_embeddings": False}
ADAPTER = {
    "peft_type": "LORA",
    "r": 4,
    "lora_alpha": 8,
    "target_modules": ["q_proj"],
    "base_model_name_or_path": "base",
}
Q = "model.layers.0.self_attn.q_proj"


def numbers(*shape: int) -> Any:
    """Numbers that are not zero."""
    return np.linspace(-1, 1, int(np.prod(shape)), dtype=np.float32).reshape(shape)


def base_tensors() -> dict[str, Any]:
    """A layer of a Llama with hidden size 8 and 16 words."""
    return {
        "model.embed_tokens.weight": numbers(16, 8),
        f"{Q}.weight": numbers(8, 8),
        "model.layers.0.self_attn.v_proj.weight": numbers(4, 8),
        "model.norm.weight": numbers(8),
        "lm_head.weight": numbers(16, 8),
    }


def adapter_tensors(module: str = Q, out: int = 8, inner: int = 8, r: int = 4) -> dict[str, Any]:
    """One LoRA layer."""
    key = f"base_model.model.{module}"
    return {f"{key}.lora_A.weight": numbers(r, inner), f"{key}.lora_B.weight": numbers(out, r)}


def write_base(folder: Path, tensors: dict[str, Any] | None = None, **config: Any) -> Path:
    """A base in one file."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **config}))
    save_file(base_tensors() if tensors is None else tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def write_shards(folder: Path, tensors: dict[str, Any], **config: Any) -> Path:
    """A base with one file for each tensor, and the index."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **config}))
    where = {}
    for number, (name, value) in enumerate(tensors.items(), 1):
        where[name] = f"model-{number:05d}-of-{len(tensors):05d}.safetensors"
        save_file({name: value}, folder / where[name], {"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return folder


def write_adapter(folder: Path, tensors: dict[str, Any] | None = None, **config: Any) -> Path:
    """An adapter."""
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps({**ADAPTER, **config}))
    save_file(adapter_tensors() if tensors is None else tensors, folder / "adapter_model.safetensors", {"format": "pt"})
    return folder
