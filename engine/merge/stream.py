"""Writing the merged files one after the other; what does not change is copied from file to file."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.files import write_all
from engine.merge import arithmetic, fp8, fp8_arithmetic
from engine.merge.layers import Op
from engine.merge.tensors import Ref, size_of

if TYPE_CHECKING:
    import torch

    from engine.merge.nf4 import QuantizedBase

PIECE = 16 * 1024 * 1024


class Stream:
    """Writes all shards of a plan into a folder and notes what it saw on the way."""

    def __init__(self, staging: Path, say: Callable[[int], None], base: QuantizedBase | None = None) -> None:
        self.staging = staging
        self.base = base
        self.done = 0  # bytes
        self.not_finite: list[str] = []
        self.pairs: dict[Ref, bool] = {}  # each lora_B: whether any of its numbers is not zero
        self._say = say

    def write(self, shards: list[dict[str, Any]]) -> None:
        """Write every shard, durable.

        Raises:
            OSError: a file could not be read or written.
        """
        where = {}
        for shard in shards:
            self._shard(shard["file"], shard["tensors"])
            stored = [name for tensor in shard["tensors"] for name, _dtype, _shape in _stored(tensor)]
            where.update(dict.fromkeys(stored, shard["file"]))
        if len(shards) > 1:
            tensors = (t for shard in shards for tensor in shard["tensors"] for t in _stored(tensor))
            total = sum(size_of(dtype, shape) for _name, dtype, shape in tensors)
            index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(where.items()))}
            (self.staging / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")

    def _shard(self, name: str, tensors: list[dict[str, Any]]) -> None:
        fd = os.open(self.staging / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            write_all(fd, _header(tensors))
            for tensor in tensors:
                source, ops = Ref.from_json(tensor["source"]), [Op.from_json(op) for op in tensor["ops"]]
                start = self.base.weight(tensor["name"], source) if self.base is not None else None
                if not ops and start is None and source.dtype == tensor["dtype"]:
                    self._copy(fd, source)
                else:
                    self._merge(fd, tensor, source, ops, start)
            os.fsync(fd)
        finally:
            os.close(fd)

    def _merge(self, fd: int, tensor: dict[str, Any], source: Ref, ops: list[Op], start: torch.Tensor | None) -> None:
        finite = True
        dtype, scales = tensor["dtype"], []
        for block in arithmetic.merged(source, "F32" if tensor["scale"] else dtype, ops, start):
            finite = finite and arithmetic.finite(block)
            if tensor["scale"]:
                weight, scale = fp8_arithmetic.quantized(block, arithmetic.DTYPES[tensor["scale"]])
                scales.append(scale)
                self._write(fd, arithmetic.raw(weight))
            else:
                self._write(fd, arithmetic.raw(block))
        for scale in scales:
            self._write(fd, arithmetic.raw(scale))
        if not finite:
            self.not_finite.append(tensor["name"])
        for op in ops:
            if op.a is not None and op.b is not None and op.b not in self.pairs:
                self.pairs[op.b] = bool(arithmetic.factor(op.b).any())

    def _write(self, fd: int, data: Any) -> None:
        write_all(fd, data)
        self.done += len(data)
        self._say(self.done)

    def _copy(self, fd: int, source: Ref) -> None:
        with open(source.file, "rb", buffering=0) as file:
            at, end = source.begin, source.begin + source.size
            while at < end:
                count = os.sendfile(fd, file.fileno(), at, min(PIECE, end - at))
                if not count:
                    raise OSError(f"{source.file}: it became shorter while it was read")
                at += count
                self.done += count
                self._say(self.done)


def _header(tensors: list[dict[str, Any]]) -> bytes:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, dtype, shape in (stored for tensor in tensors for stored in _stored(tensor)):
        size = size_of(dtype, shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # the format wants the data aligned
    return len(text).to_bytes(8, "little") + text


def _stored(tensor: dict[str, Any]) -> list[tuple[str, str, list[int]]]:
    """Name, type and shape of what a tensor is in the file: FP8 has its scales behind it."""
    shape = tensor["source"]["shape"]
    own = [(tensor["name"], tensor["dtype"], shape)]
    return [*own, (tensor["name"] + fp8.SCALE, tensor["scale"], [shape[0], 1])] if tensor["scale"] else own
