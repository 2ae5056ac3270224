"""Files of torch.save (optimizer, scheduler, random states, weights): whole, harmless, and what is in them."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from engine.checkpoint import pickles
from engine.checkpoint.problems import Problems
from engine.checkpoint.tensors import BITS, Checksum, Tensor
from engine.text import _

_STORAGES = {
    "DoubleStorage": "F64", "FloatStorage": "F32", "HalfStorage": "F16", "BFloat16Storage": "BF16",
    "LongStorage": "I64", "IntStorage": "I32", "ShortStorage": "I16", "CharStorage": "I8", "ByteStorage": "U8",
    "BoolStorage": "BOOL", "ComplexFloatStorage": "C64", "ComplexDoubleStorage": "C128",
}  # fmt: skip
_LOCAL_HEADER = struct.Struct("<4s22xHH")
_BAD_ZIP = (
    zipfile.BadZipFile, OSError, ValueError, NotImplementedError, RuntimeError, EOFError, OverflowError,
    struct.error, zlib.error, MemoryError,
)  # fmt: skip
LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
_DEPTH = 12
_PROBE = 1024 * 1024


@dataclass
class TorchFile:
    """What was found in a file: tensors with their places, checksums of its records, and what it holds, inert."""

    tensors: list[Tensor] = field(default_factory=list)
    checksums: list[Checksum] = field(default_factory=list)
    root: Any = None


def read_torch(path: Path, name: str, size: int, problems: Problems, *, cut: str = "truncated_zip") -> TorchFile:
    """Look at one file of torch.save.

    Args:
        path: the file.
        name: what to call it.
        size: its size in bytes (not 0).
        problems: takes what is wrong.
        cut: the kind to report when it is not whole.
    """
    with open(path, "rb") as file:
        start = file.read(4)
    if start[:2] == b"PK":
        try:
            with open(path, "rb") as file:
                return _read_zip(file, name, size, problems, cut)
        except _BAD_ZIP as error:
            detail = _("the archive is damaged or cut short ({reason})").format(reason=str(error)[:100])
            problems.add(cut, "error", detail, name)
    elif start[:1] == b"\x80":
        _read_legacy(path, name, size, problems, cut)
    else:
        with open(path, "rb") as file:
            found = pickles.scan(file.read(_PROBE))
        if found.globals:  # the oldest form of pickles begins with any letter
            judge(found, name, problems)
        problems.add(cut, "error", _("it is not a file of torch.save"), name)
    return TorchFile()


def judge(found: pickles.Scan, name: str, problems: Problems) -> None:
    """Report the globals of a pickle that can run code, and those that are not known."""
    for module, what in sorted(found.globals):
        danger = pickles.danger(module, what)
        called = f"{module}.{what}"[:120]
        if danger == "unsafe":
            detail = _("loading it would call {name}").format(name=called)
            problems.add("unsafe_pickle", "error", detail, name)
        elif danger == "unknown":
            # Arguments of a script's own class are common, and nothing that resumes reads that file.
            level = "note" if Path(name).name == "training_args.bin" else "warning"
            detail = _("it needs {name}, which is of no library known here").format(name=called)
            problems.add("unsafe_pickle", level, detail, name)  # type: ignore[arg-type]


class _Slice(io.RawIOBase):
    """A part of a file as a file of its own."""

    def __init__(self, file: IO[bytes], begin: int, size: int) -> None:
        self._file = file
        self._begin = begin
        self._size = size
        self._at = 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = max(0, offset + (0, self._at, self._size)[whence])
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        left = max(0, self._size - self._at)
        self._file.seek(self._begin + self._at)
        data = self._file.read(left if size is None or size < 0 else min(size, left))
        self._at += len(data)
        return data


def read_slices(path: Path, spans: Iterable[tuple[str, int, int]]) -> TorchFile:
    """What parts of a file hold, each a torch.save of its own (name, begin, size); what is not one is left out."""
    result = TorchFile()
    with open(path, "rb") as file:
        for name, begin, size in spans:
            try:
                part: IO[bytes] = _Slice(file, begin, size)  # type: ignore[assignment]
                found = _read_zip(part, name, size, Problems(), "truncated_shard")
            except _BAD_ZIP:
                continue
            for tensor in found.tensors:
                place = tensor.begin + begin
                result.tensors.append(Tensor(name, tensor.dtype, tensor.shape, place, tensor.size))
            for check in found.checksums:
                result.checksums.append(Checksum(check.begin + begin, check.size, check.expected, check.name))
    return result


def _read_zip(file: IO[bytes], name: str, size: int, problems: Problems, cut: str) -> TorchFile:
    result = TorchFile()
    with zipfile.ZipFile(file) as archive:
        records = {info.filename: info for info in archive.infolist()}
        main = next((n for n in records if n == "data.pkl" or n.endswith("/data.pkl")), None)
        if main is None:
            problems.add(cut, "error", _("its archive has no data.pkl"), name)
            return result
        root = main.removesuffix("data.pkl")
        places = {}
        for record, info in records.items():
            begin = _begins(file, info, size)
            if begin is None:
                problems.add(cut, "error", _("the record {record} is damaged").format(record=record[:100]), name)
                return result
            places[record] = begin
            # torch writes 0 where it was told not to compute checksums.
            if info.compress_type == zipfile.ZIP_STORED and info.CRC:
                result.checksums.append(Checksum(begin, info.file_size, info.CRC, record))
            if info.filename.endswith(".pkl") and info.filename != main:
                judge(pickles.scan(_pickle_of(archive, file, info, begin)), name, problems)
        data = _pickle_of(archive, file, records[main], places[main])
    scan = pickles.scan(data)
    judge(scan, name, problems)
    if scan.error:
        detail = _("its data.pkl cannot be read ({reason})").format(reason=scan.error)
        problems.add(cut, "error", detail, name)
        return result
    result.root = pickles.structure(data)
    for tensor, key in tensors_of(result.root):
        record = f"{root}data/{key}"
        stored = records.get(record)
        if stored is None or stored.file_size != tensor.size:
            detail = _("the numbers of {tensor} are missing or cut short").format(tensor=tensor.name[:120])
            problems.add(cut, "error", detail, name)
        elif stored.compress_type == zipfile.ZIP_STORED:
            result.tensors.append(Tensor(tensor.name, tensor.dtype, tensor.shape, places[record], tensor.size))
    return result


def _pickle_of(archive: zipfile.ZipFile, file: IO[bytes], info: zipfile.ZipInfo, begin: int) -> bytes:
    if info.file_size > pickles.LIMIT:
        raise ValueError(f"{info.filename}: {info.file_size}")
    if info.compress_type != zipfile.ZIP_STORED or info.CRC:
        return archive.read(info)
    file.seek(begin)  # written without checksums: zipfile would refuse it
    return file.read(info.file_size)


def _begins(file: IO[bytes], info: zipfile.ZipInfo, size: int) -> int | None:
    """Where a record's bytes begin; None when they do not lie in the file."""
    file.seek(info.header_offset)
    raw = file.read(_LOCAL_HEADER.size)
    if len(raw) < _LOCAL_HEADER.size:
        return None
    magic, name_length, extra_length = _LOCAL_HEADER.unpack(raw)
    begin = info.header_offset + _LOCAL_HEADER.size + name_length + extra_length
    return int(begin) if magic == b"PK\x03\x04" and begin + info.compress_size <= size else None


def tensors_of(root: Any) -> Iterator[tuple[Tensor, str]]:
    """Each storage once, as the tensor that uses it first, with the storage's key."""
    seen: set[str] = set()
    waiting: list[tuple[str, Any, int]] = [("", root, 0)]
    while waiting:
        path, value, depth = waiting.pop()
        if isinstance(value, pickles.Inert):
            found = _tensor(path, value)
            if found is not None and found[1] not in seen:
                seen.add(found[1])
                yield found
                continue
            inner: list[tuple[Any, Any]] = [*value.entries.items(), *enumerate(value.args), *enumerate(value.listed)]
            inner.append(("", value.state))
        elif isinstance(value, dict):
            inner = list(value.items())
        elif isinstance(value, (list, tuple)):
            inner = list(enumerate(value))
        else:
            continue
        if depth < _DEPTH:
            waiting.extend((f"{path}.{key}" if path else str(key)[:200], item, depth + 1) for key, item in inner)


def _tensor(path: str, value: pickles.Inert) -> tuple[Tensor, str] | None:
    """What _rebuild_tensor_v2(storage, offset, size, …) and its kin stand for."""
    if "_rebuild" not in value.path or not value.args or not isinstance(value.args[0], pickles.Persistent):
        return None
    reference = value.args[0].value
    if not (isinstance(reference, tuple) and len(reference) >= 5 and reference[0] == "storage"):
        return None
    kind, key, count = reference[1], reference[2], reference[4]
    stored = getattr(kind, "path", "") if isinstance(kind, type) else ""
    dtype = _STORAGES.get(stored.rpartition(".")[2])
    if dtype is None or not isinstance(key, str) or not isinstance(count, int) or not 0 <= count < 2**60:
        return None
    size = value.args[2] if len(value.args) > 2 else ()
    shape = tuple(n for n in size if isinstance(n, int)) if isinstance(size, tuple) else ()
    return Tensor(path, dtype, shape, 0, count * BITS[dtype] // 8), key


def _read_legacy(path: Path, name: str, size: int, problems: Problems, cut: str) -> None:
    """The form before torch 1.6, or a plain pickle: pickles one after the other, then the numbers."""
    with open(path, "rb") as file:
        data = file.read(min(size, pickles.LIMIT))
    first = pickles.scan(data)
    judge(first, name, problems)
    if first.error:
        detail = _("its pickle cannot be read ({reason})").format(reason=first.error)
        problems.add(cut, "error", detail, name)
        return
    if pickles.structure(data[: first.end]) != LEGACY_MAGIC:
        return
    at = first.end
    root: Any = None
    for number in range(4):  # protocol, system, the object, the keys of its storages
        found = pickles.scan(data, at)
        judge(found, name, problems)
        if found.error:
            problems.add(cut, "error", _("it is cut short"), name)
            return
        if number == 2:
            root = pickles.structure(data[at : found.end])
        at = found.end
    need = sum(8 + tensor.size for tensor, _key in tensors_of(root))
    if at + need > size:
        problems.add(cut, "error", _("{n} bytes of its numbers are missing").format(n=at + need - size), name)
