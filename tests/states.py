"""States for tests: bit patterns that a codec could get wrong, and exact comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from pulsecast.dtypes import DTYPES, DType, Lanes, by_name
from pulsecast.patch.layout import Layout, TensorSpec
from pulsecast.patch.state import State

NAMES = tuple(d.name for d in DTYPES)
Shapes = Mapping[str, tuple[str, tuple[int, ...]]]


def odd_patterns(dtype: DType) -> Lanes:
    """±0, ±1 ULP, infinities, NaNs with payloads, subnormals, the ends of the order, all ones."""
    bits = 8 * dtype.width
    sign = 1 << (bits - 1)
    found = {0, 1, 2, sign, sign | 1, sign - 1, (1 << bits) - 1, 0x55, 0xAA}
    if dtype.is_float:
        infinity = dtype.exponent_mask << dtype.mantissa_bits
        one = 1 << dtype.mantissa_bits
        quiet = one >> 1
        found |= {infinity, infinity + 1, infinity - 1, infinity | quiet, infinity | quiet | 1}
        found |= {one - 1, one, one + 1, infinity >> 1, (infinity >> 1) + 1}
        found |= {pattern | sign for pattern in found}
    return np.array(sorted(found), dtype.lane)


def random_lanes(rng: np.random.Generator, dtype: DType, size: int) -> Lanes:
    """A mixture of random bits, odd patterns and patterns with near-by exponents."""
    lanes = np.frombuffer(rng.bytes(size * dtype.width), dtype.lane).copy()
    odd = odd_patterns(dtype)
    kind = rng.integers(0, 3, size)
    lanes[kind == 0] = rng.choice(odd, int((kind == 0).sum()))
    if dtype.is_float:
        middle = dtype.exponent_mask // 2 << dtype.mantissa_bits
        spread = 4 << dtype.mantissa_bits
        near = rng.integers(middle - spread, middle, int((kind == 1).sum())).astype(dtype.lane)
        lanes[kind == 1] = near
    return lanes


def changed_lanes(rng: np.random.Generator, dtype: DType, lanes: Lanes, changes: int) -> Lanes:
    """A copy in which exactly so many weights have other bits: mostly by 1, some by anything."""
    new = lanes.copy()
    at = rng.choice(len(lanes), changes, replace=False)
    step = np.frombuffer(rng.bytes(changes * dtype.width), dtype.lane).copy()
    small = rng.random(changes) < 0.7
    step[small] = dtype.lane.type(1)
    step[step == 0] = dtype.lane.type(1)
    new[at] += step
    return new


def make_state(shapes: Shapes, seed: int = 0) -> State:
    """A state of named tensors ``{name: (dtype, shape)}``."""
    rng = np.random.default_rng(seed)
    layout = Layout([TensorSpec(n, by_name(d), tuple(s)) for n, (d, s) in shapes.items()])
    return State(layout, [random_lanes(rng, t.dtype, t.size) for t in layout.tensors])


def change_state(state: State, density: float, seed: int = 1) -> State:
    """A copy with this share of every tensor changed, at least one weight if the share is not 0."""
    rng = np.random.default_rng(seed)
    arrays = []
    for tensor, lanes in zip(state.layout.tensors, state.arrays, strict=True):
        wanted = min(tensor.size, max(round(density * tensor.size), 1 if density else 0))
        arrays.append(changed_lanes(rng, tensor.dtype, lanes, wanted))
    return State(state.layout, arrays)


MIXED: Shapes = {
    "embed": ("BF16", (70, 33)),
    "half": ("F16", (513,)),
    "master": ("F32", (9, 8, 7)),
    "double": ("F64", (65,)),
    "fp8": ("F8_E4M3", (31, 5)),
    "fp8b": ("F8_E5M2", (64,)),
    "step": ("I64", ()),
    "empty": ("BF16", (0, 4)),
    "mask": ("BOOL", (17,)),
    "one": ("BF16", (1,)),
    "bytes": ("U8", (130,)),
    "ints": ("I32", (66,)),
}


def mixed_pair(density: float = 0.05, seed: int = 0) -> tuple[State, State]:
    """Two states of tensors of many dtypes, a scalar and an empty one too."""
    old = make_state(MIXED, seed)
    return old, change_state(old, density, seed + 1)


def same_bits(a: State | Sequence[Lanes], b: State | Sequence[Lanes]) -> bool:
    """Whether all lanes are equal."""
    left = a.arrays if isinstance(a, State) else a
    right = b.arrays if isinstance(b, State) else b
    return len(left) == len(right) and all(
        x.dtype == y.dtype and x.tobytes() == y.tobytes() for x, y in zip(left, right, strict=True)
    )
