"""A model's configuration, made small: same architecture, same vocabulary, names of modules kept.

What a rehearsal is to find (data, template, masks, targets, method, sharding, saving) does not depend on the size; two
layers of a few hundred thousand weights each show it in a minute. The vocabulary stays, because the data does.
"""

from __future__ import annotations

import copy
from typing import Any

LAYERS = 2
HEADS = 4
HEAD_DIM = 32  # the smallest that serving kernels take
HIDDEN = HEADS * HEAD_DIM
FFN = 2 * HIDDEN
EXPERTS = 4
# Our value for each key that a configuration may have; those of another architecture are left alone.
SIZES: dict[str, int] = {
    "hidden_size": HIDDEN, "n_embd": HIDDEN, "d_model": HIDDEN,
    "intermediate_size": FFN, "n_inner": FFN, "ffn_dim": FFN,
    "num_hidden_layers": LAYERS, "n_layer": LAYERS, "num_layers": LAYERS,
    "num_attention_heads": HEADS, "n_head": HEADS,
    "head_dim": HEAD_DIM,
    "moe_intermediate_size": FFN // 2, "shared_expert_intermediate_size": FFN // 2,
    "num_experts": EXPERTS, "num_local_experts": EXPERTS, "n_routed_experts": EXPERTS,
    "q_lora_rank": 64, "kv_lora_rank": 32, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32,
}  # fmt: skip
AT_MOST: dict[str, int] = {
    "num_experts_per_tok": 2, "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
    "max_window_layers": LAYERS, "query_pre_attn_scalar": HEAD_DIM, "num_kv_shared_layers": 0,
    "hidden_size_per_layer_input": 32,
}  # fmt: skip
PER_LAYER = ("layer_types", "mlp_layer_types", "no_rope_layers", "sliding_window_pattern")


def shrink(config: dict[str, Any]) -> dict[str, Any]:
    """The small configuration.

    Args:
        config: a Hugging Face config.json; a `text_config` inside it is made small too.
    """
    small = copy.deepcopy(config)
    for part in (small, small.get("text_config")):
        if isinstance(part, dict):
            _shrink(part)
    small.pop("quantization_config", None)  # random weights are of no quantized form
    return small


def _shrink(part: dict[str, Any]) -> None:
    heads = part.get("num_attention_heads")
    kv = {key: part[key] for key in ("num_key_value_heads", "num_kv_heads") if isinstance(part.get(key), int)}
    for key, size in SIZES.items():
        if part.get(key) is not None:
            part[key] = size
    for key, limit in AT_MOST.items():
        if isinstance(part.get(key), int):
            part[key] = min(part[key], limit)
    for key, count in kv.items():
        part[key] = HEADS if count == heads else 1 if count == 1 else 2
    for key in PER_LAYER:
        if isinstance(part.get(key), list):
            part[key] = _kinds(part[key])
    scaling = part.get("rope_scaling")
    for inner in (scaling, part.get("rope_parameters")):
        if isinstance(inner, dict) and "mrope_section" in inner:
            inner["mrope_section"] = [4, 6, 6]  # thirds of half a head


def _kinds(values: list[Any]) -> list[Any]:
    """One layer of each of the first kinds, so that a mixed model stays mixed."""
    kinds = [value for at, value in enumerate(values) if value not in values[:at]]
    return (kinds + values)[:LAYERS]
