"""The data of a run: read, split, tokenized once by rank 0 through TRL's own code, kept in the run folder.

A resume and the other ranks read what lies there, so all see the same rows in the same order. data.json is written
last: without it the folder is made anew.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
from accelerate import PartialState
from datasets import Dataset, Features, Json, List, Value, disable_progress_bars, load_from_disk
from datasets.exceptions import DatasetGenerationError
from trl import SFTConfig, SFTTrainer
from trl.chat_template_utils import get_training_chat_template, has_generation_markers

from engine.errors import FtuiError, UsageError
from engine.files import read_json, sha256_file, write_json
from engine.text import _
from engine.train import rows
from engine.train.job import Job

FORMAT = 1
# What tokenized rows depend on, besides the rows and the tokenizer.
SETTINGS = (
    "task", "dataset_path", "eval_dataset_path", "test_size", "seed", "max_length", "truncation_mode", "packing",
    "eval_packing", "packing_strategy", "assistant_only_loss", "completion_only_loss", "dataset_text_field",
    "shuffle_dataset", "eos_token", "chat_template_path",
)  # fmt: skip


def prepare(job: Job, arguments: SFTConfig, tokenizer: Any) -> dict[str, Any]:
    """Make the run's data folder unless it is there; the content of data.json. Rank 0 alone.

    Raises:
        UsageError: the data is missing, a row is broken, or the template cannot mask it.
    """
    folder = job.run.data
    settings = {key: job.recipe.get(key) for key in SETTINGS}
    document = read_json(folder / "data.json")
    if isinstance(document, dict) and document.get("format") == FORMAT and document.get("settings") == settings:
        return document
    if job.rank.resume_from is not None:
        raise FtuiError(
            _("the tokenized data of this run is gone, so it cannot go on with the same rows"),
            where=str(folder),
            fix=_("start a new run from the recipe"),
            kind="data_lost",
        )
    shutil.rmtree(folder, ignore_errors=True)
    work = folder / ".work"
    work.mkdir(parents=True)
    disable_progress_bars()
    try:
        document = _make(job, arguments, tokenizer, work)
    except DatasetGenerationError as error:
        if isinstance(error.__cause__, FtuiError):
            raise error.__cause__ from None
        raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
    document["settings"] = settings
    write_json(folder / "data.json", document)
    return document


def load(job: Job) -> tuple[Dataset, Dataset | None]:
    """The tokenized training and evaluation rows, mapped from the disk."""
    evaluation = job.run.data / "eval"
    return (
        load_from_disk(str(job.run.data / "train")),
        load_from_disk(str(evaluation)) if evaluation.is_dir() else None,
    )


def _make(job: Job, arguments: SFTConfig, tokenizer: Any, work: Path) -> dict[str, Any]:
    folder = job.run.data
    files = rows.locate(job)
    left_out = rows.LeftOut() if job.skip_bad_rows else None
    train = _read(job, files, work / "train", left_out)
    sources = _sources(files)
    held_out = 0.0
    if evaluation_path := job.get("eval_dataset_path"):
        eval_files = rows.resolve(str(evaluation_path))
        evaluation: Dataset | None = _read(job, eval_files, work / "eval", left_out)
        sources += _sources(eval_files)
    else:
        held_out = float(job.get("test_size", 0))
        train, evaluation = _split(train, held_out, int(arguments.seed))
    if evaluation is None and arguments.eval_strategy != "no":
        raise UsageError(
            _("the recipe asks for evaluations, but there is nothing to evaluate on"),
            where="eval_strategy",
            fix=_("set test_size or eval_dataset_path, or eval_strategy: no"),
            kind="no_eval_data",
        )
    if evaluation is not None:
        _write_rows(evaluation, folder / "held_out.jsonl")
    counts = {}
    for name, dataset in (("train", train), ("eval", evaluation)):
        if dataset is None:
            continue
        if job.task == "dpo":
            from engine.train.tasks import dpo

            with _no_barriers():
                ready, masked = dpo.tokenize(dataset, arguments, tokenizer, name), True
        else:
            packing = bool(arguments.packing)
            if name == "eval" and arguments.eval_packing is not None:
                packing = bool(arguments.eval_packing)
            ready, masked = _tokenize(
                dataset,
                arguments,
                tokenizer,
                only_assistant=job.recipe.get("assistant_only_loss"),
                packing=packing,
                name=name,
            )
        if not len(ready):
            raise UsageError(
                _("no row is left after tokenizing: in each the answer lies beyond max_length"),
                where="max_length",
                fix=_("raise max_length or shorten the rows"),
                kind="nothing_to_train",
            )
        ready.save_to_disk(str(folder / name))
        counts[name] = {
            "rows": len(dataset),
            "sequences": len(ready),
            "tokens": _tokens(folder / name),
            "assistant_only_loss": masked,
        }
    return {
        "format": FORMAT,
        "sources": sources,
        "data_sha256": hashlib.sha256("".join(source["sha256"] for source in sources).encode()).hexdigest(),
        "held_out_share": held_out,
        "left_out": {"rows": left_out.count, "first": left_out.first} if left_out else None,
        **counts,
    }


def _tokens(folder: Path) -> int:
    import pyarrow.compute as compute

    table = load_from_disk(str(folder)).data
    columns = [name for name in table.column_names if name.endswith("_ids")]  # one, or those of a pair of answers
    return sum(int(compute.sum(compute.list_value_length(table[name])).as_py()) for name in columns)


def _sources(files: list[Path]) -> list[dict[str, Any]]:
    return [{"path": str(file), "bytes": file.stat().st_size, "sha256": sha256_file(file)} for file in files]


def _read(job: Job, files: list[Path], cache: Path, left_out: rows.LeftOut | None) -> Dataset:
    """The rows of the files as a dataset on disk."""
    text_field, task = str(job.get("dataset_text_field", "text")), job.task
    first = next(rows.read(files, text_field, left_out and rows.LeftOut(), task), None)
    if first is None:
        raise UsageError(
            _("the training data holds no row that can be trained on"),
            where=", ".join(str(f) for f in files[:3]),
            fix=_("`ftui data check` says what is wrong with it"),
            kind="no_rows",
        )
    # Json: messages differ in their keys from row to row, which a fixed schema would fill up with nulls.
    kinds = {
        name: Value("string") if isinstance(value, str) else List(Json()) if isinstance(value, list) else Json()
        for name, value in first.values.items()
    }
    names = list(kinds)

    def generate() -> Iterator[dict[str, Any]]:
        for row in rows.read(files, text_field, left_out, task):
            yield {name: row.values.get(name) for name in names}

    return Dataset.from_generator(generate, features=Features(kinds), cache_dir=str(cache))


def _split(dataset: Dataset, test_size: float, seed: int) -> tuple[Dataset, Dataset | None]:
    if not test_size:
        return dataset, None
    if len(dataset) < 2:
        raise UsageError(
            _("one row cannot be split into training and evaluation"),
            where="test_size",
            fix=_("add rows, or set test_size: 0 and eval_strategy: no"),
            kind="too_few_rows",
        )
    size: float | int = int(test_size) if test_size >= 1 else test_size
    parts = dataset.train_test_split(test_size=size, seed=seed)
    return parts["train"], parts["test"]


def _write_rows(dataset: Dataset, path: Path) -> None:
    with open(path, "wb") as file:
        for row in dataset:
            file.write(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE))


@contextlib.contextmanager
def _no_barriers() -> Iterator[None]:
    """TRL lets the other ranks wait at a barrier of the training group; ours wait elsewhere, and longer."""
    original = PartialState.wait_for_everyone
    PartialState.wait_for_everyone = lambda self: None
    try:
        yield
    finally:
        PartialState.wait_for_everyone = original


def _tokenize(
    dataset: Dataset, arguments: SFTConfig, tokenizer: Any, *, only_assistant: bool | None, packing: bool, name: str
) -> tuple[Dataset, bool]:
    """Tokenize, mask, truncate, pack and shuffle as SFTTrainer does it in its constructor, without a model.

    Returns:
        The rows, and whether only the assistant's words count in them.
    """
    columns = dataset.column_names
    conversational = "messages" in columns or isinstance(dataset[0].get("prompt"), list)
    if conversational and not tokenizer.chat_template:
        raise UsageError(
            _("the tokenizer has no chat template, and the rows are conversations"),
            where="chat_template_path",
            fix=_("set chat_template_path to a .jinja file or to the tokenizer of the chat version of the model"),
            kind="no_chat_template",
        )
    arguments = copy.copy(arguments)
    arguments.assistant_only_loss, template = _assistant_mask(only_assistant, tokenizer, conversational)
    completion_only = arguments.completion_only_loss
    if completion_only is None:
        completion_only = "prompt" in columns and "completion" in columns
    trainer = SimpleNamespace(_tokenizer=tokenizer, chat_template=template, completion_only_loss=completion_only)
    with _no_barriers():
        ready = SFTTrainer._prepare_dataset(trainer, dataset, tokenizer, arguments, packing, None, name)
    kept = ready.select_columns([c for c in ("input_ids", "labels", "seq_lengths") if c in ready.column_names])
    return kept, arguments.assistant_only_loss


def _assistant_mask(wanted: bool | None, tokenizer: Any, conversational: bool) -> tuple[bool, str | None]:
    """Whether only the assistant's words count, and the template that marks them where the tokenizer's own does not.

    `wanted` None: where rows and template allow it.
    """
    if wanted is False or (wanted is None and not conversational):
        return False, None
    if not conversational:
        raise UsageError(
            _("assistant_only_loss needs conversations, and the rows are not"),
            where="assistant_only_loss",
            fix=_("set assistant_only_loss: false"),
            kind="conflict",
        )
    if has_generation_markers(tokenizer.chat_template):
        return True, None
    try:
        return True, get_training_chat_template(tokenizer)
    except ValueError as error:
        if wanted is None:
            return False, None
        raise UsageError(
            _("the chat template does not mark the assistant's words, so the loss cannot be limited to them"),
            where="assistant_only_loss",
            fix=_("set assistant_only_loss: false, or chat_template_path to a template with {% generation %} marks"),
            kind="template",
        ) from error
