"""The written files against PEFT's arithmetic: read back with another reader, computed another way, whole tensors."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import safe_open

from engine.merge import fp8
from engine.merge.arithmetic import DTYPES
from engine.merge.fp8_arithmetic import restored, tolerance
from engine.merge.tensors import Ref

if TYPE_CHECKING:
    from engine.merge.nf4 import QuantizedBase

SAMPLE = 24  # changed tensors looked at, and as many that must not have changed
LARGEST = 400_000_000  # numbers of a tensor that is still looked at whole
ENOUGH = 50_000_000  # numbers after which the sample ends, so that a check of a large model takes seconds
ULPS = {"F32": 2.0**-21, "BF16": 2.0**-7, "F16": 2.0**-9}  # one rounding may fall the other way


def tensors(staging: Path, shards: list[dict[str, Any]], base: QuantizedBase | None = None) -> dict[str, Any]:
    """Compare a sample; the largest difference, and the names of tensors that fail.

    Args:
        staging: the written files.
        shards: what they hold.
        base: gives the weights that were added to, where these are not the stored ones.
    """
    rows = [(shard["file"], tensor) for shard in shards for tensor in shard["tensors"]]
    picked = _sample([row for row in rows if row[1]["changed"]]) + _sample(
        [row for row in rows if not row[1]["changed"]]
    )
    worst, equal, bad = 0.0, 0, []
    for file, tensor in picked:
        with safe_open(staging / file, framework="pt") as reader:
            written = reader.get_tensor(tensor["name"])
            scale = reader.get_tensor(tensor["name"] + fp8.SCALE) if tensor["scale"] else None
        wanted = _expected(tensor, base)
        if scale is not None:
            difference, right = _in_fp8(written, scale, wanted)
            worst = max(worst, difference)
            equal += right
            bad += [] if right else [tensor["name"]]
            continue
        same = written.dtype == wanted.dtype and written.shape == wanted.shape
        if same and torch.equal(written, wanted):
            equal += 1
            continue
        if not same:
            bad.append(tensor["name"])
            continue
        difference = (written.float() - wanted.float()).abs()
        limit = wanted.float().abs() * ULPS.get(tensor["dtype"], 0.0) + 1e-7
        worst = max(worst, float(difference.max()))
        if not bool((difference <= limit).all()):
            bad.append(tensor["name"])
    return {"tensors": len(picked), "equal": equal, "max_abs_diff": worst, "bad": bad}


def _in_fp8(written: torch.Tensor, scale: torch.Tensor, exact: torch.Tensor) -> tuple[float, bool]:
    """The largest difference of FP8 weights, and whether each is the exact number rounded once."""
    if written.shape != exact.shape or scale.shape != (exact.shape[0], 1):
        return 0.0, False
    difference = (restored(written, scale) - exact).abs()
    return float(difference.max()), bool((difference <= tolerance(exact, scale)).all())


def _sample(rows: list[Any]) -> list[Any]:
    """Spread over the model, with the first of each kind of addition among them."""
    small = [row for row in rows if _numbers(row[1]) <= LARGEST]
    kinds = {tuple(op["kind"] for op in row[1]["ops"]): row for row in reversed(small)}
    chosen, numbers = list(kinds.values()), sum(_numbers(row[1]) for row in kinds.values())
    for row in small[:: max(1, len(small) // SAMPLE)]:
        if len(chosen) >= SAMPLE or numbers > ENOUGH:
            break
        if row not in chosen:
            chosen.append(row)
            numbers += _numbers(row[1])
    return chosen


def _numbers(tensor: dict[str, Any]) -> int:
    count = 1
    for n in tensor["source"]["shape"]:
        count *= n
    return count


def _load(ref: dict[str, Any]) -> torch.Tensor:
    found = Ref.from_json(ref)
    with open(found.file, "rb") as file:
        file.seek(found.begin)
        data = bytearray(file.read(found.size))
    return torch.frombuffer(data, dtype=DTYPES[found.dtype]).reshape(found.shape) if data else torch.empty(found.shape)


def _expected(tensor: dict[str, Any], base: QuantizedBase | None) -> Any:
    """PEFT's own steps, as its layers write them; of what is stored as FP8 the exact numbers."""
    start = base.weight(tensor["name"], Ref.from_json(tensor["source"])) if base is not None else None
    weight = _load(tensor["source"]) if start is None else start
    same = tensor["dtype"] == tensor["source"]["dtype"]
    weight = weight.to(DTYPES[tensor["dtype"]]) if same else weight.float()
    for op in tensor["ops"]:
        weight = _added(weight, op)
    return weight if tensor["scale"] else weight.to(DTYPES[tensor["dtype"]])


def _added(weight: torch.Tensor, op: dict[str, Any]) -> Any:
    b = _load(op["b"]).float()
    if op["kind"] == "rows":
        return weight.index_copy(0, torch.tensor(op["rows"]), b.to(weight.dtype))
    if op["kind"] == "bias":
        return (weight + b * op["scale"]).to(weight.dtype)
    a = _load(op["a"]).float()
    if op["kind"] == "experts":
        count = op["experts"]
        pairs = [(b[:, e::count], a[e * (a.shape[0] // count) : (e + 1) * (a.shape[0] // count)]) for e in range(count)]
        deltas = [(x @ y).T if op["transposed"] else x @ y for x, y in pairs]
        delta = torch.stack(deltas) if op["expert"] is None else deltas[op["expert"]][op["low"] : op["high"]]
        return (weight + (delta * op["scale"]).to(weight.dtype)).to(weight.dtype)
    delta = (b @ a) * op["scale"]
    if op["transposed"]:
        delta = delta.T
    if op["m"] is None:
        delta = delta if op["kind"] == "linear" else delta.to(weight.dtype)
        return (weight + delta).to(weight.dtype)
    plain = weight.T if op["transposed"] else weight
    inner = delta.T if op["transposed"] else delta
    magnitude = _load(op["m"]).float().reshape(-1, 1)
    result = magnitude / torch.linalg.norm(plain + inner, dim=1).reshape(-1, 1) * (plain + inner)
    return (result.T if op["transposed"] else result).to(weight.dtype)
