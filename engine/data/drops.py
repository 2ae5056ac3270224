"""Rows that a person marked as dropped: left out wherever this workspace trains on them (docs/files.md).

A row is known by its content, so the mark holds when the file is copied, sorted or grows; the files stay as they are.
"""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import Any

import orjson

from engine.errors import FtuiError
from engine.files import read_regular
from engine.text import _

NAME = "dropped_rows.jsonl"
FORMAT = 1


def key(value: Any) -> str:
    """What a row is known by: a hash of its value, or of its text where that is not JSON."""
    if isinstance(value, str):
        data = value.encode("utf-8", "replace")
    else:
        try:
            data = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
        except (TypeError, ValueError):  # numbers beyond 64 bits, half surrogates, what Parquet holds besides texts
            data = json.dumps(value, sort_keys=True, default=str).encode("utf-8", "replace")
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def read(workspace: Path) -> frozenset[str]:
    """The keys of all rows that are dropped now.

    Raises:
        FtuiError: the list cannot be read: training on rows that were taken out would be worse than not to start.
    """
    path = workspace / NAME
    try:
        data = read_regular(path)
    except FileNotFoundError:
        return frozenset()
    except OSError as error:
        raise _failed(path, error) from error
    dropped: set[str] = set()
    for line in data.splitlines():
        try:
            entry = orjson.loads(line)
            (dropped.add if entry["dropped"] else dropped.discard)(entry["row"])
        except (ValueError, TypeError, KeyError):
            continue  # the torn last line of a write that did not end
    return frozenset(dropped)


def mark(workspace: Path, value: Any, *, file: Path, line: int, dropped: bool) -> None:
    """Drop a row, or take it back.

    Raises:
        FtuiError: the list cannot be written.
    """
    from engine.files import Lock, write_all

    path = workspace / NAME
    entry = {
        "format": FORMAT, "time": time.time(), "row": key(value), "dropped": dropped, "file": str(file), "line": line
    }  # fmt: skip
    try:
        workspace.mkdir(parents=True, exist_ok=True)
        with Lock(path.with_name(f".{NAME}.lock")).held(), open(path, "ab+") as list_:
            torn = list_.seek(0, 2) and (list_.seek(-1, 2), list_.read(1) != b"\n")[1]
            write_all(list_.fileno(), b"\n" * bool(torn) + orjson.dumps(entry) + b"\n")
    except OSError as error:
        raise _failed(path, error) from error


def _failed(path: Path, error: OSError) -> FtuiError:
    return FtuiError(
        _("the list of dropped rows cannot be used: {reason}").format(reason=error.strerror or error),
        where=str(path),
        fix=_("check its permissions and the space there"),
        kind="drops",
    )
