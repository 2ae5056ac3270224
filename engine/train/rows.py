"""Rows of training data from files, in the forms that TRL takes; each with its file and line. Light."""

from __future__ import annotations

import glob
import gzip
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from engine.errors import UsageError
from engine.text import _
from engine.train import builtin
from engine.train.job import Job

SUFFIXES = (".jsonl", ".json", ".jsonl.gz", ".json.gz", ".parquet")
FORMS = "messages, prompt + completion, text"
EXTRA_COLUMNS = ("tools", "chat_template_kwargs")


class Row(NamedTuple):
    """One row as read: `values` are the columns that the trainer uses."""

    values: dict[str, Any]
    file: Path
    line: int


def locate(job: Job) -> list[Path]:
    """The files of the recipe's training data.

    Raises:
        UsageError: it names none, or one that is not on this machine.
    """
    name = str(job.get("dataset_path") or "")
    if not name:
        raise UsageError(
            _("the recipe names no training data"), where="dataset_path", fix=_("set dataset_path"), kind="no_dataset"
        )
    if name.startswith(("hf://", "remote:")):
        raise UsageError(
            _("this version reads training data from files only"),
            where=name,
            fix=_("download it first and set dataset_path to the file"),
            kind="not_supported",
        )
    return resolve(name)


def resolve(name: str) -> list[Path]:
    """The files behind a recipe's dataset_path: a file, a folder, a glob, or a built-in set.

    Raises:
        UsageError: there are none.
    """
    if name.startswith(builtin.PREFIX):
        return [builtin.dataset_path(name)]
    path = Path(name).expanduser()
    if path.is_file():
        return [path]
    if path.is_dir():
        found = [file for file in sorted(path.rglob("*")) if file.is_file() and file.name.endswith(SUFFIXES)]
    else:
        names = sorted(glob.glob(str(path), recursive=True))  # noqa: PTH207 - absolute patterns, too
        found = [Path(name) for name in names if Path(name).is_file()]
    if not found:
        raise UsageError(
            _("there is no training data at this path"),
            where=name,
            fix=_("set dataset_path to a file, a folder or a glob of {suffixes}").format(suffixes=", ".join(SUFFIXES)),
            kind="no_dataset",
        )
    return found


def _bad(file: Path, line: int, what: str) -> UsageError:
    return UsageError(
        what,
        where=f"{file}:{line}",
        fix=_("correct or remove the row"),
        kind="bad_row",
    )


def _objects(file: Path) -> Iterator[tuple[int, Any]]:
    """Each JSON value of a file with its line (parquet: its row)."""
    if file.name.endswith(".parquet"):
        import pyarrow.parquet as parquet

        number = 0
        for batch in parquet.ParquetFile(file).iter_batches():
            for value in batch.to_pylist():
                number += 1
                yield number, value
        return
    opener: Any = gzip.open if file.name.endswith(".gz") else open
    with opener(file, "rb") as stream:
        start = stream.read(3)
        stream.seek(3 if start == b"\xef\xbb\xbf" else 0)
        for number, line in enumerate(stream, 1):
            if not (text := line.strip()):
                continue
            if number == 1 and text.startswith(b"[") and ".jsonl" not in file.name:
                yield from _array(file, text + stream.read())
                return
            try:
                yield number, orjson.loads(text)
            except ValueError as error:
                raise _bad(file, number, _("this line is not JSON: {reason}").format(reason=error)) from None


def _array(file: Path, data: bytes) -> Iterator[tuple[int, Any]]:
    try:
        values = orjson.loads(data)
    except ValueError as error:
        raise _bad(file, 1, _("this file is not JSON: {reason}").format(reason=error)) from None
    yield from enumerate(values, 1)


def read(files: Iterable[Path], text_field: str = "text") -> Iterator[Row]:
    """The rows of all files.

    Raises:
        UsageError: a row that cannot be trained on, with its file and line; or rows of different forms.
    """
    form: str | None = None
    for file in files:
        try:
            for line, value in _objects(file):
                own, columns = _columns(file, line, value, text_field)
                if form is None:
                    form = own
                elif own != form:
                    raise _bad(
                        file,
                        line,
                        _("this row is of the form {own}, the rows before are {form}").format(own=own, form=form),
                    )
                yield Row(columns, file, line)
        except OSError as error:
            raise UsageError(
                _("the training data cannot be read: {reason}").format(reason=error.strerror or error),
                where=str(file),
                kind="no_dataset",
            ) from error


def _columns(file: Path, line: int, value: Any, text_field: str) -> tuple[str, dict[str, Any]]:
    if not isinstance(value, dict):
        raise _bad(file, line, _("a row must be a JSON object"))
    extra = {key: value[key] for key in EXTRA_COLUMNS if value.get(key) is not None}
    if "messages" in value:
        return "messages", {"messages": _messages(file, line, value["messages"], "messages"), **extra}
    if "conversations" in value:
        turns = value["conversations"]
        if isinstance(turns, list) and turns and isinstance(turns[0], dict) and "from" in turns[0]:
            roles = {"human": "user", "gpt": "assistant"}
            turns = [
                {"role": roles.get(turn.get("from"), turn.get("from")), "content": turn.get("value")}
                if isinstance(turn, dict)
                else turn
                for turn in turns
            ]
        return "messages", {"messages": _messages(file, line, turns, "conversations"), **extra}
    if "prompt" in value and "completion" in value:
        prompt, completion = value["prompt"], value["completion"]
        if isinstance(prompt, str) and isinstance(completion, str):
            if not completion:
                raise _bad(file, line, _("the completion is empty"))
            return "prompt + completion", {"prompt": prompt, "completion": completion, **extra}
        return "prompt + completion (messages)", {
            "prompt": _messages(file, line, prompt, "prompt", answered=False),
            "completion": _messages(file, line, completion, "completion"),
            **extra,
        }
    if text_field in value:
        text = value[text_field]
        if not isinstance(text, str) or not text.strip():
            raise _bad(file, line, _("'{field}' must be text and not empty").format(field=text_field))
        return "text", {text_field: text}
    keys = ", ".join(list(value)[:8]) or "-"
    raise _bad(file, line, _("a row needs one of: {forms}; this one has: {keys}").format(forms=FORMS, keys=keys))


def _messages(file: Path, line: int, value: Any, field: str, *, answered: bool = True) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not value:
        raise _bad(file, line, _("'{field}' must be a list of messages and not empty").format(field=field))
    for message in value:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise _bad(file, line, _("each message needs a role and a content"))
        content = message.get("content")
        if not isinstance(content, str | list) and not (content is None and message.get("tool_calls")):
            raise _bad(file, line, _("each message needs a role and a content"))
    if answered and not any(message["role"] == "assistant" for message in value):
        raise _bad(file, line, _("no message is the assistant's: there is nothing to learn"))
    return value
