"""Frequency tables of `weightwise` (spec section 8.3): fitted to counts, written and read."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import numpy.typing as npt

from ..dtypes import by_code
from ..errors import FormatError
from ..kernels import CLASSES, ClassMap
from ..kernels.bits import BitReader, BitWriter
from ..kernels.rans import (
    ESCAPE,
    LAST_TOKEN,
    SLOTS,
    SYMBOLS,
    U32,
    Frequencies,
    token_start,
)  # fmt: skip

EXPLICIT = 255
_GEOMETRIC_TOKENS = 96
_ROOTS = (
    4294967296, 3938502376, 3611622603, 3311872529, 3037000500, 2784941738, 2553802834, 2341847524,
)  # fmt: skip
_TOP = 3584  # how the most frequent token is written: larger than any other can be
_MOST = (
    SLOTS - 2
)  # what all others may add up to, so that the most frequent one and escape keep a slot
Row = npt.NDArray[np.int64]
"""One number per symbol."""


def _settle(rows: Row) -> Row:
    """Give escape its one slot, and the first most frequent token what is missing to SLOTS.

    Raises:
        FormatError: The others leave it nothing.
    """
    rows = rows.copy()
    rows[..., ESCAPE] = 1
    top = np.argmax(rows, axis=-1)[..., None]
    rest = np.take_along_axis(rows, top, -1) + SLOTS - rows.sum(axis=-1, keepdims=True)
    if (rest < 1).any():
        raise FormatError("the frequencies of a table add up to more than its slots")
    np.put_along_axis(rows, top, rest, -1)
    return rows


@cache
def geometric() -> Row:
    """The gap tables for changes with probability 2^(-x/8), x = 0 … 254, in integers only."""
    p = np.array([_ROOTS[x % 8] >> (x // 8) for x in range(EXPLICIT)], np.uint64)[:, None]
    gap = np.array([token_start(t) for t in range(_GEOMETRIC_TOKENS + 1)], np.uint64)[None, :]
    shift, one = np.uint64(32), np.uint64(1)
    survival = np.full((EXPLICIT, _GEOMETRIC_TOKENS + 1), 1 << 32, np.uint64)
    q = np.uint64(1 << 32) - p
    while gap.any():
        survival = np.where(gap & one, (survival * q) >> shift, survival)
        q, gap = (q * q) >> shift, gap >> one
    mass = (survival[:, :-1] - survival[:, 1:]) * np.uint64(SLOTS - 1)
    mass = np.maximum((mass + np.uint64(1 << 31)) >> shift, one).astype(np.int64)
    beyond = survival[:, :-1] < np.uint64(1 << 20)
    beyond[:, 0] = False  # the first token is always there
    rows = np.zeros((EXPLICIT, SYMBOLS), np.int64)
    rows[:, :_GEOMETRIC_TOKENS] = np.where(np.logical_or.accumulate(beyond, axis=1), 0, mass)
    return _settle(rows)


def _bits(rows: Row) -> npt.NDArray[np.float64]:
    """What each token costs with a table, the raw bits of an escaped token included."""
    costs = 12 - np.log2(np.maximum(rows, 1))
    return np.where(rows > 0, costs, 12.0 + 8)


@cache
def _geometric_bits() -> npt.NDArray[np.float64]:
    return _bits(geometric())


def _coarse(frequencies: Row, half: int) -> Row:
    """Numbers of three significant bits: the nearest ones (half = 1), or those below (half = 0)."""
    drop = np.maximum(np.frexp(frequencies.astype(float))[1] - 3, 0)
    out: Row = (frequencies + (half << drop >> 1)) >> drop << drop
    return out


def fit(counts: U32) -> Row:
    """Explicit tables, as written, for tokens that were counted; all zeros where there were none.

    Tokens rarer than half a slot are left to escape: in the table they would cost more.
    """
    total = np.maximum(counts.sum(axis=-1, keepdims=True).astype(np.int64), 1)
    share = counts.astype(np.int64) * (SLOTS - 1)
    top = np.argmax(share, axis=-1)[..., None]
    nearest = np.maximum((share + total // 2) // total, 1)
    rows = _coarse(np.where((2 * share >= total) & (share > 0), nearest, 0), 1)
    others = rows.sum(axis=-1, keepdims=True) - np.take_along_axis(rows, top, -1)
    rows = np.where(others > _MOST, _coarse(share // total, 0), rows)
    used = np.take_along_axis(share, top, -1) > 0
    np.put_along_axis(rows, top, np.where(used, _TOP, 0), -1)
    return rows


def fit_gaps(counts: U32) -> tuple[npt.NDArray[np.int64], Row]:
    """Per class the better of geometric and explicit tables: codes, and rows as written."""
    rows = fit(counts)
    numbers = counts.astype(float)
    # Not a matrix product: BLAS would wake threads of its own, which then spin beside our workers.
    geometric_cost = np.einsum("ct,xt->cx", numbers, _geometric_bits())
    codes = np.argmin(geometric_cost, axis=1)
    lengths = np.frexp(rows.astype(float))[1]
    last = SYMBOLS - np.argmax(rows[:, ::-1] > 0, axis=1)
    table = 8 + 4 * last + np.clip(lengths - 1, 0, 2).sum(axis=1)
    explicit_cost = (numbers * _bits(_settle(rows))).sum(axis=1) + table
    explicit = counts.any(axis=1) & (explicit_cost < geometric_cost.min(axis=1))
    return np.where(explicit, EXPLICIT, codes), np.where(explicit[:, None], rows, 0)


def _write_row(bits: BitWriter, row: Row) -> None:
    used = np.flatnonzero(row[:ESCAPE])
    n = int(used[-1]) + 1 if len(used) else 0
    bits.put(n, 8)
    for frequency in row[:n].tolist():
        length = frequency.bit_length()
        bits.put(length, 4)
        if length:
            kept = min(length - 1, 2)
            bits.put(frequency >> (length - 1 - kept), kept)


def _read_row(bits: BitReader) -> Row:
    row = np.zeros(SYMBOLS, np.int64)
    n = bits.take(8)
    if n > LAST_TOKEN + 1:
        raise FormatError("a table has more tokens than there are")
    for t in range(n):
        length = bits.take(4)
        if length > 12:
            raise FormatError("a table holds a frequency above its slots")
        if length:
            kept = min(length - 1, 2)
            row[t] = (1 << kept | bits.take(kept)) << (length - 1 - kept)
    if n and not row[n - 1]:
        raise FormatError("a table does not end with a token that it has")
    return row


class Tables:
    """The class map of a dtype and its tables.

    Args:
        classes: How weights fall into classes.
        gap_codes: Per class the number of a geometric table, or EXPLICIT.
        rows: Shape (2, CLASSES, SYMBOLS), explicit tables as written: gaps, then values.
    """

    def __init__(self, classes: ClassMap, gap_codes: Sequence[int], rows: Row) -> None:
        self.classes = classes
        self.gap_codes = tuple(gap_codes)
        self.rows = rows
        self.frequencies: Frequencies = np.zeros((2, CLASSES, SYMBOLS), np.uint16)
        used = rows.any(axis=2)
        self.frequencies[used] = _settle(rows[used])
        for c, code in enumerate(self.gap_codes):
            if code != EXPLICIT:
                self.frequencies[0, c] = geometric()[code]


def build(classes: ClassMap, gap_tokens: U32, value_tokens: U32) -> Tables:
    """Tables for a dtype from its token histograms per class."""
    rows = np.zeros((2, CLASSES, SYMBOLS), np.int64)
    n = classes.count
    codes, rows[0, :n] = fit_gaps(gap_tokens[:n])
    rows[1, :n] = fit(value_tokens[:n])
    # A class may be empty in the sample only: with one token, escape can say everything.
    rows[1, :n, 0] = np.where(rows[1, :n].any(axis=1), rows[1, :n, 0], _TOP)
    return Tables(classes, codes.tolist(), rows)


def write_tables(tables: list[Tables]) -> bytes:
    """The `tables` tensor of a part."""
    bits = BitWriter()
    bits.put(len(tables), 8)
    for t in tables:
        bits.put(t.classes.dtype.code, 8)
        bits.put(t.classes.lo, 11)
        bits.put(t.classes.count - 1, 4)
        for c in range(t.classes.count):
            bits.put(t.gap_codes[c], 8)
            if t.gap_codes[c] == EXPLICIT:
                _write_row(bits, t.rows[0, c])
            _write_row(bits, t.rows[1, c])
    return bits.finish()


def read_tables(data: bytes | memoryview) -> dict[int, Tables]:
    """The tables of a part by dtype code.

    Raises:
        FormatError: They break spec section 8.3.
    """
    bits = BitReader(data)
    found: dict[int, Tables] = {}
    for _ in range(bits.take(8)):
        dtype = by_code(bits.take(8))
        lo, count = bits.take(11), bits.take(4) + 1
        if dtype.code <= max(found, default=0):
            raise FormatError("the tables' dtypes do not ascend")
        if lo > dtype.exponent_mask or (count > 1 and not dtype.is_float):
            raise FormatError(f"the classes of {dtype.name} reach outside its exponents")
        rows = np.zeros((2, CLASSES, SYMBOLS), np.int64)
        codes = []
        for c in range(count):
            codes.append(bits.take(8))
            if codes[-1] == EXPLICIT:
                rows[0, c] = _read_row(bits)
            rows[1, c] = _read_row(bits)
        found[dtype.code] = Tables(ClassMap(dtype, lo, count), codes, rows)
    if not bits.spent():
        raise FormatError("the tables do not end where they should")
    return found
