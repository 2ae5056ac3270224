"""The base model: where it is, and which tensors lie in which of its files."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.files import read_json
from engine.merge.report import Report
from engine.merge.tensors import FLOATS, Ref, read_file
from engine.text import _

INDEX = "model.safetensors.index.json"
_PART = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<total>\d{5})\.safetensors\Z")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?\Z")
_COMMIT = re.compile(r"[0-9a-f]{40}\Z")
_HEADS = ("lm_head.weight", "embed_out.weight")
_EMBEDDINGS = (
    "embed_tokens.weight",
    "wte.weight",
    "embed_in.weight",
    "word_embeddings.weight",
    "tok_embeddings.weight",
)


@dataclass
class Shard:
    """One file of weights; its tensors in the order of their bytes."""

    name: str
    tensors: dict[str, Ref]


@dataclass
class Base:
    """A model's folder as its headers tell it."""

    folder: Path
    config: dict[str, Any]
    shards: list[Shard] = field(default_factory=list)
    tensors: dict[str, Ref] = field(default_factory=dict)

    @property
    def text_config(self) -> dict[str, Any]:
        """The part of the config that speaks of the language model."""
        inner = self.config.get("text_config")
        return inner if isinstance(inner, dict) else self.config

    @property
    def model_type(self) -> str:
        return str(self.config.get("model_type", ""))

    @property
    def dtype(self) -> str:
        """The type that most of the weights have."""
        sizes: Counter[str] = Counter()
        for ref in self.tensors.values():
            sizes[ref.dtype] += ref.size if ref.dtype in FLOATS else 0
        return sizes.most_common(1)[0][0] if sizes else "F32"

    @property
    def embedding(self) -> str | None:
        """The name of the input embedding."""
        return _shortest(name for name in self.tensors if name.endswith(_EMBEDDINGS))

    @property
    def head(self) -> str | None:
        """The name of the output embedding, when the files hold one."""
        return _shortest(name for name in self.tensors if is_head(name))

    @property
    def tied(self) -> bool:
        """Whether the output embedding is the input embedding."""
        for config in (self.config, self.text_config):
            if isinstance(value := config.get("tie_word_embeddings"), bool):
                return value
        return self.head is None and self.embedding is not None


def is_head(parameter: str) -> bool:
    """Whether a parameter has the name of an output embedding."""
    return any(parameter == name or parameter.endswith(f".{name}") for name in _HEADS)


def _shortest(names: Iterable[str]) -> str | None:
    return min(names, key=lambda name: (len(name), name), default=None)


def locate(
    given: str | None, adapter: Path, names: list[str], revision: str | None, report: Report
) -> tuple[Path, str] | None:
    """The base model's folder and its name; None, with the reason reported, when it is not on this machine.

    Args:
        given: `--base`; nothing else counts then.
        adapter: the adapter's folder; relative paths are tried from its parent too.
        names: what the adapter and its run call the base, best first.
        revision: the revision of a model of the hub.
        report: takes what is wrong.
    """
    wanted = [given] if given else names
    for name in wanted:
        for folder in _places(name, adapter, revision):
            if folder.is_dir():
                if not (folder / "config.json").is_file():
                    report.add("base_not_found", "error", _("{path} has no config.json").format(path=folder), name)
                    return None
                return folder, name
    if not wanted:
        report.add("base_not_found", "error", _("adapter_config.json does not name the base model"))
        return None
    name = wanted[0]
    if _is_path(name):
        detail, fix = _("there is no folder {path}").format(path=name), None
    else:
        detail = _("{name} is neither a folder here nor in the hub's cache on this machine").format(name=name)
        fix = _("`ftui model get {name}` brings it, or give its folder with --base DIR").format(name=name)
    report.add("base_not_found", "error", detail, fix=fix)
    return None


def _is_path(name: str) -> bool:
    return name.startswith((".", "/", "~")) or not _HUB_ID.match(name)


def _places(name: str, adapter: Path, revision: str | None) -> list[Path]:
    if "\0" in name:
        return []
    path = Path(os.path.expanduser(name))  # noqa: PTH111 - Path's dies of a user id without a passwd entry
    places = [path.absolute()]
    if not path.is_absolute():
        places.append(adapter.absolute().parent / path)
    if not _is_path(name):
        places += _cached(name, revision)
    return places


def _cached(name: str, revision: str | None) -> list[Path]:
    """A model's snapshot in the hub's cache; nothing is asked of the network."""
    home = Path(os.environ.get("HF_HOME") or "~/.cache/huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    folder = Path(os.path.expanduser(cache)) / ("models--" + name.replace("/", "--"))  # noqa: PTH111
    wanted = revision or "main"
    try:
        commit = (folder / "refs" / wanted).read_text().strip()
    except (OSError, ValueError):
        commit = wanted
    return [folder / "snapshots" / commit] if _COMMIT.match(commit) else []


def read(folder: Path, report: Report) -> Base | None:
    """Read the headers of a model's files; None, with the reasons reported, when it is not whole."""
    before = report.count("error")  # those of the adapter are no reason not to look at the base
    config = read_json(folder / "config.json")
    if not isinstance(config, dict):
        report.add("unsupported_base", "error", _("config.json is not JSON"), fix=_("copy the base model again"))
        return None
    if quantization := config.get("quantization_config"):
        method = quantization.get("quant_method") if isinstance(quantization, dict) else None
        detail = _("the base is stored quantized ({method}): adding to it would lose the adapter").format(
            method=str(method or "?")[:40]
        )
        report.add("quantized_base", "error", detail, str(folder))
        return None
    names, placed = _files(folder, report)
    base = Base(folder, config)
    for name in names:
        if not (folder / name).exists():
            report.add("missing_shard", "error", _("{file} of the base is missing").format(file=name), name)
            continue
        tensors = read_file(folder / name, report)
        if tensors is not None:
            base.shards.append(Shard(name, tensors))
            base.tensors.update(tensors)
            for tensor in (placed.get(name, set()) - tensors.keys()) if placed else ():
                detail = _("{file} does not hold {tensor}").format(file=name, tensor=tensor)
                report.add("index_key_not_in_shard", "error", detail, tensor)
    return None if report.count("error") > before else base


def _files(folder: Path, report: Report) -> tuple[list[str], dict[str, set[str]]]:
    """The names of the files with weights, and what the index says lies in each."""
    if (folder / INDEX).exists():
        index = read_json(folder / INDEX)
        where = index.get("weight_map") if isinstance(index, dict) else None
        if not isinstance(where, dict) or not all(isinstance(name, str) for name in where.values()):
            report.add("bad_json", "error", _("the index of the base's files is not one"), INDEX)
            return [], {}
        placed: dict[str, set[str]] = {}
        for tensor, name in where.items():
            placed.setdefault(name, set()).add(tensor)
        for name in placed:
            if "/" in name or not name.endswith(".safetensors"):
                report.add("bad_json", "error", _("the index names {file}").format(file=name[:120]), INDEX)
                return [], {}
        return sorted(placed), placed
    names = sorted(path.name for path in folder.glob("*.safetensors") if not path.name.startswith("adapter"))
    if "model.safetensors" in names:
        return ["model.safetensors"], {}
    parts = [match for name in names if (match := _PART.match(name))]
    if parts:
        stem, total = parts[0]["stem"], int(parts[0]["total"])
        if total <= 10_000:
            return [f"{stem}-{number:05d}-of-{total:05d}.safetensors" for number in range(1, total + 1)], {}
    if not names:
        if any(folder.glob("pytorch_model*.bin")):
            report.add("unsupported_base", "error", _("its weights are pickles; only safetensors are read"))
        else:
            report.add("missing_shard", "error", _("the base has no weights (*.safetensors)"), "model.safetensors")
    return names, {}
