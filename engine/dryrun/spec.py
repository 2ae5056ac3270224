"""What the child is asked: plain values, read from JSON. Loads nothing heavy."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Spec:
    """One training step. Names follow engine.plan.request where they mean the same."""

    config: dict[str, Any]
    method: str
    rows: int
    length: int
    target: str = "cuda"  # cuda: as a GPU would run it; cpu: exactly what this machine runs
    autocast: bool = True  # to bf16; the engine trains so on every card that can
    bf16_master: str = "fp32"
    lora_r: int = 16
    lora_dropout: float = 0.05
    lora_targets: tuple[str, ...] = ()
    lora_modules_to_save: tuple[str, ...] = ()
    lora_dtype: str = "fp32"
    use_dora: bool = False
    kbit_prepare: bool = False
    quant: str = "nf4-dq"
    optim: str = "adamw_torch"
    accumulation: int = 1
    checkpointing: bool = True
    attention: str = "sdpa"  # or flash, eager
    packed_mask: bool = False  # packed rows whose borders sdpa is told by a mask
    loss: str = "chunked"
    sharding: str = "none"
    ranks: int = 1
    reshard: bool = True
    untie: bool = False
    limit: int | None = None  # bytes: within a tenth of it all layers are run

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Spec:
        """The spec that `to_json` wrote."""
        known = {field.name for field in dataclasses.fields(cls)}
        fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items() if k in known}
        return cls(**fields)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return dataclasses.asdict(self)

    @property
    def layers(self) -> int:
        """Decoder layers of the whole model."""
        return int(self.config[layers_key(self.config)])

    def at_depth(self, layers: int) -> Spec:
        """The same step of a model with fewer layers."""
        config = dict(self.config) | {layers_key(self.config): layers}
        for name in ("layer_types", "mlp_layer_types", "no_rope_layers"):
            if isinstance(config.get(name), list):
                config[name] = config[name][:layers]
        return dataclasses.replace(self, config=config)


def layers_key(config: dict[str, Any]) -> str:
    """The field that says how many layers there are."""
    return next((key for key in ("num_hidden_layers", "n_layer", "n_layers") if key in config), "num_hidden_layers")
