"""Families of architectures: which matrices a layer has, by `model_type` of config.json.

Defaults are those of the family's configuration class in transformers, for configs that leave a field out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from engine.errors import UsageError
from engine.plan.shapes import Block, Linear, Shape, positive
from engine.text import _


@dataclass(frozen=True)
class Dims:
    """The numbers that every family has."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    max_positions: int | None


def build(config: dict[str, Any], name: str, notes: tuple[str, ...]) -> Shape:
    """The shape of a config, by its family (see `shapes.from_config`)."""
    family = str(config.get("model_type") or "llama")
    builder = BUILDERS.get(family)
    if builder is None:
        raise UsageError(
            _("the architecture '{family}' is not in the catalogue").format(family=family[:40]),
            where="config.model_type",
            fix=_("a local copy of the model lets it be counted through transformers"),
            kind="unknown_architecture",
        )
    shape = builder(config, family)
    return _with(shape, name=name, notes=notes)


def _with(shape: Shape, **changes: Any) -> Shape:
    from dataclasses import replace

    return replace(shape, **changes)


def _dims(
    config: dict[str, Any], *, heads: int | None = None, kv: int | None = None, head_dim: int | None = None
) -> Dims:
    hidden = positive(config, "hidden_size", config.get("n_embd"))
    n_heads = positive(config, "num_attention_heads", config.get("n_head", heads))
    kv_heads = positive(config, "num_key_value_heads", kv or n_heads)
    if n_heads % kv_heads:
        raise UsageError(
            _("{heads} attention heads cannot share {kv} key/value heads").format(heads=n_heads, kv=kv_heads),
            where="config.num_key_value_heads",
            kind="bad_config",
        )
    if config.get("head_dim") is None and head_dim is None and hidden % n_heads:
        raise UsageError(
            _("hidden size {hidden} is not a multiple of {heads} heads").format(hidden=hidden, heads=n_heads),
            where="config.num_attention_heads",
            kind="bad_config",
        )
    positions = config.get("max_position_embeddings", config.get("n_positions"))
    return Dims(
        hidden=hidden,
        layers=positive(config, "num_hidden_layers", config.get("n_layer")),
        heads=n_heads,
        kv_heads=kv_heads,
        head_dim=positive(config, "head_dim", head_dim or hidden // n_heads),
        ffn=positive(config, "intermediate_size", config.get("n_inner") or 4 * hidden),
        vocab=positive(config, "vocab_size"),
        max_positions=positions if isinstance(positions, int) and positions > 0 else None,
    )


def _attention(d: Dims, qkv_bias: bool, out_bias: bool) -> list[Linear]:
    q, k = d.heads * d.head_dim, d.kv_heads * d.head_dim
    return [
        Linear("q_proj", d.hidden, q, qkv_bias),
        Linear("k_proj", d.hidden, k, qkv_bias),
        Linear("v_proj", d.hidden, k, qkv_bias),
        Linear("o_proj", q, d.hidden, out_bias),
    ]


def _gated(d: Dims, ffn: int, bias: bool = False, copies: int = 1) -> list[Linear]:
    fused = copies > 1
    return [
        Linear("gate_proj", d.hidden, ffn, bias, copies, fused),
        Linear("up_proj", d.hidden, ffn, bias, copies, fused),
        Linear("down_proj", ffn, d.hidden, bias, copies, fused),
    ]


def _shape(d: Dims, config: dict[str, Any], family: str, blocks: tuple[Block, ...], tied: bool, **more: Any) -> Shape:
    tied = bool(config.get("tie_word_embeddings", tied))
    fields: dict[str, Any] = {
        "v_head_dim": d.head_dim,
        "final": d.hidden,
        "head": 0 if tied else d.vocab * d.hidden,
        "embedding": d.vocab * d.hidden,
        "ffn": d.ffn,
    }
    return Shape(
        family=family,
        hidden=d.hidden,
        layers=d.layers,
        heads=d.heads,
        kv_heads=d.kv_heads,
        head_dim=d.head_dim,
        vocab=d.vocab,
        tied=tied,
        blocks=blocks,
        max_positions=d.max_positions,
        **(fields | more),
    )


def _llama(config: dict[str, Any], family: str) -> Shape:
    d = _dims(config)
    bias = bool(config.get("attention_bias", False))
    linears = _attention(d, bias, bias) + _gated(d, d.ffn, bool(config.get("mlp_bias", False)))
    block = Block(tuple(linears), 2 * d.hidden, d.layers)
    return _shape(d, config, family, (block,), family == "smollm3")


def _mistral(config: dict[str, Any], family: str) -> Shape:
    d = _dims(config, kv=8)
    block = Block(tuple(_attention(d, False, False) + _gated(d, d.ffn)), 2 * d.hidden, d.layers)
    return _shape(d, config, family, (block,), False, window=_window(config))


def _window(config: dict[str, Any]) -> int | None:
    value = config.get("sliding_window")
    return value if isinstance(value, int) and value > 0 else None


def _mixtral(config: dict[str, Any], family: str) -> Shape:
    d = _dims(config, kv=8)
    experts, top = positive(config, "num_local_experts", 8), positive(config, "num_experts_per_tok", 2)
    router = Linear("router", d.hidden, experts, fused=True)
    block = Block((*_attention(d, False, False), router, *_gated(d, d.ffn, copies=experts)), 2 * d.hidden, d.layers)
    return _shape(
        d, config, family, (block,), False, experts=experts, experts_per_token=top, expert_ffn=d.ffn
    )  # fmt: skip


def _qwen2(config: dict[str, Any], family: str) -> Shape:
    d = _dims(
        config, kv=32 if "num_key_value_heads" not in config and config.get("num_attention_heads") == 32 else None
    )
    block = Block(tuple(_attention(d, True, False) + _gated(d, d.ffn)), 2 * d.hidden, d.layers)
    return _shape(d, config, family, (block,), False)


def _qwen3(config: dict[str, Any], family: str) -> Shape:
    d = _dims(config, head_dim=128)
    bias = bool(config.get("attention_bias", False))
    block = Block(tuple(_attention(d, bias, bias) + _gated(d, d.ffn)), 2 * d.hidden + 2 * d.head_dim, d.layers)
    return _shape(d, config, family, (block,), False, qk_norm=True)


def _qwen_moe(config: dict[str, Any], family: str) -> Shape:
    third = family == "qwen3_moe"
    d = _dims(config, head_dim=128 if third and "head_dim" not in config else None)
    experts, top = (
        positive(config, "num_experts", 128 if third else 60),
        positive(config, "num_experts_per_tok", 8 if third else 4),
    )
    ffn = positive(config, "moe_intermediate_size", 768 if third else 1408)
    shared = 0 if third else positive(config, "shared_expert_intermediate_size", 5632)
    bias = bool(config.get("attention_bias", False)) if third else bool(config.get("qkv_bias", True))
    linears = _attention(d, bias, bias and third)
    linears += [Linear("router", d.hidden, experts, fused=True), *_gated(d, ffn, copies=experts)]
    if shared:
        linears += [Linear(f"shared_{lin.name}", lin.n_in, lin.n_out) for lin in _gated(d, shared)]
        linears += [Linear("shared_expert_gate", d.hidden, 1)]
    norms = 2 * d.hidden + (2 * d.head_dim if third else 0)
    step = positive(config, "decoder_sparse_step", 1)
    dense_at = set(config.get("mlp_only_layers") or ())
    sparse = [i for i in range(d.layers) if i not in dense_at and (i + 1) % step == 0]
    blocks = [Block(tuple(linears), norms, len(sparse))]
    if len(sparse) < d.layers:
        dense = _attention(d, bias, bias and third) + _gated(d, d.ffn)
        blocks.append(Block(tuple(dense), norms, d.layers - len(sparse)))
    return _shape(
        d, config, family, tuple(b for b in blocks if b.count), False, qk_norm=third, experts=experts,
        experts_per_token=top, expert_ffn=ffn, shared_ffn=shared,
    )  # fmt: skip


def _gemma(config: dict[str, Any], family: str) -> Shape:
    second, third = family == "gemma2", family.startswith("gemma3")
    d = _dims(config, kv=config.get("num_attention_heads"), head_dim=256)
    bias = bool(config.get("attention_bias", False))
    norms = (4 if second or third else 2) * d.hidden + (2 * d.head_dim if third else 0)
    block = Block(tuple(_attention(d, bias, bias) + _gated(d, d.ffn)), norms, d.layers)
    return _shape(
        d, config, family, (block,), True, qk_norm=third, post_norms=second or third,
        softcap=bool(second and config.get("final_logit_softcapping", 30.0)), window=_window(config),
    )  # fmt: skip


def _phi(config: dict[str, Any], family: str) -> Shape:
    d = _dims(config)
    linears = [
        *_attention(d, True, True),
        Linear("up_proj", d.hidden, d.ffn, True),
        Linear("down_proj", d.ffn, d.hidden, True),
    ]
    block = Block(tuple(linears), 2 * d.hidden, d.layers)
    head = d.vocab * d.hidden + d.vocab
    return _shape(
        d, config, family, (block,), False, gated=False, rms_norm=False, parallel=True, final=2 * d.hidden,
        head=d.vocab if config.get("tie_word_embeddings") else head,
    )  # fmt: skip


def _phi3(config: dict[str, Any], family: str) -> Shape:
    d = _dims(config)
    q, k = d.heads * d.head_dim, d.kv_heads * d.head_dim
    linears = (
        Linear("qkv_proj", d.hidden, q + 2 * k),
        Linear("o_proj", q, d.hidden),
        Linear("gate_up_proj", d.hidden, 2 * d.ffn),
        Linear("down_proj", d.ffn, d.hidden),
    )
    return _shape(d, config, family, (Block(linears, 2 * d.hidden, d.layers),), False, fused_qkv=True)


def _neox(config: dict[str, Any], family: str) -> Shape:
    d = _dims(config)
    q = d.heads * d.head_dim
    bias = bool(config.get("attention_bias", True))
    linears = (
        Linear("qkv_proj", d.hidden, 3 * q, bias),
        Linear("o_proj", q, d.hidden, bias),
        Linear("up_proj", d.hidden, d.ffn, True),
        Linear("down_proj", d.ffn, d.hidden, True),
    )
    return _shape(
        d, config, family, (Block(linears, 4 * d.hidden, d.layers),), False, fused_qkv=True, gated=False,
        rms_norm=False, parallel=bool(config.get("use_parallel_residual", True)), final=2 * d.hidden,
    )  # fmt: skip


def _falcon(config: dict[str, Any], family: str) -> Shape:
    kv = config.get("num_kv_heads") or config.get("num_key_value_heads")
    new = bool(config.get("new_decoder_architecture", bool(kv and kv > 1)))
    if not new:
        kv = 1 if config.get("multi_query", True) else None
    d = _dims({**config, "num_key_value_heads": kv})
    q, k = d.heads * d.head_dim, d.kv_heads * d.head_dim
    bias = bool(config.get("bias", False))
    linears = (
        Linear("qkv_proj", d.hidden, q + 2 * k, bias),
        Linear("o_proj", q, d.hidden, bias),
        Linear("up_proj", d.hidden, d.ffn, bias),
        Linear("down_proj", d.ffn, d.hidden, bias),
    )
    norms = (4 if new else 2) * d.hidden
    return _shape(
        d, config, family, (Block(linears, norms, d.layers),), True, fused_qkv=True, gated=False, rms_norm=False,
        parallel=True, final=2 * d.hidden,
    )  # fmt: skip


def _starcoder2(config: dict[str, Any], family: str) -> Shape:
    d = _dims(config, kv=2)
    bias = bool(config.get("use_bias", True))
    linears = [
        *_attention(d, bias, bias),
        Linear("up_proj", d.hidden, d.ffn, bias),
        Linear("down_proj", d.ffn, d.hidden, bias),
    ]
    block = Block(tuple(linears), 4 * d.hidden, d.layers)
    return _shape(d, config, family, (block,), True, gated=False, rms_norm=False, final=2 * d.hidden)


def _stablelm(config: dict[str, Any], family: str) -> Shape:
    d = _dims(config)
    linears = _attention(d, bool(config.get("use_qkv_bias", False)), False) + _gated(d, d.ffn)
    parallel = bool(config.get("use_parallel_residual", False))
    block = Block(tuple(linears), (2 if parallel else 4) * d.hidden, d.layers)
    return _shape(d, config, family, (block,), False, rms_norm=False, parallel=parallel, final=2 * d.hidden)


def _olmo2(config: dict[str, Any], family: str) -> Shape:
    d = _dims(config)
    bias = bool(config.get("attention_bias", False))
    norms = 2 * d.hidden + (d.heads + d.kv_heads) * d.head_dim  # behind attention and MLP, and on whole q and k
    block = Block(tuple(_attention(d, bias, bias) + _gated(d, d.ffn)), norms, d.layers)
    return _shape(d, config, family, (block,), False, qk_norm=True)


def _granitemoe(config: dict[str, Any], family: str) -> Shape:
    d = _dims(config)
    experts, top = positive(config, "num_local_experts", 8), positive(config, "num_experts_per_tok", 2)
    bias = bool(config.get("attention_bias", False))
    router = Linear("router", d.hidden, experts, fused=True)
    linears = (*_attention(d, bias, bias), router, *_gated(d, d.ffn, copies=experts))
    return _shape(
        d, config, family, (Block(linears, 2 * d.hidden, d.layers),), False, experts=experts, experts_per_token=top,
        expert_ffn=d.ffn,
    )  # fmt: skip


def _gpt2(config: dict[str, Any], family: str) -> Shape:
    d = _dims(config)
    linears = (
        Linear("c_attn", d.hidden, 3 * d.hidden, True),
        Linear("o_proj", d.hidden, d.hidden, True),
        Linear("up_proj", d.hidden, d.ffn, True),
        Linear("down_proj", d.ffn, d.hidden, True),
    )
    positions = (d.max_positions or 1024) * d.hidden
    return _shape(
        d, config, family, (Block(linears, 4 * d.hidden, d.layers),), True, fused_qkv=True, gated=False,
        rms_norm=False, final=2 * d.hidden, embedding=d.vocab * d.hidden + positions,
    )  # fmt: skip


def _gpt_oss(config: dict[str, Any], family: str) -> Shape:
    d = _dims(config, kv=8, head_dim=64)
    experts, top = positive(config, "num_local_experts", 128), positive(config, "num_experts_per_tok", 4)
    bias = bool(config.get("attention_bias", True))
    linears = [
        *_attention(d, bias, bias),
        Linear("router", d.hidden, experts, True, fused=True),
        *_gated(d, d.ffn, True, experts),
    ]
    block = Block(tuple(linears), 2 * d.hidden + d.heads, d.layers)
    return _shape(
        d, config, family, (block,), False, experts=experts, experts_per_token=top, expert_ffn=d.ffn
    )  # fmt: skip


def _deepseek(config: dict[str, Any], family: str) -> Shape:
    d = _dims({**config, "head_dim": None}, head_dim=1)
    rope, nope = positive(config, "qk_rope_head_dim", 64), positive(config, "qk_nope_head_dim", 128)
    value, latent = positive(config, "v_head_dim", 128), positive(config, "kv_lora_rank", 512)
    rank = config.get("q_lora_rank", 1536)
    bias = bool(config.get("attention_bias", False))
    q = d.heads * (rope + nope)
    attention = [Linear("q_proj", d.hidden, q)]
    norms = 2 * d.hidden + latent
    if rank:
        attention = [Linear("q_a_proj", d.hidden, rank, bias), Linear("q_b_proj", rank, q)]
        norms += rank
    attention += [
        Linear("kv_a_proj_with_mqa", d.hidden, latent + rope, bias),
        Linear("kv_b_proj", latent, d.heads * (nope + value)),
        Linear("o_proj", d.heads * value, d.hidden, bias),
    ]
    experts, top = positive(config, "n_routed_experts", 256), positive(config, "num_experts_per_tok", 8)
    ffn = positive(config, "moe_intermediate_size", 2048)
    shared = ffn * (config.get("n_shared_experts", 1) or 0)
    dense = min(d.layers, config.get("first_k_dense_replace", 3))
    moe = [*attention, Linear("router", d.hidden, experts, fused=True), *_gated(d, ffn, copies=experts)]
    if shared:
        moe += [Linear(f"shared_{lin.name}", lin.n_in, lin.n_out) for lin in _gated(d, shared)]
    blocks = [Block(tuple(moe), norms, d.layers - dense), Block(tuple(attention + _gated(d, d.ffn)), norms, dense)]
    return _with(
        _shape(
            d, config, family, tuple(b for b in blocks if b.count), False, experts=experts, experts_per_token=top,
            expert_ffn=ffn, shared_ffn=shared, v_head_dim=value,
            notes=(_("the multi-token prediction layer is not counted"),),
        ),
        head_dim=rope + nope, kv_heads=d.heads,
    )  # fmt: skip


BUILDERS: dict[str, Callable[[dict[str, Any], str], Shape]] = {
    "llama": _llama,
    "granite": _llama,
    "smollm3": _llama,
    "mistral": _mistral,
    "ministral": _mistral,
    "mixtral": _mixtral,
    "qwen2": _qwen2,
    "qwen2_moe": _qwen_moe,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen_moe,
    "gemma": _gemma,
    "gemma2": _gemma,
    "gemma3": _gemma,
    "gemma3_text": _gemma,
    "phi": _phi,
    "phi3": _phi3,
    "gpt_neox": _neox,
    "falcon": _falcon,
    "gpt2": _gpt2,
    "granitemoe": _granitemoe,
    "olmo2": _olmo2,
    "stablelm": _stablelm,
    "starcoder2": _starcoder2,
    "gpt_oss": _gpt_oss,
    "deepseek_v3": _deepseek,
}
