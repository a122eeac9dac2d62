"""Strategies: two versions of a run of weights, of any dtype, length, density and alignment."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from pulsecast.dtypes import DTYPES, DType, Lanes
from tests.states import changed_lanes, odd_patterns, random_lanes

# Around the steps of vector registers, bit masks, tiles and key runs.
EDGES = sorted(
    {n + d for n in (0, 8, 16, 32, 64, 128, 256, 1024, 2048, 4096, 8192) for d in (-1, 0, 1)} - {-1}
)


@dataclass(frozen=True)
class Pair:
    """Two versions of a run of weights."""

    dtype: DType
    old: Lanes
    new: Lanes

    def __repr__(self) -> str:
        """Short enough to read, whole when small."""
        if len(self.old) <= 8:
            return f"Pair({self.dtype.name}, {self.old.tolist()}, {self.new.tolist()})"
        count = int((self.old != self.new).sum())
        return f"Pair({self.dtype.name}, {len(self.old)} lanes, {count} changes)"


def shifted(lanes: Lanes, offset: int) -> Lanes:
    """A copy that starts ``offset`` bytes behind an aligned address."""
    room = np.empty(lanes.nbytes + 16, np.uint8)
    out = room[offset : offset + lanes.nbytes].view(lanes.dtype)
    out[:] = lanes
    return out


@st.composite
def small_pairs(draw: st.DrawFn, dtypes: tuple[DType, ...] = DTYPES) -> Pair:
    """Bit patterns one by one: these shrink."""
    dtype = draw(st.sampled_from(dtypes))
    any_bits = st.integers(0, 2 ** (8 * dtype.width) - 1)
    pattern = st.one_of(any_bits, st.sampled_from(odd_patterns(dtype).tolist()))
    both = st.one_of(st.tuples(pattern, pattern), pattern.map(lambda p: (p, p)))
    rows = draw(st.lists(both, max_size=80))
    old, new = (np.array([row[i] for row in rows], dtype.lane) for i in (0, 1))
    return Pair(dtype, old, new)


@st.composite
def large_pairs(draw: st.DrawFn, dtypes: tuple[DType, ...] = DTYPES, most: int = 8193) -> Pair:
    """Lengths around every boundary, from equal to all changed, at any alignment."""
    dtype = draw(st.sampled_from(dtypes))
    size = draw(st.sampled_from([n for n in EDGES if n <= most]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    share = draw(st.sampled_from([0.0, 0.002, 0.02, 0.3, 0.97, 1.0]))
    changes = min(size, int(np.ceil(share * size)))
    old = random_lanes(rng, dtype, size)
    if draw(st.booleans()) and size:
        old[:] = old[0]  # one class only
    new = changed_lanes(rng, dtype, old, changes)
    return Pair(
        dtype, *(shifted(lanes, draw(st.sampled_from([0, 0, 1, 2, 4, 7]))) for lanes in (old, new))
    )


def pairs(dtypes: tuple[DType, ...] = DTYPES, most: int = 8193) -> st.SearchStrategy[Pair]:
    """Small ones and large ones."""
    return st.one_of(small_pairs(dtypes), large_pairs(dtypes, most))
