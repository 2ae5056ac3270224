"""Tensors inside files: where they lie, and a look at their numbers while the bytes pass by."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

BITS = {
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
    "BOOL": 8, "U8": 8, "I8": 8,
    "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32,
    "I64": 64, "U64": 64, "F64": 64, "C64": 64, "C128": 128,
}  # fmt: skip

# A number is NaN or infinite when all bits of its exponent are set (8-bit formats: the listed patterns).
_EXPONENT = {
    "F16": ("<u2", 0x7C00),
    "BF16": ("<u2", 0x7F80),
    "F32": ("<u4", 0x7F800000),
    "C64": ("<u4", 0x7F800000),
    "F64": ("<u8", 0x7FF0000000000000),
    "C128": ("<u8", 0x7FF0000000000000),
    "F8_E5M2": ("u1", 0x7C),
}
_NAN_BYTES = {"F8_E4M3": b"\x7f\xff", "F8_E8M0": b"\xff", "F8_E4M3FNUZ": b"\x80", "F8_E5M2FNUZ": b"\x80"}
_STEP = 256 * 1024  # bytes looked at together: small enough to stay in the processor's cache


@dataclass(frozen=True)
class Tensor:
    """A tensor's place in a file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    size: int


class Watch:
    """Sees a span of a file pass by in pieces. `begin` and `size` are bytes of the file."""

    def __init__(self, begin: int, size: int) -> None:
        self.begin = begin
        self.size = size

    def feed(self, piece: memoryview) -> None:
        """Take the next bytes of the span."""
        raise NotImplementedError


class Numbers(Watch):
    """Looks for numbers that are not finite, and for any that is not zero, in a tensor."""

    def __init__(self, tensor: Tensor, *, wants_nonzero: bool = False) -> None:
        super().__init__(tensor.begin, tensor.size)
        self.tensor = tensor
        self.finite = True
        self.all_zero = True
        self._wants_nonzero = wants_nonzero
        self._rest = b""

    @staticmethod
    def can(dtype: str) -> bool:
        """Whether numbers of this type can be other than finite."""
        return dtype in _EXPONENT or dtype in _NAN_BYTES

    def feed(self, piece: memoryview) -> None:
        """Look at the next bytes; an element that is cut in two waits for its other half."""
        import numpy as np

        if not self.finite and not self._wants_nonzero:
            return
        if self._rest:
            piece = memoryview(self._rest + bytes(piece))
            self._rest = b""
        width = max(1, BITS.get(self.tensor.dtype, 8) // 8)
        if cut := len(piece) % width:
            self._rest = bytes(piece[-cut:])
            piece = piece[:-cut]
        for start in range(0, len(piece), _STEP):
            self._look(np, piece[start : start + _STEP])

    def _look(self, np: Any, part: memoryview) -> None:
        if self._wants_nonzero and self.all_zero:
            self.all_zero = not np.frombuffer(part, "u1").any()
        if not self.finite:
            return
        if self.tensor.dtype in _EXPONENT:
            kind, mask = _EXPONENT[self.tensor.dtype]
            values = np.frombuffer(part, kind)
            self.finite = not values.size or int((values & np.array(mask, kind)).max()) != mask
        elif self.tensor.dtype in _NAN_BYTES:
            raw = bytes(part)
            self.finite = not any(byte in raw for byte in _NAN_BYTES[self.tensor.dtype])


class Checksum(Watch):
    """The CRC-32 of a span."""

    def __init__(self, begin: int, size: int, expected: int, name: str) -> None:
        super().__init__(begin, size)
        self.expected = expected
        self.name = name
        self._value = 0

    def feed(self, piece: memoryview) -> None:
        """Take the next bytes of the span."""
        self._value = zlib.crc32(piece, self._value)

    @property
    def right(self) -> bool:
        """Whether the bytes are those that were written."""
        return self._value == self.expected
