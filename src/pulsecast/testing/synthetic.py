"""Pairs of states that differ as real ones do, without a model and without torch.

Everything is deterministic for a seed: each run of `_CHUNK` weights has a random stream of its own,
so the bits do not depend on how many tensors there are in between. The streams are numpy's and
may change with a numpy release; tests that need fixed bytes keep files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from ..dtypes import DType, Lanes, by_name
from ..errors import LayoutError
from ..patch.layout import Layout, TensorSpec
from ..patch.state import State

_CHUNK = 1 << 20
_WEIGHT_SCALE = 0.02
# Adam's step in units of the learning rate. Chosen so that about 1 % of N(0, 0.02) weights change
# at 3e-6, as in real runs; a step that always had the full length lr would change 8 %.
_STEP_SCALE = 0.085
# Successive steps resemble each other because Adam averages gradients over about ten of them.
_MOMENTUM = 0.9

_Floats = npt.NDArray[np.float32]


def adam_pair(
    shapes: Mapping[str, Sequence[int]] | Layout, *, lr: float = 3e-6, seed: int = 0, steps: int = 1
) -> tuple[State, State]:
    """Two states of a model that differ as `steps` Adam steps with FP32 masters would.

    Masters are N(0, 0.02), those of one-dimensional tensors (norms) are near 1. BF16 tensors hold
    the masters rounded to nearest even, F32 tensors hold the masters themselves.

    Args:
        shapes: Name to shape, all of them BF16; or a layout of BF16 and F32 tensors.
        lr: Learning rate. About 1 % of the BF16 weights change at 3e-6, in proportion elsewhere.
        seed: Same seed, same bits.
        steps: Optimizer steps between the two states.

    Raises:
        LayoutError: The layout has another dtype.
    """
    layout = shapes if isinstance(shapes, Layout) else _bf16_layout(shapes)
    for spec in layout.tensors:
        if spec.dtype.name not in ("BF16", "F32"):
            raise LayoutError(
                f"adam_pair makes BF16 and F32 only, {spec.name} is {spec.dtype.name}"
            )
    scale = np.float32(lr * _displacement(steps))
    old, new = [], []
    for number, spec in enumerate(layout.tensors):
        before = np.empty(spec.size, spec.dtype.lane)
        after = np.empty_like(before)
        for run, rng in _runs(spec.size, seed, number):
            size = run.stop - run.start
            master = rng.standard_normal(size, np.float32) * np.float32(_WEIGHT_SCALE)
            if len(spec.shape) == 1:
                master += np.float32(1)
            moved = master - scale * rng.standard_normal(size, np.float32)
            before[run] = _cast(master, spec.dtype)
            after[run] = _cast(moved, spec.dtype)
        old.append(before)
        new.append(after)
    return State(layout, old), State(layout, new)


def perturb(state: State, density: float, seed: int = 0, *, like_adam: bool = False) -> State:
    """A copy in which exactly `round(density * weights)` weights have other bits.

    Nine changes in ten are one step in the dtype's ULP order, the others two or more.

    Args:
        state: Any dtypes; it is not written.
        density: Share of weights to change, over the whole state.
        seed: Same seed, same bits.
        like_adam: Choose floats with a chance in proportion to 1 / ULP, as steps of one length
            would; otherwise every weight has the same chance.
    """
    choose = _choose_by_ulp if like_adam else _choose
    return _changed(state, density, seed, choose, _nudge)


def scramble(state: State, density: float, seed: int = 0) -> State:
    """A copy in which exactly `round(density * weights)` weights have random other bits.

    Nothing about the changes can be guessed from the state: no codec can shrink them.
    """
    return _changed(state, density, seed, _choose, _replace)


def _bf16_layout(shapes: Mapping[str, Sequence[int]]) -> Layout:
    bf16 = by_name("BF16")
    return Layout([TensorSpec(name, bf16, tuple(shape)) for name, shape in shapes.items()])


def _displacement(steps: int) -> float:
    # Standard deviation of a sum of `steps` numbers correlated by _MOMENTUM per step.
    pairs = sum((steps - lag) * _MOMENTUM**lag for lag in range(1, steps))
    return float(_STEP_SCALE * np.sqrt(steps + 2 * pairs))


def _cast(master: _Floats, dtype: DType) -> Lanes:
    bits = master.view(np.uint32)
    if dtype.width == 4:
        return bits
    # Round to nearest, ties to even, in integers: the carry into the exponent is the right one.
    return ((bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def _runs(size: int, seed: int, tensor: int) -> Iterator[tuple[slice, np.random.Generator]]:
    for number, start in enumerate(range(0, size, _CHUNK)):
        key = np.random.SeedSequence([seed, tensor, number])
        yield slice(start, min(start + _CHUNK, size)), np.random.Generator(np.random.SFC64(key))


_Places = npt.NDArray[np.int64]
_Choose = Callable[[Lanes, DType, int, np.random.Generator], _Places]
_Change = Callable[[Lanes, DType, np.random.Generator], Lanes]


def _changed(state: State, density: float, seed: int, choose: _Choose, change: _Change) -> State:
    if not 0 <= density <= 1:
        raise ValueError(f"a density lies between 0 and 1, not at {density}")
    arrays, seen, done = [], 0, 0
    for number, spec in enumerate(state.layout.tensors):
        lanes = state.arrays[number].copy()
        for run, rng in _runs(spec.size, seed, number):
            seen += run.stop - run.start
            # Rounding the running total, not each run, is what makes the count exact.
            count = min(round(density * seen) - done, run.stop - run.start)
            done += count
            part = lanes[run]
            places = choose(part, spec.dtype, count, rng)
            part[places] = change(part[places], spec.dtype, rng)
        arrays.append(lanes)
    return State(state.layout, arrays)


def _choose(lanes: Lanes, dtype: DType, count: int, rng: np.random.Generator) -> _Places:
    return np.sort(rng.choice(len(lanes), count, replace=False, shuffle=False))


def _choose_by_ulp(lanes: Lanes, dtype: DType, count: int, rng: np.random.Generator) -> _Places:
    if not dtype.is_float or count == 0:
        return _choose(lanes, dtype, count, rng)
    exponents = ((lanes >> dtype.mantissa_bits) & dtype.exponent_mask).astype(np.int64)
    sizes = np.bincount(exponents, minlength=1)
    chance = _chances(sizes, count)
    hit = rng.random(len(lanes), np.float32) < chance.astype(np.float32)[exponents]
    places = np.flatnonzero(hit)
    if len(places) > count:
        return np.sort(rng.choice(places, count, replace=False))
    rest = rng.choice(np.flatnonzero(~hit), count - len(places), replace=False)
    return np.sort(np.concatenate([places, rest]))


def _chances(sizes: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.float64]:
    """min(1, 2^(c - exponent)) with c such that `count` changes are expected."""
    exponent = np.arange(len(sizes), dtype=np.float64)
    low, high = -64.0, len(sizes) + 64.0
    for _ in range(50):
        c = (low + high) / 2
        expected = (sizes * np.exp2(np.minimum(0.0, c - exponent))).sum()
        low, high = (c, high) if expected < count else (low, c)
    return np.asarray(np.exp2(np.minimum(0.0, low - exponent)))


def _nudge(lanes: Lanes, dtype: DType, rng: np.random.Generator) -> Lanes:
    if dtype.name == "BOOL":
        return lanes ^ lanes.dtype.type(1)
    # At most 100, so that no nudge is a full turn, not even of 8-bit lanes.
    length = np.minimum(rng.geometric(0.9, len(lanes)), 100).astype(lanes.dtype)
    up = rng.integers(0, 2, len(lanes)).astype(bool)
    moved = _order(lanes, dtype) + np.where(up, length, np.zeros_like(length) - length)
    return _order_inverse(moved, dtype)


def _replace(lanes: Lanes, dtype: DType, rng: np.random.Generator) -> Lanes:
    if dtype.name == "BOOL":
        return lanes ^ lanes.dtype.type(1)
    top = np.iinfo(lanes.dtype).max
    flips: Lanes = rng.integers(1, top, len(lanes), lanes.dtype, endpoint=True)
    return lanes ^ flips


def _order(lanes: Lanes, dtype: DType) -> Lanes:
    """Bit patterns as integers in numerical order (spec section 8)."""
    if not dtype.is_float:
        return lanes
    sign = lanes.dtype.type(1 << (8 * dtype.width - 1))
    return np.where(lanes & sign, ~lanes, lanes ^ sign)


def _order_inverse(order: Lanes, dtype: DType) -> Lanes:
    if not dtype.is_float:
        return order
    sign = order.dtype.type(1 << (8 * dtype.width - 1))
    return np.where(order & sign, order ^ sign, ~order)
