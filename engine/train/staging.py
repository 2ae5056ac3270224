"""What a save will write, taken from the libraries while training waits and written later.

The libraries know what belongs into a checkpoint; their own way of writing it holds training up, does not hash, and
when a disk fills up on one rank it fails there, between the barriers where the others wait. So their code runs here
with nothing to write to: what it gives to `torch.save` or to safetensors is noted down, and for a save in the
background copied to host memory, pinned where there is a GPU. What a library writes by itself (a configuration, a
tokenizer) it writes, into the same folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from engine.train import torchzip

CHUNK = 64 * 1024 * 1024
# Who calls safetensors by a name of its own. One that is gone in another version writes its file itself: slower, right.
_SAFETENSORS = (
    ("safetensors.torch", "save_file"),
    ("transformers.modeling_utils", "safe_save_file"),
    ("peft.peft_model", "safe_save_file"),
)
_DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2", torch.complex64: "C64",
    torch.uint16: "U16", torch.uint32: "U32", torch.uint64: "U64",
}  # fmt: skip
Bytes = memoryview | bytes
Fetch = Callable[[], Bytes]


@dataclass
class File:
    """A file to be written: its name in the checkpoint, its size, and its bytes, made when they are asked for."""

    name: str
    size: int
    pieces: Callable[[], Iterator[Bytes]]


class HostMemory:
    """Room for the copies of one save, kept for the next: fresh memory costs more than the copying."""

    def __init__(self) -> None:
        self._chunks: list[torch.Tensor] = []
        self._turn = 0
        self._used = 0
        self.bytes = 0  # copied since `begin`

    def begin(self) -> None:
        """Everything copied before is done with."""
        self._turn = self._used = self.bytes = 0

    @property
    def held(self) -> int:
        """Bytes of memory that the copies may use without asking for more."""
        return sum(chunk.numel() for chunk in self._chunks)

    def reserve(self, size: int) -> None:
        """Ask for memory, and touch it, before it is needed."""
        if self.held < size:
            self._chunks.append(self._new(size).zero_())

    def copy(self, source: torch.Tensor) -> memoryview:
        """The bytes of a contiguous tensor of uint8; on a GPU they are there after `torch.cuda.synchronize`."""
        size = source.numel()
        room = self._take(size)
        room.copy_(source, non_blocking=source.is_cuda)
        self.bytes += size
        return memoryview(room.numpy())

    def _take(self, size: int) -> torch.Tensor:
        while self._turn < len(self._chunks):
            chunk = self._chunks[self._turn]
            if self._used + size <= chunk.numel():
                begin, self._used = self._used, self._used + size + -size % torchzip.ALIGNMENT
                return chunk[begin : begin + size]
            self._turn, self._used = self._turn + 1, 0
        self._chunks.append(self._new(max(CHUNK, size)))
        return self._take(size)

    @staticmethod
    def _new(size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8, pin_memory=torch.cuda.is_available())


@dataclass
class Capture:
    """The files of one rank's part of a save.

    Args:
        folder: where the libraries believe they write.
        host: takes copies; None: training waits until all is written, and what is on the CPU is read where it lies.
    """

    folder: Path
    host: HostMemory | None = None
    files: list[File] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        """What is to be written, without what the libraries wrote by themselves."""
        return sum(file.size for file in self.files)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """While this holds, torch.save and safetensors write nothing below the folder: it is noted instead."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(_replaced("torch", "save", self._instead_of_torch))
            for module, name in _SAFETENSORS:
                stack.enter_context(_replaced(module, name, self._instead_of_safetensors))
            yield
        self.settle()

    def settle(self) -> None:
        """Wait for copies that are under way."""
        if self.host is not None and torch.cuda.is_available():
            torch.cuda.synchronize()

    def name_of(self, path: Any) -> str | None:
        """The name inside the checkpoint; None for what lies elsewhere or is no path."""
        if not isinstance(path, str | os.PathLike):
            return None
        full = os.path.abspath(os.fspath(path))  # noqa: PTH100 - not resolved: the staging folder is no link
        root = f"{os.path.abspath(self.folder)}/"  # noqa: PTH100
        return full.removeprefix(root) if full.startswith(root) else None

    def add_torch(self, name: str, value: Any) -> None:
        """A file of torch.save."""
        found = torchzip.records(value)
        members = [(r.name, self.fetch(r.data)) for r in found]
        size = torchzip.length((r.name, r.size) for r in found)
        self.files.append(File(name, size, lambda: torchzip.compose((n, get()) for n, get in members)))

    def add_safetensors(
        self, name: str, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None
    ) -> None:
        """A file of safetensors, its tensors in the library's order: wide types first, then by name."""
        order = sorted(tensors, key=lambda key: (-tensors[key].element_size(), key))
        header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
        at = 0
        for key in order:
            tensor = tensors[key]
            end = at + tensor.numel() * tensor.element_size()
            header[key] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [at, end]}
            at = end
        text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        first = len(text).to_bytes(8, "little") + text
        rest = [self.fetch(tensors[key]) for key in order]

        def pieces() -> Iterator[Bytes]:
            yield first
            for get in rest:
                yield get()

        self.files.append(File(name, len(first) + at, pieces))

    def fetch(self, data: bytes | torch.UntypedStorage | torch.Tensor) -> Fetch:
        """How to get the bytes when they are to be written."""
        if isinstance(data, bytes):
            return lambda: data
        if isinstance(data, torch.Tensor):
            data = data.detach()
            if not data.is_contiguous():
                data = data.contiguous()
            flat = data.reshape(-1).view(torch.uint8) if data.numel() else torch.empty(0, dtype=torch.uint8)
        else:
            flat = torch.empty(0, dtype=torch.uint8, device=data.device).set_(data)  # type: ignore[call-overload]
        if self.host is not None:
            copied = self.host.copy(flat)
            return lambda: copied
        return lambda: memoryview(flat.cpu().numpy())

    def _instead_of_torch(self, original: Callable[..., Any], value: Any, file: Any, *args: Any, **kwargs: Any) -> None:
        name = self.name_of(file)
        if name is None:
            original(value, file, *args, **kwargs)
        else:
            self.add_torch(name, value)

    def _instead_of_safetensors(
        self, original: Callable[..., Any], tensors: Any, filename: Any, metadata: Any = None, **kwargs: Any
    ) -> None:
        name = self.name_of(filename)
        known = all(type(t) in (torch.Tensor, torch.nn.Parameter) and t.dtype in _DTYPES for t in tensors.values())
        if name is None or not known:
            original(tensors, filename, metadata=metadata, **kwargs)
        else:
            self.add_safetensors(name, tensors, metadata)


@contextlib.contextmanager
def _replaced(module: str, name: str, instead: Callable[..., Any]) -> Iterator[None]:
    """Call `instead(original, …)` for `module.name(…)`; nothing where there is no such name."""
    home = sys.modules.get(module)  # not imported: nobody has called it either
    original = getattr(home, name, None)
    if original is None:
        yield
        return
    setattr(home, name, lambda *args, **kwargs: instead(original, *args, **kwargs))
    try:
        yield
    finally:
        setattr(home, name, original)
