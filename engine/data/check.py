"""`check`: everything there is to say about training data, as findings.

The reader cuts files into blocks, worker processes check them, and what comes back is merged in order, so that the
report does not depend on how many there were.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from engine.data import duplicates, reader, sources, template_check
from engine.data.duplicates import Prints
from engine.data.tally import MAX_FINDINGS, Tally
from engine.data.worker import Block, Options, Result, Seen, check_block
from engine.errors import FtuiError
from engine.findings import Finding
from engine.process import die_with_parent
from engine.text import _

WORTH_A_PROCESS = 8 << 20  # bytes; less is checked before a second process has started
MAX_WORKERS = 8
BOILERPLATE_SHARE, BOILERPLATE_ROWS = 0.02, 5
UNGUESSED_SHARE = 0.5
Tell = Callable[[int], bool]
EMPTY = frozenset(("empty_file", "encoding", "compressed", "binary", "file_changed"))


@dataclass
class FileResult:
    """What one file was found to hold."""

    path: Path
    tally: Tally = field(default_factory=Tally)
    rows: int = 0
    usable: int = 0
    with_system: int = 0
    conversations: int = 0
    forms: dict[str, Seen] = field(default_factory=dict)
    types: dict[str, dict[str, Seen]] = field(default_factory=dict)
    extra: Counter[str] = field(default_factory=Counter)
    languages: Counter[str] = field(default_factory=Counter)
    prints: list[Prints] = field(default_factory=list)
    lengths: list[Any] = field(default_factory=list)
    sizes: list[Any] = field(default_factory=list)
    trained: int = 0
    kept: int = 0

    def add(self, result: Result) -> None:
        """Add the block that follows."""
        self.tally.merge(result.tally)
        for name in ("rows", "usable", "with_system", "conversations", "trained", "kept"):
            setattr(self, name, getattr(self, name) + getattr(result, name))
        for form, seen in result.forms.items():
            self.forms.setdefault(form, Seen()).add(seen.count, seen.lines)
        for column, kinds in result.types.items():
            for kind, seen in kinds.items():
                self.types.setdefault(column, {}).setdefault(kind, Seen()).add(seen.count, seen.lines)
        self.extra.update(result.extra)
        self.languages.update(result.languages)
        self.prints.append(result.prints)
        self.lengths.append(result.lengths)
        self.sizes.append(result.sizes)


@dataclass
class Examined:
    """A report, and what each file was found to hold beyond it (the screen shows more than a report says)."""

    report: Report
    train: list[FileResult]
    evaluation: list[FileResult]


@dataclass
class Report:
    """The outcome of a check."""

    files: list[dict[str, Any]]
    format: str | None
    rows: int
    usable: int
    findings: list[Finding]
    tokens: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """The document of `ftui data check --json`."""
        return {
            "files": self.files,
            "format": self.format,
            "rows": self.rows,
            "usable": self.usable,
            "findings": [finding.to_json() for finding in self.findings],
            "tokens": self.tokens,
        }


def check(
    files: Sequence[str],
    *,
    held_out: Sequence[str] = (),
    model: str | None = None,
    max_length: int | None = None,
    columns: dict[str, str] | None = None,
    delimiter: str | None = None,
    workers: int | None = None,
    dropped: frozenset[str] = frozenset(),
    names: bool = False,
) -> Report:
    """Check training data.

    Args:
        files: files, folders or globs with the rows to train on.
        held_out: the same for the rows to evaluate on.
        model: a model's folder: rows are then also looked at in its tokens, through its template.
        max_length: where rows are cut, in tokens.
        columns: our names of columns to the files' own (`forms.NAMES`).
        delimiter: the sign between CSV columns; None finds it out.
        workers: processes to use; None takes what the data is worth.
        dropped: rows that were marked as dropped (`drops.read`): they are left out.
        names: look for names of people with the package that is installed.

    Raises:
        UsageError: a file or the model cannot be read at all.
    """
    options = Options(columns or {}, model, max_length, dropped, names=names)
    return examine(files, options, held_out=held_out, delimiter=delimiter, workers=workers).report


def examine(
    files: Sequence[str],
    options: Options,
    *,
    held_out: Sequence[str] = (),
    delimiter: str | None = None,
    workers: int | None = None,
    tell: Tell | None = None,
) -> Examined:
    """Check training data and keep what the report is made of.

    Args:
        files: as of `check`; so are the others.
        options: what to look at.
        held_out: rows to evaluate on.
        delimiter: the sign between CSV columns.
        workers: processes to use.
        tell: hears how many rows are checked; what it answers with False ends here.

    Raises:
        UsageError: a file or the model cannot be read at all.
        FtuiError: it was stopped.
    """
    model, max_length = options.model, options.max_length
    train_files = sources.resolve(list(files))
    eval_files = sources.resolve(list(held_out)) if held_out else []
    loaded = None
    if model is not None:
        from engine.data import tokens

        loaded = tokens.load(model)
    train, evaluation = check_files(train_files, eval_files, options, delimiter, workers, tell=tell)
    everything = [*train, *evaluation]
    _compare(train, evaluation)
    for result in everything:
        _conclude(result)
    if loaded is not None:
        for kind, subtype, value in template_check.problems(
            loaded,
            conversations=sum(result.conversations for result in everything),
            with_system=sum(result.with_system for result in everything),
        ):
            everything[0].tally.add(kind, None, value, subtype)
    findings = [finding for result in everything for finding in result.tally.findings(str(result.path))]
    findings.sort(key=lambda finding: ("error", "warning", "note").index(finding.level))
    if len(findings) > MAX_FINDINGS:
        rest = findings[MAX_FINDINGS:]
        del findings[MAX_FINDINGS:]
        findings.append(_rest(rest))
    report = Report(
        files=[{"path": str(r.path), "rows": r.rows, "format": _form(r.forms)} for r in everything[:MAX_FINDINGS]],
        format=_form(_sum_forms(train)),
        rows=sum(result.rows for result in train),
        usable=sum(result.usable for result in train),
        findings=findings,
        tokens=_token_figures(train, max_length) if loaded is not None else None,
    )
    return Examined(report, train, evaluation)


def check_files(
    train: Sequence[Path],
    held_out: Sequence[Path],
    options: Options,
    delimiter: str | None = None,
    workers: int | None = None,
    *,
    tell: Tell | None = None,
) -> tuple[list[FileResult], list[FileResult]]:
    """What each file holds, row by row; nothing is compared yet."""
    with _Pool([*train, *held_out], options, workers, tell=tell) as pool:
        return [_file(path, pool, delimiter) for path in train], [_file(path, pool, delimiter) for path in held_out]


def _rest(findings: list[Finding]) -> Finding:
    level = findings[0].level
    detail = _("{n} further findings are not listed").format(n=len(findings))
    return Finding("more_findings", level, detail, _("check fewer files at once"), count=len(findings))


def _start_worker() -> None:
    """A worker ends with its parent, however that ends, and leaves ctrl-c to it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    die_with_parent()


class _Pool:
    """Checks blocks in order, in other processes where that is worth their start."""

    def __init__(
        self, files: Iterable[Path], options: Options, workers: int | None, *, tell: Tell | None = None
    ) -> None:
        self._tell, self._rows = tell, 0
        self.options = self._options = options
        size = 0
        for path in files:
            try:
                size += os.stat(path).st_size
            except OSError:
                continue
        cores = len(os.sched_getaffinity(0))
        wanted = min(cores, MAX_WORKERS) if workers is None and size >= WORTH_A_PROCESS else workers or 1
        self._executor: ProcessPoolExecutor | None = None
        self._ahead = 2 * wanted
        if wanted > 1:
            # spawn: the caller may have threads, and a fork would copy their locks
            self._executor = ProcessPoolExecutor(
                wanted, mp_context=multiprocessing.get_context("spawn"), initializer=_start_worker
            )

    def __enter__(self) -> _Pool:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._executor is not None:
            self._executor.shutdown(wait=True, cancel_futures=True)

    def seen(self, rows: int) -> None:
        """Count rows that are checked.

        Raises:
            FtuiError: nobody wants the rest.
        """
        self._rows += rows
        if self._tell is not None and not self._tell(self._rows):
            raise FtuiError(_("the check was stopped"), kind="stopped")

    def results(self, blocks: Iterable[Block]) -> Iterator[Result]:
        """The results of blocks in their order; a few blocks are in memory at a time."""
        if self._executor is None:
            for block in blocks:
                yield check_block(block, self._options)
            return
        waiting: deque[Future[Result]] = deque()
        try:
            for block in blocks:
                waiting.append(self._executor.submit(check_block, block, self._options))
                if len(waiting) > self._ahead:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool as error:
            raise FtuiError(
                _("a process that checked data was killed, probably for want of memory"),
                fix=_("free memory, or check fewer files at once"),
                kind="worker_lost",
            ) from error


def _file(path: Path, pool: _Pool, delimiter: str | None) -> FileResult:
    result = FileResult(path, Tally(pool.options.keep))
    for part in pool.results(reader.blocks(path, result.tally, delimiter)):
        result.add(part)
        pool.seen(part.rows)
    if not result.rows and not any(kind in EMPTY for kind, _subtype in result.tally.entries):
        result.tally.add("empty_file", None)
    return result


def _conclude(result: FileResult) -> None:
    """What can be said of a file once all its rows are known."""
    tally = result.tally
    if len(result.forms) > 1:
        by_format = {form: seen.lines for form, seen in result.forms.items()}
        first = max(result.forms, key=lambda form: result.forms[form].count)
        others = sorted(line for form, seen in result.forms.items() if form != first for line in seen.lines)
        words = ", ".join(f"{form} {seen.count}" for form, seen in result.forms.items())
        _lines(tally, "mixed_formats", others, sum(s.count for f, s in result.forms.items() if f != first), words)
        tally.entries["mixed_formats", ""].extra["by_format"] = by_format
    for column, kinds in result.types.items():
        if len(kinds) > 1:
            usual = max(kinds, key=lambda kind: kinds[kind].count)
            others = sorted({line for kind, seen in kinds.items() if kind != usual for line in seen.lines})
            count = sum(seen.count for kind, seen in kinds.items() if kind != usual)
            subtype = "unused" if column.startswith("-") else ""
            _lines(tally, "mixed_types", others, count, f"{column.lstrip('-')} ({', '.join(kinds)})", subtype)
    for name, _count in result.extra.most_common():
        tally.add("extra_column", None, name)
        tally.entries["extra_column", ""].count = max(result.extra.values())
    if known := sum(result.languages.values()) - result.languages["?"]:
        shares = result.languages.most_common(6)
        words = ", ".join(f"{name} {count / result.languages.total():.0%}" for name, count in shares)
        if known > UNGUESSED_SHARE * result.languages.total():
            tally.add("languages", None, words)


def _lines(tally: Tally, kind: str, lines: Sequence[int], count: int, value: str, subtype: str = "") -> None:
    """A finding whose lines are known all at once."""
    before = tally.entries.get((kind, subtype))
    for line in lines:
        tally.add(kind, line, value, subtype)
    entry = tally.entries[kind, subtype]
    entry.count = (before.count if before else 0) + count if before is None else max(entry.count, count)
    entry.lines.sort()


def _compare(train: list[FileResult], evaluation: list[FileResult]) -> None:
    """Duplicates within the training data, and what the rows for evaluation share with it."""
    ours, our_file = _joined(train)
    exact = duplicates.repeats(ours.exact)
    near = duplicates.near(ours, exact)
    for kind, partner in (("duplicate", exact), ("near_duplicate", near)):
        _pairs(kind, partner, ours, our_file, train)
    _conflicts(ours, our_file, train)
    _boilerplate(ours, our_file, train)
    if not evaluation:
        return
    theirs, their_file = _joined(evaluation)
    found = duplicates.overlap(ours, theirs)
    for kind, subtype, partner in (
        ("train_eval_overlap", "", found.same),
        ("train_eval_overlap", "near", np.where(found.prompt >= 0, -1, found.alike)),
        ("train_eval_prompt_overlap", "", found.prompt),
    ):
        for place in np.flatnonzero(partner >= 0):
            tally = evaluation[their_file[place]].tally
            tally.add(kind, int(theirs.line[place]), subtype=subtype)
            pairs = tally.entries[kind, subtype].extra.setdefault("pairs", [])
            if len(pairs) < 20:
                pairs.append([int(ours.line[partner[place]]), int(theirs.line[place])])


def _joined(results: list[FileResult]) -> tuple[Prints, Any]:
    """The prints of all files one after another, and which file each is from."""
    counts = [sum(len(part.line) for part in result.prints) for result in results]
    joined = Prints.join([part for result in results for part in result.prints])
    for result in results:
        result.prints.clear()
    return joined, np.repeat(np.arange(len(results)), counts)


def _pairs(kind: str, partner: Any, prints: Prints, files: Any, results: list[FileResult]) -> None:
    for place in np.flatnonzero(partner >= 0):
        other = int(partner[place])
        tally = results[files[place]].tally
        tally.add(kind, int(prints.line[place]), threshold=f"{duplicates.THRESHOLD:.0%}")
        pairs = tally.entries[kind, ""].extra.setdefault("pairs", [])
        if len(pairs) < 20:
            where = "" if files[other] == files[place] else f"{results[files[other]].path.name}:"
            first = int(prints.line[other])
            pairs.append([f"{where}{first}" if where else first, int(prints.line[place])])


def _conflicts(prints: Prints, files: Any, results: list[FileResult]) -> None:
    for place in duplicates.contradictions(prints):
        subtype = "" if prints.swapped[place] else "answer"
        results[files[place]].tally.add("label_conflict", int(prints.line[place]), subtype=subtype)


def _boilerplate(prints: Prints, files: Any, results: list[FileResult]) -> None:
    answers = prints.answer[prints.answer != 0]
    if not len(answers):
        return
    values, counts = np.unique(answers, return_counts=True)
    many = counts >= max(BOILERPLATE_ROWS, BOILERPLATE_SHARE * len(answers))
    for value, count in sorted(zip(values[many], counts[many], strict=True), key=lambda pair: -pair[1])[:20]:
        place = int(np.flatnonzero(prints.answer == value)[0])
        line = int(prints.line[place])
        tally = results[files[place]].tally
        tally.add("boilerplate", line, _("line {line}: {n} times").format(line=line, n=count))


def _sum_forms(results: Iterable[FileResult]) -> dict[str, Seen]:
    total: dict[str, Seen] = {}
    for result in results:
        for form, seen in result.forms.items():
            total.setdefault(form, Seen()).add(seen.count, [])
    return total


def _form(forms: dict[str, Seen]) -> str | None:
    if len(forms) > 1:
        return "mixed"
    return next(iter(forms), None)


def _token_figures(results: list[FileResult], max_length: int | None) -> dict[str, Any]:
    lengths = np.concatenate([np.zeros(0, np.int32), *(part for result in results for part in result.lengths)])
    kept = sum(result.kept for result in results)
    p50, p90, p99 = (
        (int(np.percentile(lengths, p, method="inverted_cdf")) for p in (50, 90, 99)) if len(lengths) else (0,) * 3
    )
    return {
        "count": int(lengths.sum()),
        "p50": p50,
        "p90": p90,
        "p99": p99,
        "max": int(lengths.max()) if len(lengths) else 0,
        "truncated_share": float((lengths > max_length).mean()) if max_length is not None and len(lengths) else 0.0,
        "trained_share": sum(result.trained for result in results) / kept if kept else 0.0,
    }
