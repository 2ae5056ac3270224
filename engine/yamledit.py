"""Changing single values of a flat YAML file in its text: comments, order and spacing stay as the user wrote them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def edited(text: str, changes: Mapping[str, Any], canonical: Callable[[str], str] = str) -> str:
    """The text with some values replaced where they stand, or added at the end.

    Args:
        text: a YAML mapping, or nothing yet.
        changes: values by key.
        canonical: turns a key as it is written into the name that `changes` has it under.
    """
    from engine import yamldoc

    root, _findings = yamldoc.parse(text)
    stands = {canonical(key.text): node for key, node in root.items} if isinstance(root, yamldoc.Mapping) else {}
    replaced = [(stands[name].start, stands[name].end, value) for name, value in changes.items() if name in stands]
    for start, end, value in sorted(replaced, key=lambda item: item[0], reverse=True):
        written = scalar(value)
        if start == end:  # `key:` with nothing behind it
            written = " " + written
        text = text[:start] + written + text[end:]
    for name, value in changes.items():
        if name not in stands:
            text += ("" if not text or text.endswith("\n") else "\n") + f"{name}: {scalar(value)}\n"
    return text


def scalar(value: Any) -> str:
    """A value as YAML on one line."""
    import yaml

    return yaml.safe_dump(value, width=float("inf"), default_flow_style=True).removesuffix("...\n").strip()
