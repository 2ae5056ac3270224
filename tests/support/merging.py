"""Small models with adapters of every kind, as PEFT makes and saves them, and what PEFT's own merge gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

VOCAB, HIDDEN = 96, 32


def llama(**more: Any) -> Any:
    """A Llama of two layers."""
    from transformers import LlamaConfig, LlamaForCausalLM

    size: dict[str, Any] = {
        "vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64,
    }  # fmt: skip
    return LlamaForCausalLM(LlamaConfig(**{**size, **more}))


def gpt2() -> Any:
    """A GPT-2, whose layers are Conv1D and whose embeddings are tied."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(n_embd=HIDDEN, n_layer=2, n_head=2, n_positions=64, vocab_size=VOCAB))


def qwen_moe() -> Any:
    """A mixture of four experts a layer."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    return Qwen3MoeForCausalLM(
        Qwen3MoeConfig(
            vocab_size=VOCAB, hidden_size=HIDDEN, intermediate_size=48, moe_intermediate_size=24, num_hidden_layers=2,
            num_attention_heads=2, num_key_value_heads=1, head_dim=16, num_experts=4, num_experts_per_tok=2,
            decoder_sparse_step=1, max_position_embeddings=64, tie_word_embeddings=False,
        )
    )  # fmt: skip


def save_base(model: Any, folder: Path, dtype: torch.dtype = torch.float32, shard: str | None = None) -> Path:
    """Save a model as a base."""
    options = {"max_shard_size": shard} if shard else {}
    model.to(dtype).save_pretrained(folder, **options)
    return folder


def save_adapter(base: Path, folder: Path, dtype: torch.dtype, resize: int | None = None, **config: Any) -> Path:
    """Make an adapter on the base with every tensor of it random, and save it as PEFT does."""
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=dtype)
    if resize:
        model.resize_token_embeddings(resize, mean_resizing=False)
    model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **config))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "magnitude" in name:
                parameter.mul_(1 + 0.1 * torch.rand_like(parameter))
            elif parameter.requires_grad:
                parameter.add_(0.05 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return folder


def peft_merged(base: Path, adapter: Path, dtype: torch.dtype, resize: int | None = None) -> tuple[Any, dict[str, Any]]:
    """`merge_and_unload`: the model, and the tensors that it saves."""
    model = AutoModelForCausalLM.from_pretrained(base, dtype=dtype)
    if resize:
        model.resize_token_embeddings(resize, mean_resizing=False)
    model = PeftModel.from_pretrained(model, adapter).merge_and_unload()
    return model, model.state_dict()
