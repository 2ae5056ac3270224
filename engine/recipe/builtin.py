"""The recipes that come with the product."""

from __future__ import annotations

import difflib
import stat
from importlib import resources
from pathlib import Path

from engine.errors import UsageError
from engine.files import user_path
from engine.text import _

ORDER = ("demo", "lora-sft", "qlora-sft", "full-sft", "dpo", "pretrain", "smoke")  # by how soon a newcomer needs them


def folder() -> Path:
    """Where they are."""
    return Path(str(resources.files("recipes")))


def names() -> list[str]:
    """The built-in recipes, the simplest first."""
    found = {path.stem for path in folder().glob("*.yaml")}
    return [*(name for name in ORDER if name in found), *sorted(found - set(ORDER))]


def find(name_or_path: str | Path) -> Path:
    """The file of a recipe: a path, or the name of a built-in recipe with or without `.yaml`.

    A file in the current folder comes before a built-in recipe of that name only when it is written as a path
    (`./demo`, `demo.yaml`); so `ftui run demo` means the same everywhere.

    Raises:
        UsageError: there is neither.
    """
    text = str(name_or_path)
    path = user_path(text)
    plain_name = "/" not in text and not text.startswith("~")
    if plain_name and text in names():
        return folder() / f"{text}.yaml"
    mode = _mode(path)
    if stat.S_ISREG(mode) or stat.S_ISCHR(mode):
        return path
    if plain_name and text.removesuffix(".yaml") in names():
        return folder() / text
    known = ", ".join(names())
    if mode and not stat.S_ISDIR(mode):  # a pipe that nobody writes to would be waited for, for ever
        raise UsageError(
            _("{path} is no file").format(path=text),
            where=text,
            fix=_("write the recipe into a file: its relative paths begin there"),
            kind="no_such_recipe",
        )
    if mode:
        raise UsageError(
            _("{path} is a folder, not a recipe").format(path=text),
            where=text,
            fix=_("name the YAML file in it"),
            kind="no_such_recipe",
        )
    near = difflib.get_close_matches(Path(text).stem[:80], names(), n=1)
    raise UsageError(
        _("there is no recipe {path}").format(path=text),
        where=text,
        fix=_("did you mean {name}?").format(name=near[0]) if near else _("built-in: {names}").format(names=known),
        kind="no_such_recipe",
    )


def _mode(path: Path) -> int:
    """The file's type bits; 0 when there is no such file, or none can have that name."""
    try:
        return path.stat().st_mode
    except (OSError, ValueError):
        return 0
