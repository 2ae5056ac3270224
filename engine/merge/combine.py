"""Several adapters as one: base + the sum of weight x scale x B A.

This is PEFT's `add_weighted_adapter(..., combination_type="cat")`: the factors stand side by side and the ranks add up,
so that the sum is exact. (`linear` would add the factors themselves, and multiply every B with every A.) The result is
an ordinary adapter in a folder of its own; from there on nothing knows that there were several. Two departures from
PEFT: rsLoRA's scale is counted once (PEFT keeps the flag and scales the sum again), and what an adapter holds besides
LoRA layers is refused, where PEFT drops it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.files import write_all, write_json
from engine.merge.adapter import CONFIG, WEIGHTS, Adapter, Lora
from engine.merge.report import Report
from engine.merge.tensors import Ref
from engine.text import _

_BESIDE = ("modules_to_save", "trainable_token_indices", "target_parameters", "lora_bias")


@dataclass(frozen=True)
class Part:
    """One of the adapters and its weight."""

    adapter: Adapter
    weight: float


def check(parts: Sequence[Part], report: Report) -> None:
    """Report what cannot be weighed and added."""
    for part in parts:
        adapter, config = part.adapter, part.adapter.config
        name = str(adapter.folder)
        reasons = [field for field in _BESIDE if config.get(field)]
        reasons += ["use_dora"] if config.get("use_dora") or any(lora.magnitude for lora in adapter.loras) else []
        reasons += ["bias"] if (config.get("bias") or "none") != "none" else []
        if not reasons and (adapter.full or adapter.tokens):
            reasons = [next(iter(adapter.full or adapter.tokens))]
        if reasons:
            detail = _("{folder} has {fields}, which cannot be weighed and added to others").format(
                folder=name, fields=", ".join(reasons)
            )
            report.add("unsupported_adapter", "error", detail, name, fix=_("merge one after the other instead"))
        for lora in adapter.loras:
            if lora.a is None or lora.b is None or lora.a.shape[0] != lora.b.shape[1]:
                continue
            if (rank := adapter.rank(lora.module)) != lora.a.shape[0]:
                detail = _("{name}: the config says rank {rank}, lora_A has {a} and lora_B {b}").format(
                    name=lora.module, rank=rank, a=lora.a.shape[0], b=lora.b.shape[1]
                )
                report.add("rank_mismatch", "error", detail, lora.module)
    first = _shapes(parts[0].adapter)
    for part in parts[1:]:
        for module, shape in _shapes(part.adapter).items():
            if first.setdefault(module, shape) != shape:
                detail = _("{module} is {one} for one adapter and {other} for another").format(
                    module=module, one=list(first[module]), other=list(shape)
                )
                report.add("shape_mismatch", "error", detail, module)


def _shapes(adapter: Adapter) -> dict[str, tuple[int, int]]:
    return {
        lora.module: (lora.b.shape[0], lora.a.shape[1])
        for lora in adapter.loras
        if lora.a is not None and lora.b is not None
    }


def write(parts: Sequence[Part], folder: Path) -> None:
    """Write the sum as an adapter; tokenizer and the like are the first one's.

    Raises:
        OSError: it cannot be written, or one of them cannot be read.
    """
    ranks = [_largest(part.adapter) for part in parts]
    total = sum(ranks)
    layers: dict[str, list[tuple[Part, Lora]]] = {}
    for part in parts:
        for lora in part.adapter.loras:
            layers.setdefault(lora.module, []).append((part, lora))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for module, found in layers.items():
        for key, shape in _stored(module, found[0][1], total):
            size = shape[0] * shape[1] * 4
            header[key] = {"dtype": "F32", "shape": list(shape), "data_offsets": [at, at + size]}
            at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    folder.mkdir()
    with open(folder / WEIGHTS, "xb", buffering=0) as file:
        write_all(file.fileno(), len(text).to_bytes(8, "little") + text)
        for found in layers.values():
            for array in _factors(found, total):
                write_all(file.fileno(), array.tobytes())
    write_json(folder / CONFIG, _config(parts, total, list(layers)))
    for path in parts[0].adapter.folder.iterdir():
        if path.is_file() and path.name not in (CONFIG, WEIGHTS) and path.suffix in (".json", ".jinja", ".model"):
            shutil.copyfile(path, folder / path.name)


def _largest(adapter: Adapter) -> int:
    """PEFT's rank of an adapter with patterns: the largest, filled up with zeros elsewhere."""
    pattern = adapter.config.get("rank_pattern") or {}
    return max(int(rank) for rank in (adapter.config.get("r") or 8, *pattern.values()))


def _stored(module: str, lora: Lora, rank: int) -> list[tuple[str, tuple[int, int]]]:
    assert lora.a is not None and lora.b is not None
    prefix = f"base_model.model.{module}."
    names = ("lora_embedding_A", "lora_embedding_B") if lora.embedding else ("lora_A.weight", "lora_B.weight")
    return [(prefix + names[0], (rank, lora.a.shape[1])), (prefix + names[1], (lora.b.shape[0], rank))]


def _factors(found: list[tuple[Part, Lora]], rank: int) -> Iterator[Any]:
    """A and B of the sum, with PEFT's order of multiplications."""
    import numpy as np

    first = found[0][1]
    assert first.a is not None and first.b is not None
    a = np.zeros((rank, first.a.shape[1]), np.float32)
    b = np.zeros((first.b.shape[0], rank), np.float32)
    at = 0
    for part, lora in found:
        assert lora.a is not None and lora.b is not None
        own = lora.a.shape[0]
        scale = np.float32(part.adapter.scale(lora.module))
        a[at : at + own] = floats(lora.a) * np.float32(part.weight) * scale
        b[:, at : at + own] = floats(lora.b)
        at += own
    yield a
    yield b


def floats(ref: Ref) -> Any:
    """A stored tensor in float32."""
    import numpy as np

    data = ref.read()
    if ref.dtype == "BF16":
        return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32).reshape(ref.shape)
    return np.frombuffer(data, "<f4" if ref.dtype == "F32" else "<f2").astype(np.float32).reshape(ref.shape)


def _config(parts: Sequence[Part], rank: int, modules: list[str]) -> dict[str, Any]:
    first = dict(parts[0].adapter.config)
    for name in ("layers_to_transform", "layers_pattern", "exclude_modules"):
        first.pop(name, None)  # the layers are named one by one
    return {
        **first, "r": rank, "lora_alpha": rank, "use_rslora": False, "rank_pattern": {}, "alpha_pattern": {},
        "target_modules": modules, "init_lora_weights": True,
    }  # fmt: skip
