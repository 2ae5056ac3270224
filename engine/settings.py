"""The user's settings: one schema, one file, one writer.

`$XDG_CONFIG_HOME/ftui/settings.yaml` (`~/.config` where that is not set). The schema is a plain dataclass that
pydantic validates: without a file, `load` needs neither pydantic nor YAML, and a command starts in a few
milliseconds. `save` replaces single values in the text, so comments, order and spacing stay as the user wrote them.
"""

from __future__ import annotations

import errno
import os
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le, Len

from engine.errors import FtuiError, UsageError
from engine.text import _

NAME = "settings.yaml"
MAX_BYTES = 1_000_000
Text = Annotated[str, Len(1, 4096)]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a user may set; null means "decide by itself"."""

    home: Text | None = None  # the workspace
    python: Text | None = None  # the interpreter of the environment with torch
    vllm_python: Text | None = None  # the interpreter of vLLM's own environment
    llama_cpp: Text | None = None  # llama.cpp's folder, for `ftui merge --gguf`
    language: Text | None = None
    theme: Text | None = None
    refresh_hz: Annotated[float, Ge(0.5), Le(4)] = 2.0
    price: Annotated[float, Ge(0)] | None = None  # of this server, for the money shown
    price_currency: Annotated[str, Len(3, 3)] = "USD"
    price_period: Literal["hour", "month"] = "hour"
    country: Annotated[str, Len(2, 2)] | None = (
        None  # where this server stands: said where personal data would cross a border
    )
    ascii: bool = False  # draw with letters where the font lacks braille and boxes
    max_restarts: Annotated[int, Ge(0), Le(100)] = 3
    backup: Text | None = None  # the remote of runs whose recipe names none: NAME:bucket/folder
    lease: Text | None = None  # where the provider says when the server ends: env:NAME or file:PATH
    lease_margin_min: Annotated[float, Ge(0), Le(1440)] = 10.0  # kept free before the end, in minutes
    lease_warn: Text | None = None  # how long before the last safe stop it warns: "24h, 6h, 1h, 15min"
    preempt_file: Text | None = None  # a file that appears when a spot server is taken back
    preempt_command: Text | None = None  # a program (no shell) that succeeds then
    preempt_seconds: Annotated[float, Ge(1), Le(86400)] = 120.0  # what is left then, where the notice does not say
    persistent: Text | None = None  # folders that outlive the server, separated by ":"
    temporary: Text | None = None  # folders that do not
    idle_minutes: Annotated[float, Ge(1), Le(10_000)] | None = 15.0  # tell when all GPUs idle for so long
    idle_command: Text | None = None  # a program (no shell) to run then


def path() -> Path:
    """Where the file is, or would be."""
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base and Path(base).is_absolute() else Path.home() / ".config") / "ftui" / NAME


def load() -> Settings:
    """The settings; defaults where the file does not say, or is not there.

    Raises:
        UsageError: the file cannot be read, or holds an unknown key or a wrong value.
    """
    data = _read(path())
    return Settings() if data is None else _parse(data, path())


def save(**changes: Any) -> Settings:
    """Set some values, and write the file. Values that are already there are replaced where they stand.

    Raises:
        UsageError: the file as it is, or a new value, is wrong (nothing is written then).
        FtuiError: the file cannot be written.
    """
    from engine.files import Lock, write_atomic
    from engine.yamledit import edited

    target = path()
    unknown = sorted(set(changes) - _names())
    if unknown:
        raise _unknown(unknown[0], None, target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with Lock(target.with_name(f".{NAME}.lock")).held():
            data = _read(target) or b""
            _parse(data, target)
            text = edited(data.decode("utf-8-sig"), changes)
            settings = _parse(text.encode(), target)
            real = target.resolve()  # a link into a folder of dotfiles stays one
            mode = real.stat().st_mode & 0o777 if real.exists() else 0o644
            write_atomic(real, text.encode(), mode=mode)
    except OSError as error:
        raise FtuiError(
            _("the settings cannot be written: {reason}").format(reason=error.strerror or error),
            where=str(target),
            fix=_("make the folder writable, or set XDG_CONFIG_HOME"),
            kind="settings",
        ) from error
    return settings


def training_python() -> str:
    """The interpreter that has torch: FTUI_PYTHON, the setting `python`, else this one."""
    chosen = os.environ.get("FTUI_PYTHON") or load().python
    return os.path.expanduser(chosen) if chosen else sys.executable  # noqa: PTH111 (a program's name stays one)


def _names() -> set[str]:
    return {field.name for field in fields(Settings)}


def _read(target: Path) -> bytes | None:
    try:
        target.stat()
        from engine.files import read_regular  # not where there is no file: it loads orjson

        data = read_regular(target, MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise OSError(errno.EFBIG, _("it is larger than 1 MB"))
        return data
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UsageError(
            _("the settings cannot be read: {reason}").format(reason=error.strerror or error),
            where=str(target),
            fix=_("make the file readable, or remove it"),
            kind="settings",
        ) from error


def _parse(data: bytes, target: Path) -> Settings:
    from pydantic import TypeAdapter, ValidationError

    from engine.yamldoc import Mapping, Scalar, Sequence, decode, merged, parse

    text, findings = decode(data)
    root, more = (None, []) if findings else parse(text)
    for finding in (*findings, *more):
        where = f"{target}:{finding.lines[0]}" if finding.lines else str(target)
        raise UsageError(finding.detail, where=where, fix=finding.fix, kind="settings")
    if root is None or (isinstance(root, Scalar) and root.value() is None):
        return Settings()  # comments alone
    if not isinstance(root, Mapping):
        raise UsageError(
            _("the settings are not a mapping of keys to values"),
            where=f"{target}:{root.line}",
            fix=_("write one `key: value` a line"),
            kind="settings",
        )
    values: dict[str, Any] = {}
    lines: dict[str, int] = {}
    for key, node in merged(root):
        if key.text not in _names():
            raise _unknown(key.text, key.line, target)
        lines[key.text] = key.line
        if isinstance(node, Sequence | Mapping):
            raise _wrong(key.text, _("a single value is wanted"), key.line, target)
        assert isinstance(node, Scalar)
        value = node.value()
        if isinstance(value, bool) and key.text not in ("ascii",):
            value = node.text  # `no` is a language
        values[key.text] = value
    try:
        return TypeAdapter(Settings).validate_python(values)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        raise _wrong(name, str(first["msg"]), lines.get(name), target) from None


def _unknown(name: str, line: int | None, target: Path) -> UsageError:
    import difflib

    close = difflib.get_close_matches(name[:60], _names(), n=1)
    return UsageError(
        _("there is no setting '{name}'").format(name=name[:60]),
        where=f"{target}:{line}" if line else str(target),
        fix=_("did you mean '{name}'?").format(name=close[0])
        if close
        else _("known: {names}").format(names=", ".join(sorted(_names()))),
        kind="settings",
    )


def _wrong(name: str, reason: str, line: int | None, target: Path) -> UsageError:
    return UsageError(
        _("the setting {name} is wrong: {reason}").format(name=name, reason=reason),
        where=f"{target}:{line}" if line else str(target),
        fix=_("correct the value, or delete the line to get the default"),
        kind="settings",
    )
