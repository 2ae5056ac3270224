"""Where a tensor's bytes lie."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.checkpoint.headers import read_header
from engine.checkpoint.problems import Problems
from engine.checkpoint.tensors import BITS
from engine.merge.report import Report
from engine.text import _

FLOATS = ("F32", "BF16", "F16")


@dataclass(frozen=True)
class Ref:
    """A tensor inside a safetensors file."""

    file: str
    begin: int
    size: int
    dtype: str
    shape: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        """As the child reads it."""
        return {**vars(self), "shape": list(self.shape)}

    @staticmethod
    def from_json(value: dict[str, Any]) -> Ref:
        """The inverse of `to_json`."""
        return Ref(**{**value, "shape": tuple(value["shape"])})

    def read(self) -> bytes:
        """All its bytes; for small ones."""
        with open(self.file, "rb") as file:
            file.seek(self.begin)
            return file.read(self.size)


def size_of(dtype: str, shape: Iterable[int]) -> int:
    """Bytes of a tensor."""
    count = 1
    for n in shape:
        count *= n
    return count * BITS[dtype] // 8


def read_file(path: Path, report: Report) -> dict[str, Ref] | None:
    """The tensors of a safetensors file in the order of their bytes; None, with the reason reported."""
    problems = Problems()
    tensors = None
    try:
        size = path.stat().st_size
        if size == 0:
            problems.add("zero_byte", "error", _("it is empty"), path.name)
        else:
            tensors = read_header(path, path.name, size, problems)
    except OSError as error:
        problems.add("unreadable", "error", error.strerror or str(error), path.name)
    report.take(problems)
    if tensors is None or problems.broken:
        return None
    tensors.sort(key=lambda tensor: (tensor.begin, tensor.size))
    return {t.name: Ref(str(path), t.begin, t.size, t.dtype, t.shape) for t in tensors}
