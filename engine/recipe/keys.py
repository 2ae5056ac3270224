"""Every key that a recipe may have: the generated table, the recipe's own keys and their synonyms."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import orjson

from engine.recipe.own import FORMER, OWN, SYNONYMS

CONFIG_OF_TASK = {"sft": "SFTConfig", "pretrain": "SFTConfig", "dpo": "DPOConfig"}
SHARED = ("ModelConfig", "LoraConfig")
# Where a recipe may say more than the class: a regular expression or `all-linear` for the targets, null for "as the
# template allows", a list of loss types by its only member.
WIDER = {
    "assistant_only_loss": ("null",),
    "lora_target_modules": ("str",),
    "fsdp": ("bool", "list[str]"),
    "debug": ("null",),
}
# Choices that the libraries take and their annotations leave out.
MORE_CHOICES = {
    "optim": ("muon",),  # torch's own, which engine.train.muon builds
    "init_lora_weights": ("lora_ga",),
    "include_num_input_tokens_seen": ("no", "all", "non_padding"),
    "packing_strategy": ("bfd-requeue",),
    "pad_to_multiple_of": ("auto",),
    "bnb_4bit_quant_storage": ("uint8", "bfloat16", "float16", "float32"),
}


@dataclass(frozen=True)
class Key:
    """One key: its name, the kinds of value it takes, its default in the library, its choices and its meaning."""

    name: str
    types: tuple[str, ...]
    default: Any
    help: str
    choices: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()

    @property
    def is_lora(self) -> bool:
        """Whether the key only says something about adapters."""
        return "LoraConfig" in self.classes or self.name.startswith("lora_")

    @property
    def numeric(self) -> bool:
        """Whether a number can be given."""
        return any("int" in kind or "float" in kind for kind in self.types)


@cache
def _generated() -> dict[str, Any]:
    document: dict[str, Any] = orjson.loads(Path(__file__).with_name("keys.json").read_bytes())
    return document


def versions() -> dict[str, str]:
    """The library versions that the table was made from."""
    found: dict[str, str] = _generated()["versions"]
    return found


@cache
def table(task: str = "sft") -> dict[str, Key]:
    """The keys of a task by name: its trainer's, the model's, the adapter's and our own."""
    config = CONFIG_OF_TASK[task]
    found = {}
    for name, entry in _generated()["keys"].items():
        if name in SYNONYMS or not (config in entry["classes"] or any(c in entry["classes"] for c in SHARED)):
            continue
        found[name] = _key(name, {**entry, **entry.get("differs", {}).get(config, {})})
    for name, entry in OWN.items():
        found.setdefault(name, _key(name, {"classes": (), **entry}))
    return dict(sorted(found.items()))


def _key(name: str, entry: dict[str, Any]) -> Key:
    types = tuple(sorted({*entry["types"], *WIDER.get(name, ())}))
    choices = (*entry.get("choices", ()), *MORE_CHOICES.get(name, ()))
    return Key(name, types, entry["default"], entry["help"], choices, tuple(entry["classes"]))


@cache
def foreign(task: str) -> dict[str, Key]:
    """Keys that only another task's trainer has."""
    mine = table(task)
    return {name: key for other in CONFIG_OF_TASK for name, key in table(other).items() if name not in mine}


@cache
def _prefixed() -> dict[str, str]:
    """`lora_<field>` for the adapter's fields whose plain name is the key here."""
    known = table()
    names = [name for name, key in known.items() if key.classes == ("LoraConfig",)]
    return {f"lora_{name}": name for name in names if f"lora_{name}" not in known}


def canonical(name: str) -> str:
    """The name that a key is kept under: synonyms resolved, others unchanged."""
    return SYNONYMS.get(name) or _prefixed().get(name, name)


def suggest(name: str) -> str | None:
    """The key that was probably meant by an unknown one."""
    folded = name.strip().lower().replace("-", "_").removeprefix("--")
    if folded in FORMER:
        return FORMER[folded]
    names = [*table("sft"), *(key for key in table("dpo") if key not in table("sft")), *SYNONYMS]
    if canonical(folded) in names:
        return folded
    squeezed = {known.replace("_", ""): known for known in names}
    if folded.replace("_", "") in squeezed:
        return squeezed[folded.replace("_", "")]
    close = difflib.get_close_matches(folded[:80], names, n=1, cutoff=0.6)
    return close[0] if close else None
