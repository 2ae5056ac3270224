"""The checks of a recipe that look at the disk: model folder, data, template, output."""

from __future__ import annotations

import glob
import gzip
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

from engine.files import read_json
from engine.findings import Finding
from engine.recipe import hub, model_rules, paths
from engine.recipe.limits import KIND as NOT_YET
from engine.recipe.model import Loaded, Recipe
from engine.text import _
from engine.workspace import RunFolder

PLAIN_SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv")
DATA_SUFFIXES = (*PLAIN_SUFFIXES, *(p + z for p in PLAIN_SUFFIXES for z in (".gz", ".zst", ".bz2", ".xz")), ".parquet")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "spiece.model", "tekken.json")
WEIGHT_PATTERNS = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin", "pytorch_model.bin.index.json")
LENGTH_FIELDS = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "seq_length")
ROWS_LOOKED_AT = 20
ROW_LIMIT = 16 * 1024 * 1024  # a longer first line is left to the data's own check
# What a check may pass with a warning (the files may come later), and a run may not.
NEEDED_TO_RUN = frozenset((NOT_YET, "model_incomplete"))
ROWS_READ = "path"  # in `Finding.extra`: the data file whose row is wrong
LAST = 1 << 30  # findings without a line come behind those with one


def check(loaded: Loaded, *, run: bool = False) -> list[Finding]:
    """All findings about a recipe: those of loading it, and those that need the disk.

    Args:
        loaded: the recipe.
        run: a run is about to start: what a check lets pass with a warning, because it may still be put right
            (a model folder without weights, something that this version cannot do), becomes an error.
    """
    recipe = loaded.recipe
    found = list(loaded.findings)
    for part in (_required(loaded), _model(recipe), _data(recipe, loaded.path.parent), _files(recipe), _output(recipe)):
        found += part
    if run:
        found = [finding for finding in found if ROWS_READ not in finding.extra]  # a start reads them by itself
        for finding in found:
            if finding.kind in NEEDED_TO_RUN:
                finding.level = "error"
    return sorted(found, key=lambda finding: finding.lines[:1] or [LAST])


def _required(loaded: Loaded) -> Iterator[Finding]:
    """Keys without which there is nothing to train; not asked of a file that could not be read as a recipe."""
    recipe = loaded.recipe
    if not recipe.given and any(finding.level == "error" for finding in loaded.findings):
        return
    spoiled = {finding.key for finding in loaded.findings if finding.level == "error"}
    for key, meaning in (("model_name_or_path", _("the model")), ("dataset_path", _("the training data"))):
        if not recipe.get(key) and key not in spoiled:
            detail = _("the recipe does not name {meaning}: {key} is missing").format(meaning=meaning, key=key)
            fix = _("add {key}: … to the recipe, or {key}=… to the command").format(key=key)
            finding = recipe.finding("missing_key", "error", detail, fix, (key,))
            yield finding


def _model(recipe: Recipe) -> Iterator[Finding]:
    name = recipe.get("model_name_or_path")
    if isinstance(name, str) and name and paths.source("model_name_or_path", name) == "hub":
        yield from _hub(recipe, name)
    if not paths.is_path("model_name_or_path", name):
        return
    folder, keys = Path(name), ("model_name_or_path",)
    try:
        exists, is_folder, config_there = folder.exists(), folder.is_dir(), (folder / "config.json").is_file()
    except (OSError, ValueError) as error:
        yield _unreadable(recipe, "missing_model", keys, folder, error)
        return
    if not exists or not is_folder or not config_there:
        what = (
            _("there is no model folder {path}")
            if not exists
            else _("{path} is a file; a model is a folder")
            if not is_folder
            else _("{path} has no config.json: it is not a model folder")
        )
        fix = _("give the folder with config.json, tokenizer and weights, or a name on the hub")
        yield recipe.finding("missing_model", "error", what.format(path=folder), fix, keys)
        return
    config = read_json(folder / "config.json")
    if not isinstance(config, dict):
        detail = _("{path} is not JSON").format(path=folder / "config.json")
        yield recipe.finding("missing_model", "error", detail, _("copy the model again"), keys)
        return
    yield from _complete(recipe, folder)
    yield from _length(recipe, config)
    yield from model_rules.check(recipe, folder, config)


def _hub(recipe: Recipe, name: str) -> Iterator[Finding]:
    """A name on the hub: in the cache, or to be downloaded when the run starts."""
    keys = ("model_name_or_path",)
    revision = recipe.get("model_revision")
    found = list(hub.snapshots(name, None if revision in (None, "main") else str(revision)))
    if found:
        config = read_json(found[-1] / "config.json")
        yield from _length(recipe, config if isinstance(config, dict) else {})
        yield from model_rules.check(recipe, found[-1], config if isinstance(config, dict) else {})
    elif hub.offline():
        detail = _("{name} is no folder here, and not on this machine as a model of the hub; HF_HUB_OFFLINE is set")
        fix = _("give the model's folder, or unset HF_HUB_OFFLINE once and fetch it: `ftui model get {name}`")
        yield recipe.finding("missing_model", "error", detail.format(name=name), fix.format(name=name), keys)
    else:
        detail = _("{name} is no folder here: it will be downloaded from the hub, which must be reachable")
        fix = _("`ftui model get {name}` fetches it beforehand; a folder is written ./{name}")
        yield recipe.finding("model_not_here", "warning", detail.format(name=name), fix.format(name=name), keys)


def _complete(recipe: Recipe, folder: Path) -> Iterator[Finding]:
    """Tokenizer and weights. A folder without them can be checked, but not trained."""
    keys = ("model_name_or_path",)
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        detail = _("{path} has no tokenizer").format(path=folder)
        fix = _("copy tokenizer.json and tokenizer_config.json of the model into it")
        yield recipe.finding("model_incomplete", "warning", detail, fix, keys, "tokenizer")
    if not recipe.get("random_init") and not any(next(folder.glob(p), None) for p in WEIGHT_PATTERNS):
        detail = _("{path} has no weights (*.safetensors)").format(path=folder)
        yield recipe.finding(
            "model_incomplete", "warning", detail, _("copy the model's weights into it"), keys, "weights"
        )


def _length(recipe: Recipe, config: dict[str, Any]) -> Iterator[Finding]:
    """max_length against what the model was made for."""
    length = recipe.get("max_length")
    inner = config.get("text_config")
    for part in (config, inner if isinstance(inner, dict) else {}):
        for name in LENGTH_FIELDS:
            most = part.get(name)
            if isinstance(most, int) and not isinstance(most, bool) and most > 0:
                if isinstance(length, int) and length > most:
                    detail = _("max_length {length} > {name} {most} of the model").format(
                        length=length, name=name, most=most
                    )
                    fix = _("use max_length: {most} or less").format(most=most)
                    yield recipe.finding("max_length_over_model", "warning", detail, fix, ("max_length",))
                return


def _data(recipe: Recipe, folder: Path) -> Iterator[Finding]:
    for key in paths.DATA_KEYS:
        value = recipe.get(key)
        if not paths.is_path(key, value):
            continue
        try:
            yield from _dataset(recipe, folder, key, value)
        except (OSError, ValueError) as error:
            yield _unreadable(recipe, "dataset_unreadable", (key,), Path(value), error)


def _dataset(recipe: Recipe, folder: Path, key: str, value: str) -> Iterator[Finding]:
    files = _files_of(value)
    suffixes = ", ".join((*PLAIN_SUFFIXES, ".parquet"))
    if not files:
        path = Path(value)
        if path.is_dir():
            what, fix = _("{path} has no data files in it"), _("put {suffixes} files there").format(suffixes=suffixes)
        elif glob.has_magic(value):
            what, fix = _("nothing matches {path}"), _("check the pattern; ** goes into folders")
        else:
            what, fix = _("there is no {path}"), _relative(recipe, key)
            if "/" in (given := os.path.relpath(value, folder)) and paths.HUB_ID.match(given):
                fix = _("check the path; data from the hub is written hf://owner/name")
        yield recipe.finding("missing_dataset", "error", what.format(path=value), fix, (key,))
        return
    if all(file.stat().st_size == 0 for file in files):
        detail = _("{path} is empty").format(path=value)
        yield recipe.finding("empty_dataset", "error", detail, _("give data with rows in it"), (key,))
        return
    for file in files[:3]:
        with open(file, "rb"):  # says at once when it may not be read
            pass
        if problem := _first_rows(file):
            line, what = problem
            found = recipe.finding(
                "dataset_unreadable", "error", f"{file}:{line}: {what}", _("correct the row"), (key,)
            )
            found.extra[ROWS_READ] = str(file)
            yield found


def _relative(recipe: Recipe, key: str) -> str:
    if key in recipe.overrides:
        return _("check the path; on the command line it is relative to the current folder")
    return _("check the path; it is relative to the recipe file")


def _files_of(value: str) -> list[Path]:
    path = Path(value)
    if path.is_file():
        return [path]
    if path.is_dir():
        return [file for file in sorted(path.rglob("*")) if file.name.endswith(DATA_SUFFIXES) and file.is_file()]
    found = sorted(glob.glob(value, recursive=True))  # noqa: PTH207 (the pattern is absolute)
    return [Path(file) for file in found if Path(file).is_file()]


def _first_rows(file: Path) -> tuple[int, str] | None:
    """The first of the leading rows that is not a JSON object, as (line, what)."""
    if not file.name.endswith((".jsonl", ".jsonl.gz")):
        return None
    opener: Any = gzip.open if file.name.endswith(".gz") else open
    with opener(file, "rb") as stream:
        for number, line in enumerate(islice(iter(lambda: stream.readline(ROW_LIMIT), b""), ROWS_LOOKED_AT), 1):
            text = line.removeprefix(b"\xef\xbb\xbf").strip() if number == 1 else line.strip()
            if not text:
                continue
            if len(line) == ROW_LIMIT:
                return None
            try:
                row = orjson.loads(text)
            except ValueError:
                return number, _("this line is not JSON")
            if not isinstance(row, dict):
                return number, _("this line is not an object")
    return None


def _files(recipe: Recipe) -> Iterator[Finding]:
    """Other files that the recipe names."""
    for key in paths.FILE_KEYS:
        value = recipe.get(key)
        if key == "output_dir" or not paths.is_path(key, value):
            continue
        if not os.access(value, os.R_OK):
            detail = _("{key}: there is no readable {path}").format(key=key, path=value)
            yield recipe.finding("missing_file", "error", detail, _relative(recipe, key), (key,))


def _output(recipe: Recipe) -> Iterator[Finding]:
    """Where the result goes: not into a run folder, not over something else."""
    value = recipe.get("output_dir")
    if not isinstance(value, str) or not value:
        return
    path, keys = Path(value), ("output_dir",)
    try:
        yield from _place(recipe, path, keys)
    except (OSError, ValueError) as error:
        yield _unreadable(recipe, "output_unwritable", keys, path, error)


def _place(recipe: Recipe, path: Path, keys: tuple[str, ...]) -> Iterator[Finding]:
    for parent in (path, *path.parents):
        if RunFolder(parent).resolved.is_file() and RunFolder(parent).state.is_file():
            detail = _("output_dir lies inside the run folder {path}").format(path=parent)
            fix = _("choose a place outside, or delete it: the result is kept in the run folder anyway")
            yield recipe.finding("output_inside_run", "error", detail, fix, keys)
            return
    for key in ("model_name_or_path", "dataset_path"):
        other = recipe.get(key)
        if paths.is_path(key, other) and Path(other) == path:
            detail = _("output_dir and {key} are the same place").format(key=key)
            yield recipe.finding("conflict", "error", detail, _("choose another output_dir"), ("output_dir", key))
            return
    place = next(parent for parent in (path, *path.parents) if parent.exists())
    if not place.is_dir():
        detail = _("output_dir cannot be made: {path} is a file").format(path=place)
        yield recipe.finding("output_exists", "error", detail, _("choose another output_dir"), keys)
    elif place == path and any(path.iterdir()):
        detail = _("output_dir {path} is not empty, and nothing is overwritten").format(path=path)
        yield recipe.finding("output_exists", "error", detail, _("choose another, or move what is there"), keys)
    elif not os.access(place, os.W_OK | os.X_OK):
        detail = _("output_dir cannot be made: {path} is not writable").format(path=place)
        yield recipe.finding("output_unwritable", "error", detail, _("choose another output_dir"), keys)


def _unreadable(recipe: Recipe, kind: str, keys: tuple[str, ...], path: Path, error: Exception) -> Finding:
    reason = getattr(error, "strerror", None) or str(error)
    detail = _("{path} cannot be read: {reason}").format(path=path, reason=reason)
    return recipe.finding(kind, "error", detail, _("check the path and its permissions"), keys)
