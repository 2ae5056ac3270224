"""The shape of a model: its matrices and their sizes, read from the fields of a Hugging Face config.json.

Counts are exact: `Shape.parameters` equals what transformers builds on the meta device (tests hold it to that).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from engine.errors import UsageError
from engine.text import _

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")
# Families whose fused experts PEFT adapts as parameters when they are targeted by the names of their matrices.
EXPERT_ADAPTERS = frozenset(("mixtral", "qwen3_moe", "deepseek_v3"))


@dataclass(frozen=True)
class Linear:
    """One matrix of a block: `name` as PEFT's target_modules sees it, `copies` of it (experts).

    `fused`: the copies are one three-dimensional parameter (transformers 5's experts), which bitsandbytes leaves alone,
    and PEFT too in most families.
    """

    name: str
    n_in: int
    n_out: int
    bias: bool = False
    copies: int = 1
    fused: bool = False

    @property
    def weights(self) -> int:
        """Elements of the matrix, all copies."""
        return self.n_in * self.n_out * self.copies

    @property
    def parameters(self) -> int:
        """Elements with the bias."""
        return self.weights + (self.n_out * self.copies if self.bias else 0)


@dataclass(frozen=True, eq=False)  # compared by identity: a hash of all matrices would cost more than a plan
class Block:
    """One kind of decoder layer and how many of it the model has."""

    linears: tuple[Linear, ...]
    other: int  # norms, sinks, router's correction bias
    count: int

    @functools.cached_property
    def parameters(self) -> int:
        """Parameters of one such layer."""
        return sum(linear.parameters for linear in self.linears) + self.other

    @functools.cached_property
    def by_name(self) -> dict[str, Linear]:
        """The matrices by name."""
        return {linear.name: linear for linear in self.linears}


@dataclass(frozen=True, eq=False)
class Shape:
    """What a plan has to know of a model."""

    family: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    ffn: int
    vocab: int
    tied: bool
    blocks: tuple[Block, ...]
    embedding: int
    head: int  # parameters of an untied output head (0 when tied)
    final: int  # final norm
    gated: bool = True
    rms_norm: bool = True
    qk_norm: bool = False
    post_norms: bool = False  # Gemma 2 and 3: a norm behind attention and MLP too
    parallel: bool = False  # attention and MLP from the same input (Phi, GPT-NeoX)
    fused_qkv: bool = False
    experts: int = 0
    experts_per_token: int = 0
    expert_ffn: int = 0
    shared_ffn: int = 0
    softcap: bool = False
    max_positions: int | None = None
    window: int | None = None
    counted: int | None = None  # counted on the meta device: overrides the sum
    name: str = ""
    notes: tuple[str, ...] = field(default=(), compare=False)

    @property
    def q(self) -> int:
        """Width of the queries."""
        return self.heads * self.head_dim

    @property
    def k(self) -> int:
        """Width of the keys."""
        return self.kv_heads * self.head_dim

    @functools.cached_property
    def parameters(self) -> int:
        """All parameters, each tied one once."""
        if self.counted is not None:
            return self.counted
        return self.embedding + self.head + self.final + sum(b.parameters * b.count for b in self.blocks)

    @functools.cached_property
    def active_parameters(self) -> int:
        """Parameters that multiply one token: without the embedding table, with the experts it is routed to."""
        total = self.vocab * self.hidden
        for block in self.blocks:
            for linear in block.linears:
                share = self.experts_per_token if linear.copies > 1 else linear.copies
                total += linear.n_in * linear.n_out * share * block.count
        return total

    @functools.cached_property
    def linear_weights(self) -> int:
        """Elements of all matrices inside the layers."""
        return sum(linear.weights * b.count for b in self.blocks for linear in b.linears)

    @property
    def widest(self) -> Block:
        """The kind of layer with the most parameters."""
        return max(self.blocks, key=lambda block: block.parameters)

    def module_names(self) -> list[str]:
        """Names that target_modules may say, without the head."""
        return list(dict.fromkeys(lin.name for b in self.blocks for lin in b.linears if not lin.fused))


def target_names(shape: Shape, targets: Iterable[str] | str | None) -> frozenset[str]:
    """The matrices that an adapter goes on.

    Raises:
        UsageError: a name that the model does not have.
    """
    names = shape.module_names()
    converts = shape.family in EXPERT_ADAPTERS
    if targets is None or list(targets) == ["all-linear"] or targets == "all-linear":
        return frozenset(names) - {"shared_expert_gate"} | (frozenset((*MLP, "router")) if converts else frozenset())
    wanted = [targets] if isinstance(targets, str) else list(targets)
    synonyms = other_names(shape)
    found: set[str] = set()
    for name in wanted:
        short = str(name).rsplit(".", 1)[-1]
        if short in names or short in ("embed_tokens", "lm_head"):
            found.add(short)
        elif short in synonyms:
            found.add(synonyms[short])
        elif short in MLP and converts and shape.family != "mixtral":  # named w1, w2, w3 before they were fused
            found.add(short)
        elif short not in MLP or not shape.experts:  # fused experts: named by habit, silently left alone by PEFT
            raise UsageError(
                _("the model has no module '{name}'").format(name=str(name)[:60]),
                where="lora_target_modules",
                fix=_("its modules are {names}").format(names=", ".join(names)),
                kind="bad_target",
            )
    return frozenset(found | {f"shared_{name}" for name in found if f"shared_{name}" in names})


def other_names(shape: Shape) -> dict[str, str]:
    """Other families' names for the same matrix: configurations are copied between models."""
    table = {
        "dense": "o_proj",
        "fc1": "up_proj",
        "fc2": "down_proj",
        "dense_h_to_4h": "up_proj",
        "dense_4h_to_h": "down_proj",
        "query_key_value": "qkv_proj",
        "w1": "gate_proj",
        "w3": "up_proj",
        "w2": "down_proj",
    }
    names = set(shape.module_names())
    if shape.fused_qkv:
        table |= {"q_proj": "qkv_proj", "k_proj": "qkv_proj", "v_proj": "qkv_proj"}
    if "gate_up_proj" in names:
        table |= {"gate_proj": "gate_up_proj", "up_proj": "gate_up_proj"}
    return {other: name for other, name in table.items() if name in names}


def positive(config: dict[str, Any], key: str, default: int | None = None) -> int:
    """A positive whole number of a config.

    Raises:
        UsageError: missing without a default, or not a positive whole number.
    """
    value = config.get(key)
    if value is None:
        value = default
    if value is None:
        raise UsageError(
            _("the model's config has no '{key}'").format(key=key), where=f"config.{key}", kind="bad_config"
        )
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 10**9:
        raise UsageError(
            _("'{key}' must be a positive whole number, not {value}").format(key=key, value=str(value)[:40]),
            where=f"config.{key}",
            kind="bad_config",
        )
    return value


def from_config(config: dict[str, Any], name: str = "") -> Shape:
    """The shape that a config.json describes.

    Args:
        config: its fields; of a multimodal model the text part is taken.
        name: how the model is called, for messages.

    Raises:
        UsageError: fields that make no sense, or (kind `unknown_architecture`) a family that is not known here.
    """
    from engine.plan import families

    if not isinstance(config, dict):
        raise UsageError(_("the model's config is not an object"), where="config", kind="bad_config")
    notes: tuple[str, ...] = ()
    if isinstance(config.get("text_config"), dict):
        inner = dict(config["text_config"])
        inner.setdefault("tie_word_embeddings", config.get("tie_word_embeddings", True))
        notes = (_("only the text part of the model is counted"),)
        config = inner
    return families.build(config, name, notes)
