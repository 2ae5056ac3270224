"""`prepare`: clean, drop duplicates, mask personal data, split, and report. Same input, same output, byte for byte.

The files are read twice: once by the check, which knows of each row what it needs to choose, and once to write what was
chosen. The result appears whole or not at all, and the original files are only read.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
import orjson

from engine.data import border, drops, duplicates, forms, reader, report, sources, split, suggest, tokens, turns
from engine.data.check import FileResult, check_files
from engine.data.clean import CHAT_FORMS, cleaned
from engine.data.duplicates import Prints
from engine.data.masks import LEFT, Masker
from engine.data.tally import Tally
from engine.data.worker import Options, can_be_kept
from engine.errors import FtuiError, UsageError
from engine.files import fsync_dir, sha256_file, write_atomic
from engine.text import _

FORMAT = 1
GROUP_COLUMNS = ("conversation_id", "dialog_id", "dialogue_id", "thread_id", "session_id", "group")
SOURCE_COLUMNS = ("source", "dataset", "origin")


@dataclass
class Wishes:
    """What to prepare and how."""

    files: Sequence[str]
    held_out: Sequence[str] = ()
    share: float = 0.05
    seed: int = 42
    privacy: str = "mask"  # or "drop", "keep"
    drop_near: bool = True
    columns: dict[str, str] = field(default_factory=dict)
    model: str | None = None  # counts tokens, for the advice
    main_form: bool = False  # of rows that cannot be trained together, take the more frequent ones
    dropped: frozenset[str] = frozenset()  # rows marked as dropped (`drops.read`)
    country: str | None = None  # where this server stands
    statement: dict[str, str] = field(default_factory=dict)  # source, license and right to train, as the user says


@dataclass(slots=True)
class _Row:
    """What is known of a row between the two readings."""

    file: int
    place: int  # among the rows of its file that can be kept
    group: str = ""  # rows of one group stay on one side
    dropped: str | None = None
    evaluation: bool = False


def prepare(wishes: Wishes, out: Path) -> dict[str, Any]:
    """Write train.jsonl, eval.jsonl, report.json and report.md into the new folder `out`.

    Returns:
        The report, as in report.json.

    Raises:
        UsageError: the data cannot be read or trained on, or `out` is there already.
        FtuiError: the disk is full, or the result cannot be written.
    """
    if os.path.lexists(out):
        raise UsageError(
            _("{path} is there already, and nothing is overwritten").format(path=out),
            where=str(out),
            fix=_("choose another --out, or delete it"),
            kind="exists",
        )
    train_files = sources.resolve(list(wishes.files))
    eval_files = sources.resolve(list(wishes.held_out)) if wishes.held_out else []
    before = _hashes([*train_files, *eval_files])
    options = Options(wishes.columns, wishes.model, dropped=wishes.dropped)
    train, evaluation = check_files(train_files, eval_files, options)
    kind = _kind_of_rows([*train, *evaluation], main_form=wishes.main_form)
    chat = kind == "chat" and any(form in CHAT_FORMS for result in [*train, *evaluation] for form in result.forms)
    rows = _chosen(train, evaluation, wishes)
    staging = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        staging.mkdir(parents=True)
        counts = _write(rows, [*train_files, *eval_files], len(train_files), wishes, staging, (kind, chat))
        if _hashes([*train_files, *eval_files]) != before:
            raise UsageError(
                _("the data changed while it was prepared"),
                fix=_("prepare it again when nothing writes to it any more"),
                kind="file_changed",
            )
        document = _document(wishes, before, [*train, *evaluation], counts, staging)
        write_atomic(staging / "report.json", orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS))
        write_atomic(staging / "report.md", report.markdown(document).encode())
        staging.rename(out)
        fsync_dir(out.parent)
    except OSError as error:
        raise FtuiError(
            _("the prepared data cannot be written: {reason}").format(reason=error.strerror or error),
            where=str(out),
            fix=_("free space there, or choose another --out"),
            kind="unwritable",
        ) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return document


def _hashes(files: list[Path]) -> list[dict[str, Any]]:
    try:
        return [{"path": str(f), "bytes": f.stat().st_size, "sha256": sha256_file(f)} for f in files]
    except OSError as error:
        raise sources.cannot_read(Path(error.filename or files[0]), error) from error


def _kind(form: str) -> str:
    """Forms of one kind can be trained together."""
    return "chat" if form in CHAT_FORMS | {"prompt_completion"} else form


def _kind_of_rows(results: list[FileResult], *, main_form: bool) -> str:
    """The kind that all rows have, or with `main_form` the most.

    Raises:
        UsageError: there are no rows, or they are of forms that cannot be trained together.
    """
    found = {form for result in results for form in result.forms}
    if not sum(result.usable for result in results):
        raise UsageError(
            _("there is no row that can be trained on"),
            where=", ".join(str(result.path) for result in results[:3]),
            fix=_("`ftui data check` says what is wrong with them"),
            kind="no_rows",
        )
    kinds = Counter[str]()
    for result in results:
        for form, seen in result.forms.items():
            kinds[_kind(form)] += seen.count
    if len(kinds) > 1 and not main_form:
        raise UsageError(
            _("rows of these forms cannot be trained together: {forms}").format(forms=", ".join(sorted(found))),
            fix=_("prepare the files of each form by themselves"),
            kind="mixed_formats",
        )
    return kinds.most_common(1)[0][0]


def _chosen(train: list[FileResult], evaluation: list[FileResult], wishes: Wishes) -> list[_Row]:
    """All rows that can be kept, with the reason where one is dropped after all: a duplicate, or a leak."""
    counts = [sum(len(part.line) for part in result.prints) for result in [*train, *evaluation]]
    ours = Prints.join([part for result in train for part in result.prints])
    theirs = Prints.join([part for result in evaluation for part in result.prints])
    rows = [_Row(file, place) for file, count in enumerate(counts) for place in range(count)]
    first = len(ours.line)
    for prints, start in ((ours, 0), (theirs, first)):
        exact = duplicates.repeats(prints.exact)
        for place in np.flatnonzero(exact >= 0):
            rows[start + place].dropped = "duplicate"
        near = duplicates.near(prints, exact) if wishes.drop_near else np.full(len(exact), -1)
        for place in np.flatnonzero(near >= 0):
            # Of a chain of rows each like the last, those go that are like one which stays.
            other = near[place]
            if rows[start + other].dropped is None or prints.normal[other] == prints.normal[place]:
                rows[start + place].dropped = "near_duplicate"
    for row in rows[first:]:
        row.evaluation = True
    if len(theirs.line) and len(ours.line):
        leaks = duplicates.overlap(theirs, ours)  # the rows for evaluation win
        for place in np.flatnonzero((leaks.same >= 0) | (leaks.alike >= 0)):
            rows[place].dropped = rows[place].dropped or "train_eval_overlap"
    for row, prompt, normal in zip(rows[:first], ours.prompt, ours.normal, strict=True):
        row.group = f"{int(prompt) or int(normal):016x}"
    return rows


def _write(
    rows: list[_Row], files: list[Path], train_count: int, wishes: Wishes, staging: Path, form: tuple[str, bool]
) -> dict[str, Any]:
    """Write both files; what was done, in numbers."""
    kept: list[tuple[str, str]] = []
    with open(staging / ".rows", "wb") as spooled:
        dropped, masked = _clean(rows, files, wishes, form, spooled, kept)
    is_eval = [row.evaluation for row in rows if row.dropped is None]
    if train_count == len(files) and wishes.share:
        is_eval = split.held_out([g for g, _s in kept], [s for _g, s in kept], wishes.share, wishes.seed)
    written = Counter[str]()
    by_source: dict[str, Counter[str]] = {}
    with contextlib.ExitStack() as stack:
        spool = stack.enter_context(open(staging / ".rows", "rb"))
        train = stack.enter_context(open(staging / "train.jsonl", "wb"))
        evaluation = stack.enter_context(open(staging / "eval.jsonl", "wb"))
        for line, held, (_group, source) in zip(spool, is_eval, kept, strict=True):
            (evaluation if held else train).write(line)
            side = "eval" if held else "train"
            written[side] += 1
            by_source.setdefault(source, Counter())[side] += 1
        for file in (train, evaluation):
            file.flush()
            os.fsync(file.fileno())
    (staging / ".rows").unlink()
    if not written["eval"]:
        (staging / "eval.jsonl").unlink()
    if not written["train"]:
        raise UsageError(
            _("no row is left to train on"), fix=_("look at the numbers of `ftui data check`"), kind="no_rows"
        )
    return {"dropped": dropped, "masked": masked, "written": written, "by_source": by_source}


def _clean(
    rows: list[_Row],
    files: list[Path],
    wishes: Wishes,
    form: tuple[str, bool],
    spool: IO[bytes],
    kept: list[tuple[str, str]],
) -> tuple[Counter[str], Counter[str]]:
    """Write the rows that stay, cleaned and masked, in their order, and note each one's group and source."""
    dropped: Counter[str] = Counter(row.dropped for row in rows if row.dropped)
    masked: Counter[str] = Counter()
    at = 0
    kind, chat = form
    for file in range(len(files)):
        for value in _usable(files[file], wishes):
            row = rows[at] if at < len(rows) else None
            if row is None or row.file != file:
                raise UsageError(
                    _("the data changed while it was prepared"), where=str(files[file]), kind="file_changed"
                )
            at += 1
            if row.dropped:
                continue
            if _kind(value.row.form) != kind:
                row.dropped = "other_form"
                dropped["other_form"] += 1
                continue
            result = cleaned(value.row, chat=chat)
            masker = Masker()
            covered = masker.row(result)
            if masker.counts and wishes.privacy == "drop":
                row.dropped = "privacy"
                dropped["privacy"] += 1
                continue
            masked += masker.counts
            spool.write(orjson.dumps(covered if wishes.privacy == "mask" else result, option=orjson.OPT_APPEND_NEWLINE))
            kept.append((value.group or row.group, value.source))
    return dropped, masked


@dataclass
class _Usable:
    row: forms.Row
    group: str
    source: str


def _usable(path: Path, wishes: Wishes) -> Iterator[_Usable]:
    """The rows of a file that the check found fit, again and in the same order."""

    def say(*_words: str, **_more: str) -> None:
        return None

    for _line, value in reader.values(reader.blocks(path, Tally())):
        if not isinstance(value, dict) or (wishes.dropped and drops.key(value) in wishes.dropped):
            continue
        renamed = forms.rename(value, wishes.columns) if wishes.columns else value
        form, _used = forms.recognize(renamed)
        if not form:
            continue
        row = forms.make_row(renamed, form, say)
        turns.check(row, say)
        if can_be_kept(row):
            yield _Usable(row, _named(value, GROUP_COLUMNS), _named(value, SOURCE_COLUMNS))


def _named(value: dict[str, Any], names: tuple[str, ...]) -> str:
    for name in names:
        if isinstance(value.get(name), str | int):
            return f"{name}={value[name]}"
    return ""


def _document(
    wishes: Wishes, files: list[dict[str, Any]], results: list[FileResult], counts: dict[str, Any], staging: Path
) -> dict[str, Any]:
    outputs = [
        {"path": f.name, "bytes": f.stat().st_size, "sha256": sha256_file(f), "rows": counts["written"][f.stem]}
        for f in sorted(staging.glob("*.jsonl"))
    ]
    by_hand = sum(
        entry.count
        for result in results
        for (kind, _sub), entry in result.tally.entries.items()
        if kind == "dropped_row"
    )
    personal = {kind: n for kind, n in counts["masked"].items() if kind.partition(".")[2] not in LEFT}
    return {
        "format": FORMAT,
        "inputs": files,
        "settings": {
            "test_size": wishes.share, "seed": wishes.seed, "privacy": wishes.privacy, "columns": wishes.columns,
            "near_duplicate_threshold": duplicates.THRESHOLD if wishes.drop_near else None,
            "eval": list(wishes.held_out),
        },
        "rows": {
            "read": sum(result.rows for result in results),
            "unusable": sum(result.rows - result.usable for result in results) - by_hand,
            "dropped": dict(sorted({**counts["dropped"], **({"by_hand": by_hand} if by_hand else {})}.items())),
            "train": counts["written"]["train"],
            "eval": counts["written"]["eval"],
        },
        "by_source": {source: dict(n) for source, n in sorted(counts["by_source"].items()) if source},
        "personal_data": dict(sorted(personal.items())),
        "border": border.crossed(personal, wishes.country),
        "findings": [
            {
                "kind": f.kind, "subtype": f.subtype, "level": f.level, "count": f.count, "file": f.extra["file"],
                "detail": f.detail,
            }
            for result in results
            for f in result.tally.findings(str(result.path))
        ],
        "tokens": _tokens(results, wishes.model),
        "statement": {name: wishes.statement.get(name, "") for name in ("source", "license", "right_to_train")},
        "outputs": outputs,
        "forms": dict(sorted(_forms(results).items())),
    }  # fmt: skip


def _tokens(results: list[FileResult], model: str | None) -> dict[str, Any] | None:
    """How long the rows are in tokens, and what that suggests for a recipe."""
    if model is None:
        return None
    lengths = np.concatenate([np.zeros(0, np.int32), *(part for result in results for part in result.lengths)])
    advice = suggest.advise(lengths, tokens.load(model).max_length)
    if advice is None:
        return None
    p50, p90, p99 = (int(np.percentile(lengths, share, method="inverted_cdf")) for share in (50, 90, 99))
    figures = {"count": int(lengths.sum()), "p50": p50, "p90": p90, "p99": p99, "max": int(lengths.max())}
    return {**figures, "cut": advice.cut, "filled": advice.filled, "suggested": advice.changes()}


def _forms(results: list[FileResult]) -> Counter[str]:
    return Counter({form: seen.count for result in results for form, seen in result.forms.items()})
