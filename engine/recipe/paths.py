"""Paths and sources in a recipe: `~` and variables expanded, relative ones anchored, the other forms told apart."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Literal

from engine.text import _

Source = Literal["builtin", "hub", "remote", "path"]

MODEL_KEYS = ("model_name_or_path",)
DATA_KEYS = ("dataset_path", "eval_dataset_path")
# Paths where they are text; several of these also take a mapping.
FILE_KEYS = ("output_dir", "eval_task_path", "chat_template_path", "deepspeed", "fsdp_config", "accelerator_config")
PATH_KEYS = (*MODEL_KEYS, *DATA_KEYS, *FILE_KEYS)
BUILTIN_MODELS = ("builtin:tiny",)
BUILTIN_DATA = ("builtin:support",)

VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))")
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?\Z")
REMOTE = re.compile(r"[A-Za-z0-9_][\w.+@ -]*:")


class Undefined(Exception):
    """A variable in a path is not set; `name` is the variable."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def source(key: str, value: str) -> Source:
    """What kind of place a value names.

    A model that is neither a folder nor written like a path (`./`, `/`, `~`, `$`) is a name on the hub, as in the
    libraries; data is a path unless it says otherwise (`hf://`), so that a mistyped file is not looked for there.
    """
    if value.startswith("builtin:"):
        return "builtin"
    if value.startswith("hf://"):
        return "hub"
    if REMOTE.match(value):
        return "remote"
    names_model = key in MODEL_KEYS or (key == "chat_template_path" and not value.endswith((".jinja", ".j2")))
    if names_model and HUB_ID.match(value):
        return "hub"
    return "path"


def expand(key: str, value: str, base: Path) -> str:
    """The value with `~`, `$VAR` and `${VAR}` expanded and, where it is a path, made absolute from `base`.

    Raises:
        Undefined: a variable is not set.
    """
    if value.startswith(("builtin:", "hf://")):
        return value
    text = VARIABLE.sub(_variable, value)
    if text.startswith("~"):
        text = os.path.expanduser(text)  # noqa: PTH111 (Path raises for a user that does not exist)
    joined = os.path.normpath(os.path.join(base, text))
    return joined if source(key, text) == "path" or os.path.lexists(joined) else text


def _variable(match: re.Match[str]) -> str:
    name = match.group(1) or match.group(2)
    if name not in os.environ:
        raise Undefined(name)
    return os.environ[name]


def is_path(key: str, value: Any) -> bool:
    """Whether the value is a path on this machine."""
    return isinstance(value, str) and bool(value) and source(key, value) == "path"


def unsupported(key: str, value: str) -> tuple[str, str] | None:
    """What this version cannot read, as (what, fix)."""
    if key not in DATA_KEYS and source(key, value) == "remote":
        return (
            _("{key}: a place on a remote ({value}) cannot be read yet").format(key=key, value=value[:80]),
            _("copy it to this server and give the path"),
        )
    return None


def unknown_builtin(key: str, value: str) -> tuple[str, str] | None:
    """What is wrong with a name of something built in that is not there, as (what, fix)."""
    known = BUILTIN_MODELS if key in MODEL_KEYS else BUILTIN_DATA
    if source(key, value) == "builtin" and value not in known:
        return (
            _("{key}: there is no {value}").format(key=key, value=value[:80]),
            _("use {known}").format(known=", ".join(known)),
        )
    return None
