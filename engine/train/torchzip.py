"""The files of torch.save, composed here: the numbers come later, from copies, and each byte passes our hands once.

`torch.save` takes a snapshot and writes it in one go, holding the interpreter. Here the two are apart: `records` runs
torch's own pickling and says which memory the file will hold; `compose` yields the bytes of the archive, whenever
that suits. What comes out is what torch's own writer would have made: a stored zip, each record on a multiple of 64
bytes, with checksums.
"""

from __future__ import annotations

import io
import pickle
import struct
import sys
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.serialization import location_tag, normalize_storage_type

ALIGNMENT = 64
ROOT = "archive"
_FAR = 0xFFFFFFFF  # a size or a place that needs 64 bits
_VERSION = b"3\n"  # of torch's format
_alone: dict[tuple[torch.dtype, tuple[int, ...]], Alone] = {}


@dataclass(frozen=True)
class Record:
    """One member of the archive: bytes, or the memory of a storage."""

    name: str
    data: Any
    size: int


class _Pickler(pickle.Pickler):
    """Pickles as torch.save does: a storage becomes a reference to a member of the archive."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=2)
        self.storages: dict[int, tuple[str, torch.UntypedStorage]] = {}

    def persistent_id(self, value: Any) -> Any:
        if isinstance(value, torch.storage.TypedStorage):
            storage, kind, count = value._untyped_storage, getattr(torch, value._pickle_storage_type()), value._size()
        elif torch.is_storage(value):
            storage, kind, count = value, normalize_storage_type(type(value)), value.nbytes()
        else:
            return None
        key, _kept = self.storages.setdefault(storage._cdata, (str(len(self.storages)), storage))
        return ("storage", kind, key, location_tag(storage), count)


def records(value: Any) -> list[Record]:
    """What torch.save would put into the file. Storages are referred to and stay where they are, on a GPU as well."""
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(value)
    texts = {
        "data.pkl": file.getvalue(),
        ".format_version": b"1",
        ".storage_alignment": str(ALIGNMENT).encode(),
        "byteorder": sys.byteorder.encode(),
    }
    return [
        *(Record(name, text, len(text)) for name, text in texts.items()),
        *(Record(f"data/{key}", storage, storage.nbytes()) for key, storage in pickler.storages.values()),
        Record("version", _VERSION, len(_VERSION)),
    ]


@dataclass(frozen=True)
class Alone:
    """The file of one tensor, for all tensors of its type and shape: `head`, the numbers, `tail`.

    Thousands of tensors of a few shapes make up a sharded checkpoint; between those of one shape only the numbers
    and their checksum differ.
    """

    head: bytes
    tail: bytes
    size: int  # of all three
    crc_in_head: int
    crc_in_tail: int

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Alone:
        """That of a contiguous tensor which owns its storage."""
        key = (tensor.dtype, tuple(tensor.shape))
        if key not in _alone:
            _alone[key] = cls._make(torch.empty(tensor.shape, dtype=tensor.dtype))
        return _alone[key]

    @classmethod
    def _make(cls, tensor: torch.Tensor) -> Alone:
        head, tail, directory = b"", b"", b""
        numbers = crc_in_tail = 0
        count = 0
        for record in records(tensor):
            path = f"{ROOT}/{record.name}".encode()
            at = len(head) + numbers + len(tail)
            data = record.data if isinstance(record.data, bytes) else None
            crc = zlib.crc32(data) if data is not None else 0
            local = _local(path, record.size, crc, at)
            if data is None:
                head, numbers = head + local, record.size
                crc_in_head, crc_in_tail = at + 14, len(directory) + 16
            elif numbers:
                tail += local + data
            else:
                head += local + data
            directory += _central(path, record.size, crc, at)
            count += 1
        at = len(head) + numbers + len(tail)
        crc_in_tail += len(tail)
        tail += directory + _end(count, len(directory), at)
        return cls(head, tail, len(head) + numbers + len(tail), crc_in_head, crc_in_tail)

    def compose(self, data: memoryview | bytes) -> Iterator[memoryview | bytes]:
        """The bytes of the file that holds these numbers."""
        crc = struct.pack("<I", zlib.crc32(data))
        yield self.head[: self.crc_in_head] + crc + self.head[self.crc_in_head + 4 :]
        yield data
        yield self.tail[: self.crc_in_tail] + crc + self.tail[self.crc_in_tail + 4 :]


def compose(members: Iterable[tuple[str, memoryview | bytes]]) -> Iterator[memoryview | bytes]:
    """The bytes of an archive of these members, in pieces; names are those inside the root."""
    at = 0
    directory: list[bytes] = []
    for name, data in members:
        size = len(data)
        crc = zlib.crc32(data)
        path = f"{ROOT}/{name}".encode()
        head = _local(path, size, crc, at)
        yield head
        if size:
            yield data
        directory.append(_central(path, size, crc, at))
        at += len(head) + size
    listing = b"".join(directory)
    yield listing
    yield _end(len(directory), len(listing), at)


def length(members: Iterable[tuple[str, int]]) -> int:
    """How many bytes `compose` yields for members of these sizes."""
    at = listed = count = 0
    for name, size in members:
        path = f"{ROOT}/{name}".encode()
        listed += len(_central(path, size, 0, at))
        at += len(_local(path, size, 0, at)) + size
        count += 1
    return at + listed + len(_end(count, listed, at))


def _local(path: bytes, size: int, crc: int, at: int) -> bytes:
    extra = struct.pack("<HHQQ", 1, 16, size, size) if size >= _FAR else b""
    # torch pads with a field of its own, so that the numbers can be mapped into memory where they lie
    start = at + 30 + len(path) + len(extra) + 4
    extra += struct.pack("<2sH", b"FB", (pad := -start % ALIGNMENT)) + b"Z" * pad
    small = min(size, _FAR)
    return (
        struct.pack(
            "<4sHHHHHIIIHH",
            b"PK\3\4",
            45 if size >= _FAR else 0,
            0x0800,
            0,
            0,
            0,
            crc,
            small,
            small,
            len(path),
            len(extra),
        )
        + path
        + extra
    )


def _central(path: bytes, size: int, crc: int, at: int) -> bytes:
    far = b""
    if size >= _FAR:
        far += struct.pack("<QQ", size, size)
    if at >= _FAR:
        far += struct.pack("<Q", at)
    extra = struct.pack("<HH", 1, len(far)) + far if far else b""
    small = min(size, _FAR)
    version = 45 if far else 0
    fixed = struct.pack(
        "<4sHHHHHHIIIHHHHHII",
        b"PK\1\2",
        version,
        version,
        0x0800,
        0,
        0,
        0,
        crc,
        small,
        small,
        len(path),
        len(extra),
        0,
        0,
        0,
        0,
        min(at, _FAR),
    )
    return fixed + path + extra


def _end(count: int, size: int, at: int) -> bytes:
    end = b""
    if count >= 0xFFFF or size >= _FAR or at >= _FAR:
        end += struct.pack("<4sQHHIIQQQQ", b"PK\6\6", 44, 45, 45, 0, 0, count, count, size, at)
        end += struct.pack("<4sIQI", b"PK\6\7", 0, at + size, 1)
    few = min(count, 0xFFFF)
    return end + struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, few, few, min(size, _FAR), min(at, _FAR), 0)
