"""The additions themselves, with torch's kernels and PEFT's order of roundings, a block of rows at a time.

PEFT adds a linear layer's update in float32 and rounds once; the updates of embeddings and of parameters it rounds to
the weight's type first. Both are kept, so that every bit is that of `merge_and_unload` on the CPU.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any

import torch

from engine.merge.layers import Op
from engine.merge.tensors import Ref

DTYPES = {
    "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16, "F64": torch.float64,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8,
    "BOOL": torch.bool, "F8_E4M3": torch.float8_e4m3fn,
}  # fmt: skip
BLOCK = 1024 * 1024  # numbers worked on together: they stay in the cache, which is ten times as fast as large pieces
_STEPS = (256, 16)  # blocks begin at multiples of these: the kernels' own tiles lie as they would in one piece


def read_rows(ref: Ref, low: int, high: int) -> torch.Tensor:
    """Rows `low` to `high` of a stored tensor (all of a scalar). Read, not mapped: pages of a map count as memory."""
    rows = ref.shape[0] if ref.shape else 1
    width = ref.size // rows if rows else 0
    buffer = bytearray((high - low) * width)
    with open(ref.file, "rb", buffering=0) as file:
        file.seek(ref.begin + low * width)
        view = memoryview(buffer)
        while view:
            count = file.readinto(view)
            if not count:
                raise OSError(f"{ref.file}: it became shorter while it was read")
            view = view[count:]
    if not buffer:
        return torch.empty((high - low, *ref.shape[1:]), dtype=DTYPES[ref.dtype])
    tensor = torch.frombuffer(buffer, dtype=DTYPES[ref.dtype])
    return tensor.reshape((high - low, *ref.shape[1:])) if ref.shape else tensor.reshape(())


def read(ref: Ref) -> torch.Tensor:
    """A whole stored tensor."""
    return read_rows(ref, 0, ref.shape[0] if ref.shape else 1)


@functools.lru_cache(maxsize=4)
def factor(ref: Ref) -> torch.Tensor:
    """A tensor of the adapter, in float32 as PEFT loads it; the stacks of experts are asked for again and again."""
    return read(ref).float()


def merged(source: Ref, dtype: str, ops: list[Op], start: torch.Tensor | None = None) -> Iterator[torch.Tensor]:
    """The merged tensor, in consecutive blocks of rows.

    Where the type changes the sum is made in float32 and rounded to the new type.

    Args:
        source: the tensor of the base.
        dtype: the type of the merged tensor.
        ops: what is added.
        start: what it is added to, where that is not what is stored (the quantized base).
    """
    carrier = source.dtype if source.dtype == dtype else "F32"
    rows = source.shape[0] if source.shape else 1
    for low, high in blocks(source, ops):
        weight = read_rows(source, low, high) if start is None else start[low:high].clone()
        weight = weight.to(DTYPES[carrier])
        for op in ops:
            weight = _apply(op, weight, low, high, rows)
        yield weight.to(DTYPES[dtype])


def blocks(source: Ref, ops: list[Op]) -> Iterator[tuple[int, int]]:
    """Ranges of rows; one range where an update needs all of them together."""
    rows = source.shape[0] if source.shape else 1
    width = 1
    for n in source.shape[1:]:
        width *= n
    step = max(1, BLOCK // max(1, width))
    step -= step % next((multiple for multiple in _STEPS if step >= multiple), 1)
    if any(op.magnitude is not None and op.transposed for op in ops):
        step = max(1, rows)  # DoRA's norms run down the columns
    low = 0
    while low < rows:
        high = rows if rows - low < 2 * step else low + step  # no small rest: it would meet another kernel
        yield low, high
        low = high


def _apply(op: Op, weight: torch.Tensor, low: int, high: int, rows: int) -> torch.Tensor:
    if op.kind == "rows":
        return _set_rows(op, weight, low, high)
    assert op.b is not None
    if op.kind == "bias":
        weight += factor(op.b)[low:high] * op.scale
        return weight
    assert op.a is not None
    if op.kind == "experts":
        weight += _experts(op, factor(op.a), factor(op.b), low, high).to(weight.dtype)
        return weight
    delta = _delta(factor(op.a), factor(op.b), op, low, high, rows)
    if op.magnitude is not None:
        return _dora(weight, delta, factor(op.magnitude).reshape(-1), op, low, high)
    if op.kind == "linear":
        weight += delta
    else:
        weight += delta.to(weight.dtype)
    return weight


def _delta(a: torch.Tensor, b: torch.Tensor, op: Op, low: int, high: int, rows: int) -> torch.Tensor:
    if op.transposed:
        part = a if high - low == rows else a[:, low:high]
        return (b @ part).T.mul_(op.scale)
    return (b[low:high] @ a).mul_(op.scale)


def _dora(
    weight: torch.Tensor, delta: torch.Tensor, magnitude: torch.Tensor, op: Op, low: int, high: int
) -> torch.Tensor:
    if op.transposed:
        norm = torch.linalg.norm(weight.T + delta.T, dim=1)
        scaled = (magnitude / norm).view(1, -1)
    else:
        norm = torch.linalg.norm(weight + delta, dim=1)
        scaled = (magnitude[low:high] / norm).view(-1, 1)
    result: torch.Tensor = scaled * (weight + delta)
    return result.to(weight.dtype)


def _experts(op: Op, a: torch.Tensor, b: torch.Tensor, low: int, high: int) -> torch.Tensor:
    a = a.reshape(op.experts, -1, a.shape[-1])
    b = b.reshape(b.shape[0], -1, op.experts)
    form = "o r e, e r i -> e i o" if op.transposed else "o r e, e r i -> e o i"
    if op.expert is None:
        return torch.einsum(form, b[:, :, low:high], a[low:high]) * op.scale
    one = slice(op.expert, op.expert + 1)
    whole = torch.einsum(form, b[:, :, one], a[one])[0] * op.scale
    return whole[op.low + low : op.low + high]


def _set_rows(op: Op, weight: torch.Tensor, low: int, high: int) -> torch.Tensor:
    assert op.b is not None
    values = read(op.b).to(weight.dtype)
    for position, index in enumerate(op.rows):
        if low <= index < high:
            weight[index - low] = values[position]
    return weight


def finite(tensor: torch.Tensor) -> bool:
    """Whether all numbers are: the extremes tell, and a NaN is both of them."""
    if not tensor.is_floating_point() or not tensor.numel():
        return True
    low, high = torch.aminmax(tensor)
    return math.isfinite(low) and math.isfinite(high)


def raw(tensor: torch.Tensor) -> Any:
    """The bytes of a tensor, without a copy where it lies in one piece."""
    array: Any = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
    return memoryview(array)
