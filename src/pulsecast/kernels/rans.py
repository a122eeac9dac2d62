"""Entropy coding of class-major gaps and differences in Python: the oracle of the native coder.

Tokens of spec section 8.1, sparse blocks of section 8.2. A table is an array of frequencies over
`SYMBOLS` symbols; a decoder's table has one entry per slot.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..errors import FormatError, TruncatedError
from .bits import BitReader, BitWriter, read_varint, write_varint
from .classes import CLASSES

SYMBOLS = 256
ESCAPE = 255
LAST_TOKEN = 251
SLOTS = 4096
_SLOT_BITS = 12
_START = 1 << 16

U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]
Frequencies = npt.NDArray[np.uint16]
"""Shape (2, CLASSES, SYMBOLS): gap tables, then value tables; 0 means escaped."""


@dataclass(frozen=True, slots=True)
class Decoding:
    """The tables of a dtype as decoders want them."""

    frequencies: Frequencies
    slots: npt.NDArray[np.uint8]
    """Shape (2, CLASSES, SLOTS): the symbol of every slot."""

    @classmethod
    def of(cls, frequencies: Frequencies) -> Decoding:
        """Lay out tables that add up to SLOTS, or are all zeros for classes without changes."""
        slots = np.zeros((2, CLASSES, SLOTS), np.uint8)
        for kind, c in zip(*np.nonzero(frequencies.any(axis=2)), strict=True):
            slots[kind, c] = np.repeat(np.arange(SYMBOLS, dtype=np.uint8), frequencies[kind, c])
        return cls(np.ascontiguousarray(frequencies), slots)


def token_start(token: int) -> int:
    """The smallest number with this token."""
    return token if token < 4 else (4 | (token & 3)) << ((token >> 2) - 1)


def token_extra(token: int) -> int:
    """How many raw bits follow the token."""
    return 0 if token < 4 else (token >> 2) - 1


def token_of(number: int) -> int:
    """The token of a number."""
    if number < 4:
        return number
    e = number.bit_length() - 1
    return 4 * (e - 1) + ((number >> (e - 2)) & 3)


_STARTS = np.array([token_start(t) for t in range(LAST_TOKEN + 1)], np.uint64)


def tokens_of(numbers: npt.NDArray[np.unsignedinteger]) -> npt.NDArray[np.int64]:
    """The tokens of many numbers."""
    return np.searchsorted(_STARTS, numbers.astype(np.uint64), side="right").astype(np.int64) - 1


def histogram(gaps: U32, diffs: U64, counts: U32) -> tuple[U32, U32]:
    """How often each class has each gap token and each value token."""
    cls = np.repeat(np.arange(CLASSES), counts)
    shape = (CLASSES, SYMBOLS)
    tables = []
    for numbers in (gaps, diffs):
        flat = cls * SYMBOLS + tokens_of(numbers)
        tables.append(
            np.bincount(flat, minlength=CLASSES * SYMBOLS).astype(np.uint32).reshape(shape)
        )
    return tables[0], tables[1]


def encode(gaps: U32, diffs: U64, counts: U32, classes: int, frequencies: Frequencies) -> bytes:
    """A sparse block (spec section 8.2)."""
    head = b"".join(write_varint(int(counts[c])) for c in range(classes))
    starts = np.cumsum(frequencies, axis=2, dtype=np.int64) - frequencies
    cls = np.repeat(np.arange(CLASSES), counts)
    words: list[int] = []
    states = [_START, _START]
    bits = BitWriter()
    symbols = []
    for c, gap, diff in zip(cls.tolist(), gaps.tolist(), diffs.tolist(), strict=True):
        for kind, number in ((0, gap), (1, diff)):
            token = token_of(number)
            symbol = token if frequencies[kind, c, token] else ESCAPE
            if symbol == ESCAPE:
                bits.put(token, 8)
            bits.put(number - token_start(token), token_extra(token))
            symbols.append((kind, c, symbol))
    for kind, c, symbol in reversed(symbols):
        f, x = int(frequencies[kind, c, symbol]), states[kind]
        if x >= f << (32 - _SLOT_BITS):
            words.append(x & 0xFFFF)
            x >>= 16
        states[kind] = ((x // f) << _SLOT_BITS) + x % f + int(starts[kind, c, symbol])
    tail = np.array(words[::-1], "<u2").tobytes()
    return (
        head + np.array(states, "<u4").tobytes() + write_varint(len(words)) + tail + bits.finish()
    )


def decode_counts(data: bytes, classes: int, size: int) -> tuple[U32, int]:
    """The number of changes per class, and where they end in the block."""
    counts = np.zeros(CLASSES, np.uint32)
    position = total = 0
    for c in range(classes):
        count, position = read_varint(data, position)
        total += count
        if total > size:
            raise FormatError(f"a block of {size} weights declares {total} changes or more")
        counts[c] = count
    return counts, position


def decode(
    data: bytes, classes: int, width: int, size: int, tables: Decoding
) -> tuple[U32, U32, U64]:
    """Counts per class, gaps and differences of a sparse block, without a look at a weight."""
    counts, position = decode_counts(data, classes, size)
    if len(data) < position + 8:
        raise TruncatedError("a block ends inside its states")
    states = [int(x) for x in np.frombuffer(data, "<u4", 2, position)]
    n_words, position = read_varint(data, position + 8)
    if n_words > (len(data) - position) // 2:
        raise TruncatedError("a block ends inside its words")
    if min(states) < _START:
        raise FormatError("a block's state is out of range")
    words = np.frombuffer(data, "<u2", n_words, position).tolist()
    bits = BitReader(data[position + 2 * n_words :])
    frequencies = tables.frequencies.astype(np.int64)
    starts = np.cumsum(frequencies, axis=2) - frequencies
    numbers: tuple[list[int], list[int]] = ([], [])
    limits = (size - 1, (1 << (8 * width)) - 1)
    word = 0
    for c in range(CLASSES):
        if counts[c] and not frequencies[:, c, ESCAPE].all():
            raise FormatError("a block has changes in a class without tables")
        rank = 0
        for _ in range(int(counts[c])):
            symbols = [0, 0]
            for kind in (0, 1):
                slot = states[kind] & (SLOTS - 1)
                symbol = int(tables.slots[kind, c, slot])
                x = int(frequencies[kind, c, symbol]) * (states[kind] >> _SLOT_BITS) + slot
                x -= int(starts[kind, c, symbol])
                if x < _START:
                    if word == len(words):
                        raise TruncatedError("a block's words run out")
                    x, word = x << 16 | words[word], word + 1
                states[kind], symbols[kind] = x, symbol
            for kind in (0, 1):
                token = bits.take(8) if symbols[kind] == ESCAPE else symbols[kind]
                if token > LAST_TOKEN:
                    raise FormatError("a block holds a token that does not exist")
                number = token_start(token) + bits.take(token_extra(token))
                if number > limits[kind]:
                    raise FormatError("a block holds a gap or a difference out of range")
                numbers[kind].append(number)
            rank += numbers[0][-1] + 1
            if rank > size:
                raise FormatError("a block's changes reach beyond its end")
    if states != [_START, _START] or word != len(words) or not bits.spent():
        raise FormatError("a block does not end where its streams end")
    return counts, np.array(numbers[0], np.uint32), np.array(numbers[1], np.uint64)
