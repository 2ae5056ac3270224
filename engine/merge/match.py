"""Where a layer of the adapter lies in the files of the base.

The adapter names modules of the model in memory; files may use an older spelling of a prefix, leave the prefix out,
or hold fused experts one by one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from engine.merge.base import Base
from engine.merge.report import Report
from engine.text import _

# (in memory, in the file): prefixes that loading adds, takes away or exchanges.
_PREFIXES = (
    ("", ""),
    ("transformer.", ""),
    ("model.", ""),
    ("gpt_neox.", ""),
    ("", "model."),
    ("", "transformer."),
    ("model.language_model.", "language_model.model."),
    ("model.language_model.", "model."),
    ("language_model.model.", "model.language_model."),
    ("lm_head", "language_model.lm_head"),
)
_INSIDE = (("", ""), (".mlp.", ".block_sparse_moe."), (".block_sparse_moe.", ".mlp."))
# A fused parameter: what its rows are when each expert has tensors of its own.
_EXPERT_PARTS = {"gate_up_proj": (("gate_proj", "up_proj"), ("w1", "w3")), "down_proj": (("down_proj",), ("w2",))}
# Layers of these models that are Conv1D: their weights lie transposed.
_CONV1D = {
    "gpt2": ("c_attn", "q_attn", "c_proj", "c_fc"),
    "decision_transformer": ("c_attn", "q_attn", "c_proj", "c_fc"),
    "imagegpt": ("c_attn", "q_attn", "c_proj", "c_fc"),
    "openai-gpt": ("c_attn", "c_proj", "c_fc"),
}
# Models whose fused experts are (experts, in, out).
_TRANSPOSED_EXPERTS = ("gpt_oss", "aria", "openai_privacy_filter")


@dataclass(frozen=True)
class Slice:
    """A tensor that holds one expert's part of a fused parameter: rows `low` to `high` of expert `expert`."""

    tensor: str
    expert: int
    low: int
    high: int


def spellings(name: str) -> Iterator[str]:
    """How a parameter may be called in the files, likeliest first."""
    for new, old in _PREFIXES:
        if name.startswith(new):
            spelled = old + name[len(new) :]
            for here, there in _INSIDE:
                if here in spelled:
                    yield spelled.replace(here, there, 1) if here else spelled


def find(base: Base, name: str) -> str | None:
    """The tensor of the base that is the parameter `name`."""
    return next((spelled for spelled in spellings(name) if spelled in base.tensors), None)


def experts(base: Base, parameter: str) -> list[Slice] | None:
    """The tensors of the base that make up a fused parameter, or None."""
    module, _dot, last = parameter.rpartition(".")
    for parts in _EXPERT_PARTS.get(last, ()):
        for spelled in spellings(module + "."):
            if f"{spelled}0.{parts[0]}.weight" not in base.tensors:
                continue
            found: list[Slice] = []
            expert = 0
            while f"{spelled}{expert}.{parts[0]}.weight" in base.tensors:
                low = 0
                for part in parts:
                    name = f"{spelled}{expert}.{part}.weight"
                    if name not in base.tensors:
                        return None
                    high = low + base.tensors[name].shape[0]
                    found.append(Slice(name, expert, low, high))
                    low = high
                expert += 1
            return found
    return None


def is_conv1d(base: Base, module: str, flag: bool, fits: bool, fits_transposed: bool) -> bool:
    """Whether a layer's weight is (in, out). PEFT looks at the layer's class and not at its own flag.

    Args:
        base: the model.
        module: the layer.
        flag: `fan_in_fan_out` of the adapter, which decides for models that are not known.
        fits: the weight has the shape (out, in).
        fits_transposed: the weight has the shape (in, out).
    """
    if base.model_type in _CONV1D:
        return module.rpartition(".")[2] in _CONV1D[base.model_type]
    return flag and fits_transposed and not fits


def experts_are_transposed(base: Base) -> bool:
    """Whether fused experts are (experts, in, out)."""
    return base.model_type in _TRANSPOSED_EXPERTS


def unknown(base: Base, key: str, name: str, report: Report) -> None:
    """Report a key of the adapter that no tensor of the base answers to."""
    detail = ""
    if not any(finding.kind == "adapter_key_not_in_base" for finding in report.findings):
        known = _deepest(base, name)
        if known:
            detail = _("the base has {known} and nothing under it for {key}").format(known=known, key=key)
        else:
            detail = _("the base has no tensor for {key}: another architecture?").format(key=key)
    report.add("adapter_key_not_in_base", "error", detail, key)


def _deepest(base: Base, name: str) -> str:
    """The part of a name that the base does know, for people who look for what is wrong."""
    parts = name.split(".")
    for count in range(len(parts) - 1, 0, -1):
        start = ".".join(parts[:count])
        if any(re.match(rf"{re.escape(spelled)}\.", known) for spelled in spellings(start) for known in base.tensors):
            return start
    return ""
