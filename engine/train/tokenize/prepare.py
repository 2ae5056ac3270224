"""The data folder of a run: rows tokenized, split, packed and mapped by the ranks; data.json, written last."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import math
import shutil
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from engine.data import drops, training
from engine.errors import FtuiError, UsageError
from engine.files import read_json, sha256_file, write_json
from engine.text import _
from engine.train import rows, source
from engine.train.events import Events
from engine.train.job import Job
from engine.train.ranks import Ranks
from engine.train.tokenize import cache, packing, reading, text
from engine.train.tokenize.blocks import Pool, Work, cores
from engine.train.tokenize.encode import Spec
from engine.train.tokenize.packing import Sequences
from engine.train.tokenize.store import ArrowWriter, Scratch, batches, gather

FORMAT = 1
COMPARED = 4  # rows that the quick encoder and the tokenizer itself must encode alike
WORTH_PROCESSES = 4 << 20  # bytes of rows below which other processes take longer to start than they save
# What tokenized rows depend on, besides the rows and the tokenizer.
SETTINGS = (
    "dataset_path", "eval_dataset_path", "test_size", "seed", "max_length", "truncation_mode", "packing",
    "eval_packing", "packing_strategy", "assistant_only_loss", "completion_only_loss", "dataset_text_field",
    "shuffle_dataset", "eos_token", "chat_template_path", "task", "dataset_columns",
)  # fmt: skip
WHOLE = ("bfd_split", "wrapped")  # strategies that lose no token: what is too long goes on in the next sequence
PREFERENCE = ("prompt", "chosen", "rejected")


def made(job: Job) -> dict[str, Any] | None:
    """data.json of a run whose data is there, whole and made for this recipe."""
    document = read_json(job.run.data / "data.json")
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        return None
    then = document.get("settings")
    if not isinstance(then, dict) or any(job.recipe.get(key) != value for key, value in then.items()):
        return None
    return document


def prepare(job: Job, events: Events) -> dict[str, Any]:
    """Make the run's data folder unless it is there.

    Returns:
        The content of data.json.

    Raises:
        UsageError: the data is missing, a row is broken, or the template cannot mask it.
        FtuiError: the run was trained before, and its data is gone.
    """
    if (document := made(job)) is not None:
        return document
    folder = job.run.data
    if job.rank.resume_from is not None:
        raise FtuiError(
            _("the tokenized data of this run is gone, so it cannot go on with the same rows"),
            where=str(folder),
            fix=_("start a new run from the recipe"),
            kind="data_lost",
        )
    begin = time.monotonic()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    maker = _Maker(job, events)
    try:
        document = maker.make()
    finally:
        shutil.rmtree(maker.work, ignore_errors=True)
    document["settings"] = {key: job.recipe.get(key) for key in SETTINGS}
    write_json(folder / "data.json", document)
    if not document["cached"]:
        cache.keep(job.cache, maker.key, folder)
    told = {name: document[name] for name in ("train", "eval", "dropped", "truncated", "cached") if name in document}
    events.append("data", seconds=round(time.monotonic() - begin, 2), **told)
    return document


class _Maker:
    """Makes one data folder."""

    def __init__(self, job: Job, events: Events) -> None:
        self.job = job
        self.events = events
        self.work = job.run.data / ".work"
        self.key = ""
        self.left_out = rows.LeftOut() if job.skip_bad_rows else None
        self.task = job.task
        self.text_field = str(job.get("dataset_text_field", "text"))
        self.how = training.How(dict(job.get("dataset_columns", {})), drops.read(job.cache.parent))
        self.seed = int(job.get("seed", 42))
        self.strategy = str(job.get("packing_strategy", "bfd"))
        self.max_length: int | None = job.recipe.get("max_length")
        packed = bool(job.get("packing", False)) and self.task != "dpo"
        evaluated_packed = job.recipe.get("eval_packing")
        self.packed = {"train": packed, "eval": packed if evaluated_packed is None else bool(evaluated_packed)}
        self.whole = any(self.packed.values()) and self.strategy in WHOLE

    def make(self) -> dict[str, Any]:
        """Tokenize, or take what an earlier run left in the cache."""
        job = self.job
        train_files = rows.locate(job)
        eval_path = job.get("eval_dataset_path")
        eval_files = rows.resolve(str(eval_path), job.cache) if eval_path else []
        if source.to_come(job) == "builtin":
            self.events.append("phase", phase="load", doing="builtin")
        path = source.locate(job, Ranks(dataclasses.replace(job.rank, world_size=1)))
        self.events.append("phase", phase="prepare", doing="data")
        sources = [
            {"path": str(file), "bytes": file.stat().st_size, "sha256": sha256_file(file)}
            for file in (*train_files, *eval_files)
        ]
        tokenizer = source.load_tokenizer(job, path)
        samples = self._samples(train_files)
        first = samples[0]
        conversational = "messages" in first or isinstance(first.get("prompt"), list)
        cut_here = None if self.whole else self.max_length
        spec = text.spec_of(job, tokenizer, conversational=conversational, max_length=cut_here)
        self.key = self._key(sources, spec, len(train_files))
        if (found := cache.take(job.cache, self.key, job.run.data)) is not None:
            return {**found, "sources": sources, "cached": True}
        encoder = text.encoder_for(spec, tokenizer, samples)
        quick = not isinstance(encoder, text.Reference)
        size = sum(entry["bytes"] for entry in sources)
        workers = int(job.get("dataset_num_proc", 0)) or (cores() if size >= WORTH_PROCESSES else 1)
        share = 0.0 if eval_files else float(job.get("test_size", 0))
        work = Work(spec, self.seed, share > 0, self.how)
        with Pool(work, workers if quick else 1, encoder) as pool:
            train, form = self._read(train_files, "train", pool)
            evaluation = self._read(eval_files, "eval", pool, form)[0] if eval_files else None
        return {
            "format": FORMAT,
            "sources": sources,
            "data_sha256": hashlib.sha256("".join(entry["sha256"] for entry in sources).encode()).hexdigest(),
            "held_out_share": share,
            "encoder": "workers" if quick else "tokenizer",
            "truncated": train.truncated,
            "dropped": train.dropped,
            **self._write(train, evaluation, share, spec.assistant_only),
            "left_out": {"rows": self.left_out.count, "first": self.left_out.first} if self.left_out else None,
            "cached": False,
        }

    def _samples(self, files: list[Path]) -> list[dict[str, Any]]:
        """The first rows that can be trained on."""
        tolerant = rows.LeftOut() if self.left_out is not None else None
        found = rows.read(files, self.text_field, tolerant, self.task, self.how)
        samples = [row.values for row in itertools.islice(found, COMPARED)]
        if not samples:
            raise UsageError(
                _("the training data holds no row that can be trained on"),
                where=", ".join(str(file) for file in files[:3]),
                fix=_("`ftui data check` says what is wrong with it"),
                kind="no_rows",
            )
        return samples

    def _key(self, sources: list[dict[str, Any]], spec: Spec, of_training: int) -> str:
        """A hash of everything that the data folder depends on, wherever the files lie."""
        paths = ("dataset_path", "eval_dataset_path", "chat_template_path")
        parts = {
            "format": FORMAT,
            "settings": {key: self.job.recipe.get(key) for key in SETTINGS if key not in paths},
            "sources": [entry["sha256"] for entry in sources],
            "of_training": of_training,
            "spec": dataclasses.asdict(spec),
            "versions": [metadata.version(name) for name in ("tokenizers", "transformers", "finetune-tui")],
            "left_out": self.left_out is not None,
            "dropped": sorted(self.how.dropped),
        }
        return hashlib.sha256(orjson.dumps(parts, option=orjson.OPT_SORT_KEYS)).hexdigest()

    def _read(
        self, files: list[Path], name: str, pool: Pool, form: str | None = None
    ) -> tuple[reading.Source, str | None]:
        columns = dict.fromkeys(PREFERENCE, np.int32) if self.task == "dpo" else {"ids": np.int32, "trained": np.bool_}

        def tell(count: int, share: float) -> None:
            self.events.append("tokenizing", of=name, rows=count, share=round(share, 4))

        scratch = Scratch(self.work / name, columns)
        found, form = reading.read(files, scratch, pool, self.left_out, tell, form)
        if not len(found):
            raise UsageError(
                _("no row is left after tokenizing: in each the answer lies beyond max_length"),
                where="max_length",
                fix=_("raise max_length or shorten the rows"),
                kind="nothing_to_train",
            )
        return found, form

    def _write(
        self, train: reading.Source, evaluation: reading.Source | None, share: float, assistant_only: bool
    ) -> dict[str, Any]:
        """Write the rows of both sides; their counts."""
        every = np.arange(len(train))
        held_out = every[:0]
        if evaluation is None and share:
            held_out = np.sort(_held_out(train, share))
        if evaluation is None and not len(held_out) and self.job.get("eval_strategy", "no") != "no":
            raise UsageError(
                _("the recipe asks for evaluations, but there is nothing to evaluate on"),
                where="eval_strategy",
                fix=_("set test_size or eval_dataset_path, or eval_strategy: no"),
                kind="no_eval_data",
            )
        sides = {"train": (train, np.setdiff1d(every, held_out, assume_unique=True))}
        if evaluation is not None:
            sides["eval"] = (evaluation, np.arange(len(evaluation)))
        elif len(held_out):
            sides["eval"] = (train, held_out)
        counts = {}
        masked = assistant_only or self.task == "dpo"
        for name, (side, chosen) in sides.items():
            writer = self._write_pairs if self.task == "dpo" else self._write_sequences
            counts[name] = {"rows": len(chosen), **writer(name, side, chosen), "assistant_only_loss": masked}
        if "eval" in sides:
            self._write_rows(*sides["eval"])
        return counts

    def _write_sequences(self, name: str, side: reading.Source, chosen: Any) -> dict[str, Any]:
        ids, trained = side.scratch.values("ids"), side.scratch.values("trained")
        sizes = side.scratch.lengths("ids")
        begins = (np.cumsum(sizes) - sizes)[chosen]
        sequences = self._sequences(name, begins, sizes[chosen], trained)
        packed = self.packed[name]
        apart = packed and self.strategy != "wrapped"
        columns = ("input_ids", "labels", "seq_lengths") if apart else ("input_ids", "labels")
        writer = ArrowWriter(self.job.run.data / name, columns, f"{self.key[:15]}{name[0]}")
        learned = 0
        for batch in batches(sequences):
            values = gather(ids, batch.begins, batch.lengths)
            targets = reading.labels(values, gather(trained, batch.begins, batch.lengths))
            if packed:  # nothing before it in its row says what a row begins with
                targets[np.cumsum(batch.lengths) - batch.lengths] = reading.IGNORED
            learned += int((targets != reading.IGNORED).sum())
            first_pieces = np.cumsum(batch.counts) - batch.counts
            lengths = np.add.reduceat(batch.lengths, first_pieces)
            writer.write(
                {
                    "input_ids": (values, lengths),
                    "labels": (targets, lengths),
                    "seq_lengths": (batch.lengths.astype(np.int32), batch.counts),
                }
            )
        writer.close()
        return {
            "sequences": len(sequences),
            "tokens": sequences.tokens,
            "trained_tokens": learned,
            "packed": packed,
            "fill": round(sequences.tokens / (len(sequences) * (self.max_length or 1)), 4) if packed else None,
        }

    def _sequences(self, name: str, begins: Any, lengths: Any, trained: Any) -> Sequences:
        """Which rows make which sequences, in what order."""
        longest = self.max_length
        if self.job.get("shuffle_dataset", False):
            order = np.random.default_rng(self.seed).permutation(len(begins))
            begins, lengths = begins[order], lengths[order]
        if not self.packed[name]:
            if self.whole and longest is not None:
                keep_end = self.job.get("truncation_mode") == "keep_end"
                begins, lengths = reading.cut(begins, lengths, trained, longest, keep_end=keep_end)
            return packing.single(begins, lengths)
        if longest is None:
            raise UsageError(
                _("packing fills sequences of max_length, which is null"),
                where="max_length",
                fix=_("give max_length"),
                kind="conflict",
            )
        if self.strategy == "wrapped":
            return packing.wrapped(begins, lengths, longest)
        if self.strategy == "bfd_split":
            begins, lengths = packing.split(begins, lengths, longest)
        return packing.best_fit(begins, lengths, longest)

    def _write_pairs(self, name: str, side: reading.Source, chosen: Any) -> dict[str, Any]:
        scratch = side.scratch
        sizes = {column: scratch.lengths(column) for column in PREFERENCE}
        writer = ArrowWriter(self.job.run.data / name, [f"{c}_ids" for c in PREFERENCE], f"{self.key[:15]}{name[0]}")
        step = 4096
        for first in range(0, len(chosen), step):
            some = chosen[first : first + step]
            columns = {}
            for column, lengths in sizes.items():
                begins = (np.cumsum(lengths) - lengths)[some]
                columns[f"{column}_ids"] = (gather(scratch.values(column), begins, lengths[some]), lengths[some])
            writer.write(columns)
        writer.close()
        total = int(sum(int(lengths[chosen].sum()) for lengths in sizes.values()))
        return {"sequences": len(chosen), "tokens": total}

    def _write_rows(self, side: reading.Source, chosen: Any) -> None:
        with open(self.job.run.data / "held_out.jsonl", "wb") as file:
            for row in side.rows_again(chosen, self.text_field, self.task, self.how):
                file.write(_line(row))


def _held_out(train: reading.Source, share: float) -> Any:
    """Which rows are kept for evaluation: by their content and the seed, so that a row keeps its side.

    Raises:
        UsageError: there are too few rows for both sides.
    """
    total = len(train)
    wanted = math.ceil(share * total) if share < 1 else int(share)
    if total < 2 or wanted >= total:
        raise UsageError(
            _("{rows} rows cannot be split into training and {wanted} for evaluation").format(
                rows=total, wanted=wanted
            ),
            where="test_size",
            fix=_("add rows, or set test_size: 0 and eval_strategy: no"),
            kind="too_few_rows",
        )
    return np.argsort(train.key_numbers(), kind="stable")[:wanted]


def _line(row: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)
    except orjson.JSONEncodeError:  # a number of more than 64 bits
        import json

        return json.dumps(row).encode() + b"\n"
