"""Rows of training data from files, in the forms that TRL takes; each with its file and line. Light."""

from __future__ import annotations

import glob
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from engine.data import places, training
from engine.data.sources import PLAIN, SUFFIXES
from engine.data.sources import resolve as data_files
from engine.data.tally import Tally
from engine.errors import UsageError
from engine.text import _
from engine.train import builtin
from engine.train.job import Job

MAX_NAMED = 20


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
    return resolve(name, job.cache)


def resolve(name: str, cache: Path | None = None) -> list[Path]:
    """The files behind a recipe's dataset_path: a file, a folder, a glob, a built-in set, or what is fetched first.

    Args:
        name: as the recipe has it.
        cache: where files of a remote go; None takes the workspace's.

    Raises:
        UsageError: there are none.
        FtuiError: they could not be fetched.
    """
    if name.startswith(builtin.PREFIX):
        return [builtin.dataset_path(name)]
    if places.is_far(name):
        return data_files([name], cache)
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
            fix=_("set dataset_path to a file, a folder or a glob of {suffixes}").format(
                suffixes=", ".join((*PLAIN, ".parquet"))
            ),
            kind="no_dataset",
        )
    return found


class LeftOut:
    """The rows that a run started with --force goes on without: how many, and the first of them."""

    def __init__(self) -> None:
        self.count = 0
        self.first: list[str] = []

    def add(self, error: UsageError, count: int = 1) -> None:
        """Count rows that were left out for one reason."""
        self.count += count
        if len(self.first) < MAX_NAMED:
            self.first.append(f"{error.where}: {error.what}")


def bad_row(file: Path, line: int | None, what: str, fix: str = "") -> UsageError:
    """The error of a row that cannot be trained on."""
    either = _("`ftui data check` lists all such rows; `ftui run … --force` leaves them out")
    return UsageError(
        what,
        where=f"{file}:{line}" if line is not None else str(file),
        fix=f"{fix}; {either}" if fix else either,
        kind="bad_row",
    )


def read(
    files: Iterable[Path],
    text_field: str = "text",
    left_out: LeftOut | None = None,
    task: str = "sft",
    how: training.How = training.NO_MORE,
) -> Iterator[Row]:
    """The rows of all files.

    Args:
        files: what `resolve` found.
        text_field: the column of plain text.
        left_out: counts the rows that cannot be trained on, instead of an error at the first of them.
        task: what the rows are for: each trains on forms of its own.
        how: other names of columns, and rows to leave out.

    Raises:
        UsageError: a row that cannot be trained on, with its file and line; or rows of different forms.
    """
    first: str | None = None
    for file in files:
        tally = Tally()
        for row in training.rows(file, tally, text_field, task, how):
            if row.dropped:
                continue
            if row.form is None:
                why = training.problem(row, text_field, task, how)
                error = bad_row(file, row.line, why.detail, why.fix)
            elif first is not None and row.form != first:
                what = _("this row is of the form {own}, the rows before are {form}")
                error = bad_row(file, row.line, what.format(own=row.form, form=first))
            else:
                first = row.form
                assert row.columns is not None
                yield Row(row.columns, file, row.line)
                continue
            if left_out is None:
                raise error
            left_out.add(error)
        refuse_file(file, tally, left_out)


def refuse_file(file: Path, tally: Tally, left_out: LeftOut | None = None) -> None:
    """Raise for what is wrong with a file itself, so that rows of it are missing; or count them as left out.

    Raises:
        UsageError: the file is damaged, or holds something else than it seems to.
    """
    errors = set(training.file_errors(tally))
    for finding in tally.findings(str(file)):
        if (finding.kind, finding.subtype or "") in errors:
            error = bad_row(file, finding.lines[0] if finding.lines else None, finding.detail, finding.fix)
            if left_out is None:
                raise error
            left_out.add(error, finding.count)
