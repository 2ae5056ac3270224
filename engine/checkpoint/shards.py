"""Checkpoints in several parts: index files, the folders of torch.distributed.checkpoint, shapes that must agree."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from engine.checkpoint import layout, pickles, torchfiles
from engine.checkpoint.problems import Problems
from engine.checkpoint.tensors import Tensor
from engine.checkpoint.tree import File
from engine.findings import Level
from engine.text import _

_LORA_A = re.compile(r"\.lora_(embedding_)?A(\.|\Z)")
_EMBEDDING = re.compile(r"(\A|\.)(embed_tokens|lm_head)\.weight\Z")
CONFIGS = ("config.json", "adapter_config.json")  # what the weights' shapes follow from
Tensors = Mapping[str, list[Tensor] | None]


def check_index(name: str, index: Any, files: Mapping[str, File], tensors: Tensors, problems: Problems) -> None:
    """Compare an index with the parts that it names.

    Args:
        name: the index file.
        index: its content.
        files: the checkpoint's files.
        tensors: the tensors of each part; None for one that cannot be read.
        problems: takes what does not fit.
    """
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(part, str) for part in weight_map.values()):
        problems.add("bad_json", "error", _("it has no weight_map"), name)
        return
    folder = name.rpartition("/")[0]
    keys: dict[str, list[str]] = {}
    for key, part in weight_map.items():
        keys.setdefault(part, []).append(key)
    for part, wanted in sorted(keys.items()):
        path = PurePosixPath(part)
        if path.is_absolute() or ".." in path.parts:
            problems.add(
                "bad_json", "error", _("it names a file outside of the checkpoint: {file}").format(file=part), name
            )
            continue
        full = f"{folder}/{part}" if folder else part
        if full not in files:
            problems.add("missing_shard", "error", _("{file} is missing").format(file=full), full)
            continue
        found = tensors.get(full)
        if found is None:
            continue  # said already
        if not full.endswith(".safetensors"):
            continue  # in a file of torch.save two names may share one storage, and only the first is known
        have = {tensor.name for tensor in found}
        for key in wanted:
            if key not in have:
                detail = _("{key} is not in {file}").format(key=key[:160], file=full)
                problems.add("index_key_not_in_shard", "error", detail, full)


Spans = dict[str, list[tuple[str, int, int]]]


def check_dcp(files: Mapping[str, File], problems: Problems) -> Spans:
    """Compare each folder of torch.distributed.checkpoint with its .metadata: are all parts there, and long enough.

    Returns:
        What lies where in each part that is whole: (name, begin, size).
    """
    spans: Spans = {}
    for folder in layout.dcp_folders(files):
        name = f"{folder}/.metadata"
        metadata = files.get(name)
        if metadata is None:
            problems.add("missing_file", "error", _("{file} is missing").format(file=name), name)
            continue
        if not metadata.size:
            continue  # said already
        parts = _parts(metadata, name, problems)
        for part, inside in sorted(parts.items()):
            full = f"{folder}/{part}"
            file = files.get(full)
            end = max(begin + size for _name, begin, size in inside)
            if file is None:
                problems.add("missing_shard", "error", _("{file} is missing").format(file=full), full)
            elif 0 < file.size < end:
                detail = _("{n} bytes are missing at its end").format(n=end - file.size)
                problems.add("truncated_shard", "error", detail, full)
            elif file.size:
                spans[full] = inside
    return spans


def _parts(metadata: File, name: str, problems: Problems) -> Spans:
    """The parts that a .metadata names, each with what lies in it."""
    if metadata.size > pickles.LIMIT:
        return {}
    data = metadata.path.read_bytes()
    scan = pickles.scan(data)
    torchfiles.judge(scan, name, problems)
    root = None if scan.error else pickles.structure(data)
    storage = root.get("storage_data") if isinstance(root, pickles.Inert) else None
    if not isinstance(storage, dict):
        problems.add("truncated_shard", "error", _("it cannot be read"), name)
        return {}
    parts: Spans = {}
    for index, info in storage.items():
        if not isinstance(info, pickles.Inert):
            continue
        part, offset, length = info.get("relative_path"), info.get("offset"), info.get("length")
        key = index.get("fqn") if isinstance(index, pickles.Inert) else None
        if isinstance(part, str) and isinstance(offset, int) and isinstance(length, int) and ".." not in part:
            parts.setdefault(part, []).append((str(key), offset, length))
    return parts


def check_shapes(name: str, tensors: list[Tensor], configs: Mapping[str, Any], problems: Problems) -> None:
    """Report zero-size tensors and shapes that contradict each other or the configuration beside them."""
    shapes = {tensor.name: tensor.shape for tensor in tensors}
    empty = [tensor for tensor in tensors if tensor.size == 0 or 0 in tensor.shape]
    for tensor in empty:
        detail = _("{tensor} is empty: shape {shape}").format(tensor=tensor.name[:160], shape=list(tensor.shape)[:8])
        problems.add("empty_tensor", "error", detail, name)
    folder = name.rpartition("/")[0]
    adapter = configs.get(f"{folder}/adapter_config.json" if folder else "adapter_config.json")
    if isinstance(adapter, dict):
        _lora(name, shapes, adapter, problems)
    elif isinstance(config := configs.get("config.json"), dict):
        _against_config(name, shapes, config, problems)


def _lora(name: str, shapes: Mapping[str, tuple[int, ...]], config: Mapping[str, Any], problems: Problems) -> None:
    rank = config.get("r")
    if config.get("rank_pattern") or not isinstance(rank, int) or rank < 1:
        rank = None
    for key, shape in shapes.items():
        if not _LORA_A.search(key) or len(shape) < 2 or 0 in shape:
            continue
        other = shapes.get(re.sub(r"\.lora_(embedding_)?A(\.|\Z)", r".lora_\1B\2", key))
        if other is not None and len(other) >= 2 and 0 not in other and other[1] != shape[0]:
            detail = _("{tensor}: shapes {a} and {b} do not fit each other")
            detail = detail.format(tensor=key[:160], a=list(shape)[:4], b=list(other)[:4])
            problems.add("shape_mismatch", "error", detail, name)
        elif rank and (shape[0] % rank or (shape[0] != rank and not config.get("target_parameters"))):
            detail = _("{tensor} has rank {have}, adapter_config.json says {want}")
            problems.add("shape_mismatch", "error", detail.format(tensor=key[:160], have=shape[0], want=rank), name)


def _against_config(
    name: str, shapes: Mapping[str, tuple[int, ...]], config: Mapping[str, Any], problems: Problems
) -> None:
    text = config.get("text_config")
    hidden = (text if isinstance(text, dict) else config).get("hidden_size")
    for key, shape in shapes.items():
        if _EMBEDDING.search(key) and len(shape) == 2 and isinstance(hidden, int) and shape[1] not in (hidden, 0):
            detail = _("{tensor} has width {have}, config.json says {want}")
            problems.add("shape_mismatch", "error", detail.format(tensor=key[:160], have=shape[1], want=hidden), name)


def compare_shapes(
    shapes: Mapping[str, tuple[int, ...]],
    before: Mapping[str, tuple[int, ...]],
    other: str,
    level: Level,
    problems: Problems,
) -> None:
    """Report tensors whose shape is another one than in the checkpoint `other` of the same folder."""
    for key, shape in shapes.items():
        if key in before and before[key] != shape and 0 not in shape:
            detail = _("{tensor} is {a} here and {b} in {other}")
            detail = detail.format(tensor=key[:160], a=list(shape)[:8], b=list(before[key])[:8], other=other)
            problems.add("shape_mismatch", level, detail)
