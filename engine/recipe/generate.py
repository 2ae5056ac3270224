"""Writes keys.json: every key of TRL's and PEFT's configuration classes with type, default, choices and meaning.

Run it in the environment that holds torch, after the pinned versions change:

    python -m engine.recipe.generate

The libraries are imported by name inside `table`, so the light side can import this module (it never does);
a test compares the committed table with what this makes.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import importlib.metadata
import re
import sys
import types
import typing
from pathlib import Path
from typing import Any

from engine.files import write_json

TABLE = Path(__file__).with_name("keys.json")
CLASSES = (("trl", "SFTConfig"), ("trl", "DPOConfig"), ("trl", "ModelConfig"), ("peft", "LoraConfig"))
PACKAGES = ("trl", "transformers", "peft")
ATOMS: dict[Any, str] = {bool: "bool", int: "int", float: "float", str: "str", dict: "dict", type(None): "null"}
# Choices that the classes state only in their prose.
PROSE_CHOICES = re.compile(r"Possible values are: ([^.]*)\.")
QUOTED = re.compile(r"`'?([A-Za-z0-9_]+)'?`")


def table() -> dict[str, Any]:
    """The table as it stands in keys.json: `versions` and `keys`."""
    keys: dict[str, dict[str, Any]] = {}
    for module, name in CLASSES:
        cls = getattr(importlib.import_module(module), name)
        for field, entry in _fields(cls).items():
            if field in keys:
                _merge(keys[field], name, entry)
            else:
                keys[field] = {"classes": [name], **entry}
    versions = {package: importlib.metadata.version(package) for package in PACKAGES}
    return {"format": 1, "versions": versions, "keys": dict(sorted(keys.items()))}


def _merge(known: dict[str, Any], name: str, entry: dict[str, Any]) -> None:
    """Add what class `name` says of a key that an earlier class has: only what differs is kept."""
    known["classes"].append(name)
    differs = {k: v for k, v in entry.items() if k != "help" and known.get(k) != v}
    if differs:
        known.setdefault("differs", {})[name] = differs


def _fields(cls: type) -> dict[str, dict[str, Any]]:
    hints = typing.get_type_hints(cls)
    result = {}
    for field in dataclasses.fields(cls):
        if not field.init or field.name.startswith("_"):
            continue
        types_, choices = _describe(hints[field.name])
        text = field.metadata.get("help") or ""
        if field.metadata.get("choices"):
            choices = [getattr(choice, "value", choice) for choice in field.metadata["choices"]]
        elif found := PROSE_CHOICES.search(text):
            choices = QUOTED.findall(found.group(1))
        default = _default(field)
        if default is None and "null" not in types_:
            types_ = sorted([*types_, "null"])
        entry: dict[str, Any] = {"types": types_, "default": default, "help": _sentence(text)}
        if choices:
            entry["choices"] = choices
        result[field.name] = entry
    return result


def _describe(hint: Any) -> tuple[list[str], list[Any]]:
    """The accepted kinds of value, in a fixed order, and the listed choices."""
    found: dict[str, None] = {}
    choices: list[Any] = []

    def walk(part: Any) -> None:
        origin = typing.get_origin(part)
        if origin in (typing.Union, types.UnionType):
            for inner in typing.get_args(part):
                walk(inner)
        elif origin is typing.Literal:
            for choice in typing.get_args(part):
                found[ATOMS[type(choice)]] = None
                if isinstance(choice, str):
                    choices.append(choice)
        elif origin is list:
            (inner,) = typing.get_args(part)
            found[f"list[{ATOMS.get(inner, 'str' if _is_enum(inner) else 'list')}]"] = None
        elif origin is dict:
            found["dict"] = None
        elif _is_enum(part):
            found["str"] = None
            choices.extend(member.value for member in part)
        elif part in ATOMS:
            found[ATOMS[part]] = None
        elif isinstance(part, type):  # a configuration class of its own: given as a mapping
            found["dict"] = None
        else:
            raise TypeError(f"the recipe's table has no name for {part!r}")

    walk(hint)
    return sorted(found), choices


def _is_enum(part: Any) -> bool:
    return isinstance(part, type) and issubclass(part, enum.Enum)


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        value = field.default
    elif field.default_factory is not dataclasses.MISSING:
        value = field.default_factory()
    else:
        return None
    if isinstance(value, enum.Enum):
        return value.value
    return None if dataclasses.is_dataclass(value) else value


def _sentence(text: str) -> str:
    """The first sentence of a help text, on one line, at most 160 characters."""
    line = re.sub(r"\s+", " ", text).replace("%%", "%").strip()
    line = re.sub(r"\[`?([^]`]+)`?\](\([^)]*\))?", r"\1", line)
    line = re.sub(r"</?a\b[^>]*>", "", line)  # links have no place in a terminal
    first = re.split(r"(?<=[a-z0-9)`'\"])\. ", line, maxsplit=1)[0]
    return first if len(first) <= 160 else first[:159].rstrip() + "…"


def main() -> int:
    """Write keys.json beside this file."""
    write_json(TABLE, table())
    return 0


if __name__ == "__main__":
    sys.exit(main())
