"""What optimizers keep and need: bytes of state per trained parameter, and of the step's temporary copies."""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import UsageError
from engine.text import _

FP32 = 4
BLOCK4 = 128  # the same in torchao's 4-bit states
BLOCK8 = 256  # values that share one fp32 maximum in the 8-bit states of bitsandbytes and torchao


@dataclass(frozen=True)
class Rule:
    """An optimizer's appetite.

    `states`: tensors of the parameter's own type; `bytes8`, `bytes4`: tensors of 8-bit and 4-bit state; `tables`: what
    embedding tables have beside those; `foreach`: the step makes one more copy of what it updates; `largest`: it makes
    fp32 copies of one parameter at a time; `paged`: the state lives in managed memory, outside PyTorch's allocator.
    """

    states: int = 0
    bytes8: int = 0
    foreach: bool = False
    largest: int = 0
    paged: bool = False
    fp32_states: bool = False
    bytes4: int = 0
    tables: int = 0

    def state_bytes(self, width: int) -> float:
        """Bytes of state of one parameter that PyTorch's allocator holds."""
        if self.paged:
            return 0.0
        return self.full_bytes(width)

    def full_bytes(self, width: int) -> float:
        """Bytes of state of one parameter, wherever it lives."""
        return (
            self.states * (FP32 if self.fp32_states else width)
            + self.bytes8 * (1 + FP32 / BLOCK8)
            + (self.bytes4 * (0.5 + FP32 / BLOCK4))
        )

    def step_bytes(self, trained: float, width: int, largest: float) -> float:
        """Bytes that the step needs for a moment."""
        return (trained * width if self.foreach else 0.0) + self.largest * FP32 * min(largest, trained)


RULES = {
    "adamw_torch": Rule(states=2, foreach=True),
    "adamw_torch_fused": Rule(states=2),
    "adamw_hf": Rule(states=2, largest=1),
    "adamw_bnb_8bit": Rule(bytes8=2),
    "paged_adamw_32bit": Rule(states=2, fp32_states=True, paged=True),
    "paged_adamw_8bit": Rule(bytes8=2, paged=True),
    "adamw_torch_8bit": Rule(bytes8=2, largest=2),
    "adafactor": Rule(largest=3),
    "sgd": Rule(foreach=True),
    "rmsprop": Rule(states=1, foreach=True),
    "lion_32bit": Rule(states=1),
    "lion_8bit": Rule(bytes8=1),
    "paged_lion_32bit": Rule(states=1, paged=True, fp32_states=True),
    "paged_lion_8bit": Rule(bytes8=1, paged=True),
    "muon": Rule(states=1, largest=2, tables=1),  # AdamW for what is no matrix
    "adamw_torch_4bit": Rule(bytes4=2, largest=2),
    "adagrad": Rule(states=1, foreach=True),
    "ademamix": Rule(states=3, fp32_states=True),
    "ademamix_8bit": Rule(bytes8=3),
    "paged_ademamix_32bit": Rule(states=3, fp32_states=True, paged=True),
    "paged_ademamix_8bit": Rule(bytes8=3, paged=True),
    "rmsprop_bnb": Rule(states=1, fp32_states=True),
    "rmsprop_bnb_8bit": Rule(bytes8=1),
    "schedule_free_adamw": Rule(states=2, foreach=True),
    "schedule_free_radam": Rule(states=2, foreach=True),
    "schedule_free_sgd": Rule(states=1, foreach=True),
    "grokadamw": Rule(states=3),
    "stable_adamw": Rule(states=2, foreach=True),
}
SYNONYMS = {
    "adamw": "adamw_torch",
    "adamw (torch)": "adamw_torch",
    "torch.optim.adamw": "adamw_torch",
    "adam": "adamw_torch",
    "adamw_fused": "adamw_torch_fused",
    "adamw (fused)": "adamw_torch_fused",
    "fused_adamw": "adamw_torch_fused",
    "adamw_8bit": "adamw_bnb_8bit",
    "adamw8bit": "adamw_bnb_8bit",
    "bnb.optim.adamw8bit": "adamw_bnb_8bit",
    "pagedadamw8bit": "paged_adamw_8bit",
    "pagedadamw": "paged_adamw_32bit",
    "paged_adamw": "paged_adamw_32bit",
    "pagedadamw32bit": "paged_adamw_32bit",
    "adamw_anyprecision": "adamw_torch",
    "lion": "lion_32bit",
    "rmsprop_bnb_32bit": "rmsprop_bnb",
    "adamw_apex_fused": "adamw_torch_fused",
}


def rule(name: str) -> Rule:
    """The rule of an optimizer, by the trainer's name for it.

    Raises:
        UsageError: unknown; a guess could be wrong by half of the memory.
    """
    key = name.strip().lower()
    found = RULES.get(SYNONYMS.get(key, key))
    if found is None:
        raise UsageError(
            _("the planner does not know the optimizer '{name}'").format(name=name[:60]),
            where="optim",
            fix=_("known are {names}").format(names=", ".join(RULES)),
            kind="bad_value",
        )
    return found
