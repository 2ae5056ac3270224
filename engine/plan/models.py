"""Finding a model's shape: a given config, a local folder, the hub's cache, or the built-in catalogue."""

from __future__ import annotations

import difflib
import functools
import os
from pathlib import Path
from typing import Any

import orjson

from engine.errors import UsageError
from engine.plan import shapes
from engine.plan.shapes import Shape
from engine.text import _

CATALOGUE = Path(__file__).with_name("models.json")
MAX_CONFIG_BYTES = 4 << 20  # a config.json is a few kB; what is larger is something else


@functools.cache
def catalogue() -> dict[str, dict[str, Any]]:
    """The built-in models by lower-case name, aliases and bare names included."""
    table: dict[str, dict[str, Any]] = {}
    models = orjson.loads(CATALOGUE.read_bytes())["models"]
    for name, entry in models.items():
        entry["name"] = name
        for spelling in (name, *entry["aliases"]):
            table[spelling.lower()] = entry
    for name, entry in models.items():
        for spelling in (name, *entry["aliases"]):
            table.setdefault(spelling.rsplit("/", 1)[-1].lower(), entry)
    return table


def resolve(name: str | None, config: Any = None) -> Shape:
    """The shape of a model.

    Args:
        name: folder, hub name, or `builtin:tiny`.
        config: fields of a config.json, used instead when given.

    Raises:
        UsageError: nothing is known of it, or its config makes no sense.
    """
    if config is not None:
        return _shape(config, name or "")
    assert name is not None
    return _named(name, _stamp(name))


def _stamp(name: str) -> float:
    """A local config may be edited while the planner is open: its time is part of the cache's key."""
    try:
        return (Path(name).expanduser() / "config.json").stat().st_mtime
    except (OSError, ValueError):
        return 0.0


def config(name: str, given: dict[str, Any] | None = None) -> dict[str, Any]:
    """The config.json fields behind a name that `resolve` knows; of a multimodal model the text part.

    Raises:
        UsageError: nothing is known of it.
    """
    fields = given
    if fields is None:
        path = Path(name).expanduser() / "config.json"
        file = path if path.is_file() else _cached(name)
        fields = _read(file) if file is not None else dict(catalogue().get(name.lower(), {}).get("config", {}))
    inner = fields.get("text_config")
    if isinstance(inner, dict):
        fields = {"tie_word_embeddings": fields.get("tie_word_embeddings", True), **inner}
    if "model_type" not in fields:
        resolve(name)  # says what is wrong with the name
        raise UsageError(_("the model's config has no '{key}'").format(key="model_type"), where="config.model_type")
    return fields


@functools.lru_cache(maxsize=64)
def _named(name: str, _stamp: float) -> Shape:
    path = Path(name).expanduser()
    if (path / "config.json").is_file():
        return _shape(_read(path / "config.json"), name)
    known = catalogue().get(name.lower())
    cached = _cached(name)
    if cached is not None:
        return _shape(_read(cached), name)
    if known is not None:
        return _shape(known["config"], known["name"])
    near = difflib.get_close_matches(name.lower(), list(catalogue()), n=3, cutoff=0.5)
    names = ", ".join(dict.fromkeys(catalogue()[n]["name"] for n in near)) or "meta-llama/Llama-3.1-8B"
    raise UsageError(
        _("nothing is known of the model '{name}'").format(name=name[:100]),
        where="model",
        fix=_("give a folder with its config.json, or a known one: {names}").format(names=names),
        kind="unknown_model",
    )


def _shape(config: Any, name: str) -> Shape:
    try:
        return shapes.from_config(config, name)
    except UsageError as error:
        if error.kind != "unknown_architecture":
            raise
        from engine.plan.on_meta import count

        return count(config, name)


def _read(path: Path) -> Any:
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise ValueError("too large")
        return orjson.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UsageError(
            _("the model's config.json cannot be read: {reason}").format(reason=str(error)[:200]),
            where=str(path),
            kind="bad_config",
        ) from error


def hub_cache() -> Path:
    """Where models of the hub are downloaded to."""
    home = Path(os.environ.get("HF_HOME") or "~/.cache/huggingface")
    return Path(os.environ.get("HF_HUB_CACHE") or home / "hub").expanduser()


def is_here(name: str) -> bool:
    """Whether a model's weights are on this machine: then nothing is downloaded."""
    if name.startswith("builtin:") or Path(name).expanduser().is_dir():
        return True
    config = _cached(name)
    if config is None:
        return False
    index = config.with_name("model.safetensors.index.json")
    if not index.is_file():
        return any(config.parent.glob("*.safetensors"))
    try:
        shards = set(orjson.loads(index.read_bytes())["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # half a download
        return False
    return all((config.parent / str(shard)).exists() for shard in shards)


def _cached(name: str) -> Path | None:
    """The newest config.json of a hub model in the local cache."""
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        return None
    folder = hub_cache() / ("models--" + name.replace("/", "--")) / "snapshots"
    found = [p for p in folder.glob("*/config.json") if p.is_file()] if folder.is_dir() else []
    return max(found, key=lambda p: p.stat().st_mtime) if found else None
