"""Frequency tables: spec section 8.3."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pulsecast.dtypes import by_name
from pulsecast.errors import FormatError, TruncatedError, UnsupportedError
from pulsecast.kernels import CLASSES, ClassMap
from pulsecast.kernels.bits import BitWriter
from pulsecast.kernels.rans import (
    ESCAPE,
    LAST_TOKEN,
    SLOTS,
    SYMBOLS,
    Decoding,
    token_extra,
    token_of,
    token_start,
)
from pulsecast.patch import tables as module
from pulsecast.patch.tables import EXPLICIT, build, geometric, read_tables, write_tables

BF16 = by_name("BF16")
ROOTS = (
    4294967296, 3938502376, 3611622603, 3311872529, 3037000500, 2784941738, 2553802834, 2341847524,
)  # fmt: skip


def spec_start(token: int) -> int:
    return token if token < 4 else (4 + (token & 3)) << ((token >> 2) - 1)


def spec_geometric(x: int) -> dict[int, int]:
    """The geometric table of x, word by word from the spec, with Python integers."""
    p = ROOTS[x % 8] >> (x // 8)

    def survival(g: int) -> int:
        r, q = 1 << 32, (1 << 32) - p
        while g:
            if g & 1:
                r = (r * q) >> 32
            q = (q * q) >> 32
            g >>= 1
        return r

    n = 1
    while n < 96 and survival(spec_start(n)) >= 1 << 20:
        n += 1
    table = {}
    for t in range(n):
        mass = survival(spec_start(t)) - survival(spec_start(t + 1))
        table[t] = max(1, (mass * 4095 + (1 << 31)) >> 32)
    table[ESCAPE] = 1
    first_top = max(range(n), key=lambda t: (table[t], -t))
    table[first_top] += SLOTS - sum(table.values())
    return table


def test_tokens_are_the_specs() -> None:
    for token in range(LAST_TOKEN + 1):
        start = spec_start(token)
        assert token_start(token) == start
        assert token_of(start) == token
        last = start + (1 << token_extra(token)) - 1
        assert token_of(last) == token
        if token < LAST_TOKEN:
            assert spec_start(token + 1) == last + 1
        else:
            assert last == 2**64 - 1


@pytest.mark.parametrize("x", range(EXPLICIT))
def test_geometric_tables_are_the_specs_and_valid(x: int) -> None:
    row = geometric()[x]
    assert row.sum() == SLOTS
    assert row[ESCAPE] == 1
    assert row.min() == 0
    assert row[0] >= 1
    assert {t: int(f) for t, f in enumerate(row) if f} == spec_geometric(x)


def round_trip(gaps: np.ndarray, values: np.ndarray, classes: ClassMap) -> None:
    made = build(classes, gaps, values)
    data = write_tables([made])
    read = read_tables(data)[classes.dtype.code]
    assert read.classes == classes
    assert (read.frequencies == made.frequencies).all()
    assert write_tables([read]) == data
    frequencies = made.frequencies[:, : classes.count].astype(int)
    assert (frequencies.sum(axis=2) == SLOTS).all()
    assert (frequencies[:, :, ESCAPE] == 1).all()
    assert not frequencies[:, :, LAST_TOKEN + 1 : ESCAPE].any()
    slots = Decoding.of(read.frequencies).slots
    for kind in range(2):
        for c in range(classes.count):
            assert (np.bincount(slots[kind, c], minlength=SYMBOLS) == frequencies[kind, c]).all()
            assert (np.diff(slots[kind, c].astype(int)) >= 0).all()


def histogram(tokens: dict[int, int]) -> np.ndarray:
    row = np.zeros(SYMBOLS, np.uint64)
    for token, count in tokens.items():
        row[token] = count
    return row


def one_class(gaps: dict[int, int], values: dict[int, int]) -> tuple[np.ndarray, np.ndarray]:
    out = np.zeros((2, CLASSES, SYMBOLS), np.uint64)
    out[0, 0], out[1, 0] = histogram(gaps), histogram(values)
    return out[0], out[1]


ALL_TOKENS = range(LAST_TOKEN + 1)
PATHOLOGICAL: dict[str, dict[int, int]] = {
    "nothing": {},
    "one token": {0: 1},
    "the last token": {LAST_TOKEN: 1},
    "all equal": dict.fromkeys(ALL_TOKENS, 1),
    "all huge": dict.fromkeys(ALL_TOKENS, 2**32 - 1),
    "one huge": {7: 2**32 - 1},
    "one huge, all others once": {**dict.fromkeys(ALL_TOKENS, 1), 9: 2**32 - 1},
    "two equal": {3: 2**31, 200: 2**31},
    "halves and quarters": {t: 2 ** (40 - t) for t in range(41)},
    "flat but one": {**dict.fromkeys(ALL_TOKENS, 1000), 17: 999},
    "at half a slot": {0: 8190, **dict.fromkeys(range(1, 252), 1)},
    "seven eighths": {0: 7, 1: 1},
    "the largest is last": {t: t + 1 for t in ALL_TOKENS},
}


@pytest.mark.parametrize("tokens", PATHOLOGICAL.values(), ids=PATHOLOGICAL.keys())
def test_pathological_histograms_round_trip(tokens: dict[int, int]) -> None:
    round_trip(*one_class(tokens, tokens), ClassMap(BF16))
    round_trip(*one_class({}, tokens), ClassMap(BF16))
    round_trip(*one_class(tokens, {}), ClassMap(BF16))


counts = st.one_of(st.integers(0, 3), st.integers(0, 2**16), st.integers(0, 2**32 - 1))
histograms = st.dictionaries(st.integers(0, LAST_TOKEN), counts, max_size=LAST_TOKEN + 1)


@given(gaps=histograms, values=histograms)
@example(gaps={0: 2**32 - 1, 1: 2**32 - 1}, values={0: 1, 251: 2**32 - 1})
def test_any_histogram_round_trips(gaps: dict[int, int], values: dict[int, int]) -> None:
    round_trip(*one_class(gaps, values), ClassMap(BF16))


@given(
    seed=st.integers(0, 2**32),
    lo=st.integers(0, 255),
    count=st.integers(1, CLASSES),
    sparsity=st.floats(0, 1),
)
def test_many_classes_round_trip(seed: int, lo: int, count: int, sparsity: float) -> None:
    rng = np.random.default_rng(seed)
    shape = (2, CLASSES, SYMBOLS)
    made = (rng.pareto(0.5, shape) * 3).clip(0, 2**32 - 1).astype(np.uint64)
    made[rng.random(shape) < sparsity] = 0
    made[:, count:] = 0
    made[:, :, LAST_TOKEN + 1 :] = 0
    round_trip(made[0], made[1], ClassMap(BF16, lo, count))


def test_tables_of_several_dtypes() -> None:
    maps = [ClassMap(BF16, 100, 3), ClassMap(by_name("F64"), 2047, 2), ClassMap(by_name("BOOL"))]
    made = [build(m, *one_class({1: 5}, {0: 3, 4: 1})) for m in maps]
    read = read_tables(write_tables(made))
    assert list(read) == [1, 4, 15]
    assert [read[m.dtype.code].classes for m in maps] == maps
    assert read_tables(write_tables([])) == {}


def test_a_fit_costs_little_more_than_the_entropy() -> None:
    rng = np.random.default_rng(0)
    for scale in (1, 5, 40):
        row = histogram({})
        values, found = np.unique(
            rng.geometric(1 / scale, 100_000).clip(1, 251), return_counts=True
        )
        row[values] = found
        settled = module._settle(module.fit(row))
        share = row[row > 0] / row.sum()
        entropy = -(share * np.log2(share)).sum()
        bits = np.where(settled > 0, 12 - np.log2(np.maximum(settled, 1)), 20)
        assert (bits * row).sum() / row.sum() < 1.02 * entropy + 0.02


class Forged(BitWriter):
    """A `tables` stream with one dtype, written number by number."""

    def __init__(self, dtype: int = 1, lo: int = 100, count: int = 1, dtypes: int = 1) -> None:
        super().__init__()
        self.put(dtypes, 8)
        self.put(dtype, 8)
        self.put(lo, 11)
        self.put(count - 1, 4)

    def row(self, frequencies: list[int], n: int | None = None) -> Forged:
        self.put(len(frequencies) if n is None else n, 8)
        for f in frequencies:
            length = f.bit_length()
            self.put(length, 4)
            if length:
                kept = min(length - 1, 2)
                self.put(f >> (length - 1 - kept), kept)
        return self

    def gap(self, x: int) -> Forged:
        self.put(x, 8)
        return self


def test_rows_are_read_as_the_spec_says() -> None:
    rows = read_tables(Forged().gap(255).row([0, 3, 448, 5]).row([1024, 1024]).finish())[1]
    gap, value = rows.frequencies[0, 0], rows.frequencies[1, 0]
    assert gap[[0, 1, 2, 3, ESCAPE]].tolist() == [0, 3, 4087, 5, 1]
    assert value[[0, 1, ESCAPE]].tolist() == [3071, 1024, 1]  # the first of the most frequent


def test_the_most_frequent_token_may_lose() -> None:
    read = read_tables(Forged().gap(0).row([3584, 256, 256, 128]).finish())[1]
    assert read.frequencies[1, 0, [0, 1, 2, 3, ESCAPE]].tolist() == [3455, 256, 256, 128, 1]


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", TruncatedError),
        (b"\1", TruncatedError),
        (Forged(dtype=0).gap(0).row([]).finish(), UnsupportedError),
        (Forged(dtype=16).gap(0).row([]).finish(), UnsupportedError),
        (Forged(lo=256).gap(0).row([]).finish(), FormatError),
        (Forged(dtype=7, lo=1).gap(0).row([]).finish(), FormatError),
        (Forged(dtype=7, lo=0, count=2).gap(0).row([]).gap(0).row([]).finish(), FormatError),
        (Forged(dtypes=2).gap(0).row([]).finish(), FormatError),
        (Forged().gap(0).row([], n=253).finish() + bytes(200), FormatError),
        (Forged().gap(0).row([1, 0]).finish(), FormatError),
        (Forged().gap(0).row([8192]).finish(), FormatError),
        (Forged().gap(0).row([3584, 3584, 3584]).finish(), FormatError),
        (Forged().gap(0).row([3584] + [448] * 10).finish(), FormatError),
        (Forged().gap(255).row([3584, 3584, 512]).row([]).finish(), FormatError),
        (Forged().gap(0).row([]).finish() + b"\0", FormatError),
        (Forged().gap(0).row([1], n=2).finish(), FormatError),
    ],
    ids=[
        "empty", "no dtype", "dtype 0", "dtype 16", "lo outside", "lo of integers",
        "classes of integers", "second dtype missing", "253 tokens", "last token without",
        "13 bits", "three large", "others above the slots", "gap table above",
        "trailing byte", "row cut off",
    ],
)  # fmt: skip
def test_broken_tables_are_refused(data: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        read_tables(data)


def test_a_dtype_twice_or_in_the_wrong_order_is_refused() -> None:
    def tables_of(*codes: int) -> bytes:
        bits = BitWriter()
        bits.put(len(codes), 8)
        for code in codes:
            bits.put(code, 8)
            bits.put(0, 11 + 4)
            bits.put(0, 8)
            bits.put(0, 8)
        return bits.finish()

    assert list(read_tables(tables_of(1, 3, 15))) == [1, 3, 15]
    for codes in ((1, 1), (3, 1), (15, 7)):
        with pytest.raises(FormatError, match="ascend"):
            read_tables(tables_of(*codes))


def test_padding_bits_must_be_zero() -> None:
    data = bytearray(Forged().gap(3).row([1]).finish())
    read_tables(data)
    data[-1] |= 0x80
    with pytest.raises(FormatError, match="end"):
        read_tables(bytes(data))
