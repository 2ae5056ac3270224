"""Turns what stands in the file into the value that a key wants, or says why it cannot be.

Strict where a mistake would stay silent: a quoted "false" is not a boolean, a quoted "2e-4" is not a number, and a
word is never guessed into a choice. Lenient where the meaning is plain: yes/no/on/off, 2e-4, 8.0 for a whole number,
`q_proj, v_proj` or a single name for a list.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Callable
from typing import Any

from engine.recipe.keys import Key
from engine.recipe.ranges import RANGES, STEPS, VALUE_RANGES, interval
from engine.text import _
from engine.yamldoc import BOOLS, NULLS, Mapping, Node, Scalar, Sequence, plain

NAMES = re.compile(r"[\w./-]+(\s*,\s*[\w./-]+)*\Z")
WORDS_FOR_LISTS = ("all-linear", "none", "all")  # single words that are not the name of one element
PATTERNED_CHOICES = {"init_lora_weights": re.compile(r"pissa_niter_\d{1,4}\Z")}


class Unusable(Exception):
    """A value that its key cannot take; `kind` is the finding's kind, `inner` the name inside of a mapping."""

    def __init__(self, kind: str, detail: str, fix: str, inner: str | None = None) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail
        self.fix = fix
        self.inner = inner


def convert(key: Key, node: Node) -> Any:
    """The value of `node` for `key`.

    Raises:
        Unusable: it has the wrong type, or is out of range or not among the choices.
    """
    if isinstance(node, Mapping):
        value = _mapping(key, node)
    elif isinstance(node, Sequence):
        value = _sequence(key, node)
    else:
        assert isinstance(node, Scalar)
        value = _scalar(key, node)
    _check(key, value)
    return value


def shown(value: Any) -> str:
    """A value as it may be echoed: short, on one line."""
    text = " ".join(str(value).split())
    return text if len(text) <= 60 else text[:59] + "…"


def _mapping(key: Key, node: Mapping) -> Any:
    if "dict" not in key.types:
        raise _wrong(key, _("a mapping"))
    return plain(node)


def _sequence(key: Key, node: Sequence) -> Any:
    kinds = [kind[5:-1] for kind in key.types if kind.startswith("list[")]
    if not kinds:
        raise _wrong(key, _("a list"))
    kind = kinds[0]
    result = []
    for item in node.items:
        if kind == "list":
            result.append(plain(item))
        elif not isinstance(item, Scalar):
            raise _wrong(key, _("a list inside the list") if isinstance(item, Sequence) else _("a mapping in the list"))
        else:
            element = Key(key.name, (kind,), None, "", key.choices)
            result.append(_scalar(element, item))
    return result


def _scalar(key: Key, node: Scalar) -> Any:
    """Try the kinds in an order in which the narrower one comes first."""
    for kind, read in _READERS.items():
        if kind in key.types:
            found, value = read(key, node)
            if found:
                return value
    kinds = [kind for kind in key.types if kind.startswith("list[")]
    if kinds:
        return _listed(key, node, kinds[0][5:-1])
    raise _wrong(key, _named(node))


def _null(key: Key, node: Scalar) -> tuple[bool, Any]:
    if node.plain and (node.text in NULLS or (node.text.lower() == "none" and "str" not in key.types)):
        return True, None
    return False, None


def _bool(_key: Key, node: Scalar) -> tuple[bool, Any]:
    word = node.text.lower()
    return (node.plain and word in BOOLS), BOOLS.get(word)


def _int(_key: Key, node: Scalar) -> tuple[bool, Any]:
    number = node.number()
    if isinstance(number, float) and number.is_integer() and abs(number) < 2**53:
        return True, int(number)
    if isinstance(number, float) and not math.isfinite(number):
        return True, number  # a range says no to it, in better words
    return isinstance(number, int), number


def _float(_key: Key, node: Scalar) -> tuple[bool, Any]:
    number = node.number()
    return number is not None, number


def _dict(_key: Key, node: Scalar) -> tuple[bool, Any]:
    if not node.text.lstrip().startswith("{"):
        return False, None
    try:  # the form that a command line can carry
        value = json.loads(node.text)
    except (ValueError, RecursionError):
        return False, None
    return isinstance(value, dict), value


def _str(key: Key, node: Scalar) -> tuple[bool, Any]:
    text = node.text
    if node.plain and text in NULLS:
        return False, None
    listed = any(kind.startswith("list[") for kind in key.types)
    if node.plain and (text.lower() == "true" or ((listed or key.choices) and node.number() is not None)):
        return False, None  # a slip, not a word
    if text.lower() == "none" and key.default == "none":
        return True, "none"
    if listed and NAMES.match(text):
        names = [part.strip() for part in text.split(",")]
        if len(names) > 1:
            return True, names
        if key.name == "lora_target_modules" and text not in WORDS_FOR_LISTS:
            return True, names  # PEFT takes a lone word for a regular expression over full names: it matches nothing
    if node.plain and text.lower() in ("false", "off", "no") and "no" in key.choices:
        return True, "no"  # what other tools make of `no` when they write the file
    return True, text


_READERS: dict[str, Callable[[Key, Scalar], tuple[bool, Any]]] = {
    "null": _null,
    "bool": _bool,
    "int": _int,
    "float": _float,
    "dict": _dict,
    "str": _str,
}


def _listed(key: Key, node: Scalar, kind: str) -> list[Any]:
    """A list given as one value or as `a, b`."""
    if kind == "str" and node.plain and not isinstance(node.value(), str):
        raise _wrong(key, _named(node))
    if not NAMES.match(node.text):
        return [_scalar(Key(key.name, (kind,), None, "", key.choices), node)]
    parts = [part.strip() for part in node.text.split(",")]
    return [_scalar(Key(key.name, (kind,), None, "", key.choices), Scalar(node.line, text=part)) for part in parts]


def _check(key: Key, value: Any) -> None:
    """Range and choices."""
    if isinstance(value, bool) or value is None:
        return
    if not _storable(value):
        detail = _("{key} holds a number that no file format keeps").format(key=key.name)
        raise Unusable("out_of_range", detail, _("give a finite number of at most 18 digits"))
    if isinstance(value, list):
        for item in value:
            if not isinstance(item, list):
                _check(key, item)
        return
    if isinstance(value, dict):
        _check_values(key, value)
        return
    if isinstance(value, str):
        if "\0" in value:
            raise Unusable("wrong_type", _("{key} has a zero byte in it").format(key=key.name), _("remove it"))
        _check_choice(key, value)
        return
    limits = interval(RANGES.get(key.name, "(-inf, inf)"))
    if value not in limits:
        detail = _("{key} is {value}; it must be {range}").format(
            key=key.name, value=shown(value), range=limits.describe()
        )
        raise Unusable("out_of_range", detail, _("give a value in that range"))
    if key.name in STEPS and value > 1 and value != int(value):
        detail = _("{key} is {value}: above 1 it counts steps and must be a whole number").format(
            key=key.name, value=shown(value)
        )
        raise Unusable("out_of_range", detail, _("give a whole number of steps, or a share of the run below 1"))
    if key.name == "max_steps" and value == 0:
        raise Unusable("out_of_range", _("max_steps is 0: nothing would be trained"), _("leave it out to train epochs"))


def _storable(value: Any) -> bool:
    """Whether resolved.json can hold a value inside a list or mapping (of plain values, a range says more)."""
    if isinstance(value, dict):
        return all(_storable(inner) and _finite(inner) for inner in value.values())
    if isinstance(value, list):
        return all(_storable(inner) for inner in value)
    return not isinstance(value, int) or abs(value) < 2**63


def _finite(value: Any) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def _check_values(key: Key, value: dict[str, Any]) -> None:
    text = VALUE_RANGES.get(key.name)
    for name, item in value.items() if text else ():
        number = isinstance(item, int | float) and not isinstance(item, bool)
        if not number or item not in interval(text or ""):
            detail = _("{key}: '{name}' is {value}; it must be {range}").format(
                key=key.name, name=shown(name), value=shown(item), range=interval(text or "").describe()
            )
            raise Unusable("out_of_range" if number else "wrong_type", detail, _("give a number in that range"))


def _check_choice(key: Key, value: str) -> None:
    pattern = PATTERNED_CHOICES.get(key.name)
    if not key.choices or value in key.choices or (pattern and pattern.match(value)):
        return
    if value == key.default or ("list[str]" in key.types and value in WORDS_FOR_LISTS):
        return
    close = difflib.get_close_matches(value[:60].lower(), [str(choice) for choice in key.choices], n=1, cutoff=0.5)
    known = ", ".join(str(choice) for choice in key.choices[:12]) + (", …" if len(key.choices) > 12 else "")
    detail = _("{key} is '{value}', which is not one of: {known}").format(key=key.name, value=shown(value), known=known)
    fix = _("did you mean '{close}'?").format(close=close[0]) if close else _("use one of them")
    raise Unusable("out_of_range", detail, fix)


def _wrong(key: Key, given: str) -> Unusable:
    wanted = [words[kind] for kind in key.types if kind in (words := _words())]
    wanted += [_("a list") for kind in key.types if kind.startswith("list[")]
    detail = _("{key} wants {wanted}, not {given}").format(key=key.name, wanted=_(" or ").join(wanted), given=given)
    return Unusable("wrong_type", detail, _fix(key, given))


def _fix(key: Key, given: str) -> str:
    if given == _("nothing"):
        return _("give a value, or leave it out")
    if given.startswith('"'):
        return _("remove the quotes")
    if key.types == ("bool",) or key.types == ("bool", "null"):
        return _("write true or false, or leave it out to get the default")
    return _("give a value of that kind, or leave it out to get the default")


def _words() -> dict[str, str]:
    return {
        "bool": _("true or false"),
        "int": _("a whole number"),
        "float": _("a number"),
        "str": _("text"),
        "dict": _("a mapping"),
    }


def _named(node: Scalar) -> str:
    """How the wrong value is spoken of; quoted text keeps its quotes, so that the reader sees the reason."""
    if node.plain and node.text in NULLS:
        return _("nothing")
    if not node.plain:
        return f'"{shown(node.text)}"'
    return f"'{shown(node.text)}'"
