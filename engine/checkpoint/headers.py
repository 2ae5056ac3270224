"""The header of a safetensors file, read by hand and with bounds: nothing is allocated because a header says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from engine.checkpoint.problems import Problems
from engine.checkpoint.tensors import BITS, Tensor
from engine.text import _, gigabytes

PARSE_LIMIT = (
    50_000_000  # half the bound of the format: no model needs a tenth of it, and parsing takes several times as much
)
_OTHERS = (
    (b"PK\x03\x04", "zip (torch)"),
    (b"\x80\x02", "pickle"),
    (b"\x80\x03", "pickle"),
    (b"\x80\x04", "pickle"),
    (b"\x80\x05", "pickle"),
    (b"version https://git-lfs", "Git LFS pointer"),
    (b"<!DOCTYPE", "HTML"),
    (b"<html", "HTML"),
    (b"GGUF", "GGUF"),
    (b"\x89HDF", "HDF5"),
    (b"\x1f\x8b", "gzip"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
)


def read_header(path: Path, name: str, size: int, problems: Problems) -> list[Tensor] | None:
    """The tensors of a safetensors file; None, with the reason in `problems`, when its header cannot be used.

    Args:
        path: the file.
        name: what to call it.
        size: its size in bytes (not 0).
        problems: takes what is wrong.
    """
    with open(path, "rb") as file:
        start = file.read(32)
        length = int.from_bytes(start[:8], "little")
        # The length of a header may look like another format's mark: 640 is 80 02, how a pickle begins.
        like = start[8:9] == b"{" and 2 <= length <= PARSE_LIMIT
        if not like and (other := next((what for magic, what in _OTHERS if start.startswith(magic)), None)):
            problems.add("safetensors_not", "error", _("it is {other}, not safetensors").format(other=other), name)
            return None
        if len(start) < 8:
            problems.add("truncated_safetensors", "error", _("shorter than a header"), name)
            return None
        if length > PARSE_LIMIT or length < 2:
            _absurd(start, length, name, problems)
            return None
        file.seek(8)
        raw = file.read(min(length, max(0, size - 8)))
    if len(raw) < length:
        _short(raw, length, name, problems)
        return None
    header = _parse(raw)
    if header is None:
        problems.add("safetensors_header_json", "error", _("its header is not a JSON object"), name)
        return None
    return _tensors(header, 8 + length, size, name, problems)


def _absurd(start: bytes, length: int, name: str, problems: Problems) -> None:
    """A length that no header has: a damaged one, or no safetensors file at all."""
    if length > PARSE_LIMIT and all(32 <= byte < 127 or byte in b"\r\n\t" for byte in start):
        problems.add("safetensors_not", "error", _("it is text, not safetensors"), name)
        return
    detail = _("its header claims {size}").format(size=gigabytes(length))
    problems.add("safetensors_header_length", "error", detail, name)
    if start[8:9] not in (b"{", b"") and length:
        problems.add("safetensors_not", "error", _("it does not begin as a safetensors file does"), name)


def _short(raw: bytes, length: int, name: str, problems: Problems) -> None:
    """The header is longer than the file: either the file was cut, or the length is wrong."""
    try:
        json.JSONDecoder().raw_decode(raw.decode("utf-8", "replace"))
        whole = True
    except (ValueError, RecursionError):
        whole = False
    if whole or not raw.startswith(b"{"):
        detail = _("its header claims {claim}, the file has {size}")
        detail = detail.format(claim=gigabytes(length), size=gigabytes(len(raw) + 8))
        problems.add("safetensors_header_length", "error", detail, name)
    else:
        problems.add("truncated_safetensors", "error", _("the file ends inside its header"), name)


def _parse(raw: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(raw, object_pairs_hook=_unique)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and raw[:1] == b"{" else None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a name twice")
    return value


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _tensor(key: str, entry: Any, data_begins: int) -> Tensor | None:
    if not isinstance(entry, dict):
        return None
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not (isinstance(dtype, str) and isinstance(shape, list) and all(_count(n) for n in shape)):
        return None
    if not (isinstance(offsets, list) and len(offsets) == 2 and all(_count(n) for n in offsets)):
        return None
    if offsets[1] < offsets[0]:
        return None
    return Tensor(key, dtype, tuple(shape), data_begins + offsets[0], offsets[1] - offsets[0])


def _tensors(header: dict[str, Any], begin: int, size: int, name: str, problems: Problems) -> list[Tensor] | None:
    tensors = []
    good = True
    for key, entry in header.items():
        if key == "__metadata__":
            if not (isinstance(entry, dict) and all(isinstance(value, str) for value in entry.values())):
                problems.add("safetensors_header_json", "error", _("its metadata is not text"), name)
                good = False
            continue
        tensor = _tensor(key, entry, begin)
        if tensor is None:
            detail = _("the entry of {tensor} is not one of a tensor").format(tensor=key[:120])
            problems.add("safetensors_header_json", "error", detail, name)
            good = False
            continue
        tensors.append(tensor)
        if tensor.dtype not in BITS:
            detail = _("{tensor} has the unknown type {dtype}").format(tensor=key[:120], dtype=tensor.dtype[:40])
            problems.add("safetensors_dtype", "error", detail, name)
            good = False
        elif _bytes(tensor) != tensor.size:
            detail = _("{tensor}: shape {shape} of {dtype} does not take {size} bytes")
            detail = detail.format(tensor=key[:120], shape=list(tensor.shape)[:8], dtype=tensor.dtype, size=tensor.size)
            problems.add("safetensors_size_mismatch", "error", detail, name)
            good = False
    return tensors if _places(tensors, begin, size, name, problems) and good else None


def _bytes(tensor: Tensor) -> int:
    bits = BITS[tensor.dtype]
    for n in tensor.shape:
        bits *= n
        if bits >= 2**70:  # a shape of many huge numbers must not become a number of a million digits
            break
    return bits // 8 if bits % 8 == 0 else -1


def _places(tensors: list[Tensor], begin: int, size: int, name: str, problems: Problems) -> bool:
    """Tensors must follow each other without a gap from the end of the header to the end of the file."""
    good = True
    at = begin
    for tensor in sorted(tensors, key=lambda t: (t.begin, t.size)):
        if tensor.begin < at:
            detail = _("{tensor} overlaps the one before").format(tensor=tensor.name[:120])
            problems.add("safetensors_overlap", "error", detail, name)
            good = False
        elif tensor.begin > at:
            detail = _("a hole of {n} bytes before {tensor}").format(n=tensor.begin - at, tensor=tensor.name[:120])
            problems.add("safetensors_hole", "error", detail, name)
            good = False
        at = max(at, tensor.begin + tensor.size)
    if at > size:
        detail = _("its data end {n} bytes too early").format(n=at - size)
        problems.add("truncated_safetensors", "error", detail, name)
    elif at < size:
        detail = _("{n} bytes follow its last tensor").format(n=size - at)
        problems.add("safetensors_trailing_bytes", "error", detail, name)
    return good and at == size
