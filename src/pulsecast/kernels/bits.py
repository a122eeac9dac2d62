"""Varints and bit streams (spec sections 3 and 8)."""

from __future__ import annotations

from ..errors import FormatError, TruncatedError


def write_varint(number: int) -> bytes:
    """LEB128 of a number in [0, 2^64)."""
    out = bytearray()
    while number > 0x7F:
        out.append(0x80 | (number & 0x7F))
        number >>= 7
    out.append(number)
    return bytes(out)


def read_varint(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """The number at a position and the position behind it.

    Raises:
        TruncatedError: The data ends inside the number.
        FormatError: It has more bytes than it needs, or is 2^64 or more.
    """
    number = shift = 0
    while True:
        if position >= len(data):
            raise TruncatedError("a varint is cut off")
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if not byte & 0x80:
            break
        shift += 7
        if shift > 63:
            raise FormatError("a varint has more than ten bytes")
    if (byte == 0 and shift > 0) or number >> 64:
        raise FormatError("a varint is not minimal, or above 2^64 - 1")
    return number, position


class BitWriter:
    """Bits from the low end of each byte; `finish` pads with zeros."""

    def __init__(self) -> None:
        self._bits = 0
        self._filled = 0
        self._out = bytearray()

    def put(self, number: int, bits: int) -> None:
        """Append the low bits of a number."""
        self._bits |= (number & ((1 << bits) - 1)) << self._filled
        self._filled += bits
        while self._filled >= 8:
            self._out.append(self._bits & 0xFF)
            self._bits >>= 8
            self._filled -= 8

    def finish(self) -> bytes:
        """All bytes."""
        return bytes(self._out) + (bytes([self._bits]) if self._filled else b"")


class BitReader:
    """Reads what `BitWriter` wrote."""

    def __init__(self, data: bytes | memoryview) -> None:
        self._data = data
        self._position = 0

    def take(self, bits: int) -> int:
        """The next number of so many bits.

        Raises:
            TruncatedError: The stream ends before.
        """
        end = self._position + bits
        if end > 8 * len(self._data):
            raise TruncatedError("a bit stream is cut off")
        window = int.from_bytes(self._data[self._position >> 3 : (end + 7) >> 3], "little")
        number = (window >> (self._position & 7)) & ((1 << bits) - 1)
        self._position = end
        return number

    def spent(self) -> bool:
        """Whether fewer than eight bits are left, all of them zero."""
        left = 8 * len(self._data) - self._position
        return left < 8 and (left == 0 or self._data[-1] >> (8 - left) == 0)
