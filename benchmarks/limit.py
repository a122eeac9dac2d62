"""The limit: what a patch costs if changes depend on the base weight's exponent and nothing else.

The entropy of "changed?" given the exponent field of the base weight, and of the ULP difference
given the same, both with the frequencies of this very patch, pooled over all tensors of one dtype.
No table, no count and no header is included, so no codec of this kind reaches it; one that knows
more could.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pulsecast.dtypes import DType, Lanes
from pulsecast.patch.state import State

_Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Limit:
    """Bits for the whole patch.

    Attributes:
        place_bits: To say which weights change.
        value_bits: To say by how many ULPs each of them changes.
        changes: Number of changed weights.
        exact: Whether base, places and differences gave the new state, bit for bit.
    """

    place_bits: float
    value_bits: float
    changes: int
    exact: bool

    @property
    def bits(self) -> float:
        return self.place_bits + self.value_bits


def limit(old: State, new: State) -> Limit:
    """The limit of the patch from `old` to `new`."""
    by_dtype: dict[DType, list[int]] = defaultdict(list)
    for i, spec in enumerate(old.layout.tensors):
        by_dtype[spec.dtype].append(i)
    parts = [_pooled(old, new, dtype, tensors) for dtype, tensors in by_dtype.items()]
    return Limit(
        sum(p.place_bits for p in parts),
        sum(p.value_bits for p in parts),
        sum(p.changes for p in parts),
        all(p.exact for p in parts),
    )


def _pooled(old: State, new: State, dtype: DType, tensors: list[int]) -> Limit:
    classes = 1 << dtype.exponent_bits
    weights, changed = np.zeros(classes, np.int64), np.zeros(classes, np.int64)
    changed_classes: list[npt.NDArray[np.int64]] = []
    differences: list[Lanes] = []
    exact = True
    for i in tensors:
        weights += np.bincount(_exponents(old.arrays[i], dtype), minlength=classes)
        places = np.flatnonzero(old.arrays[i] != new.arrays[i])
        base = old.arrays[i][places]
        difference = ulp_order(new.arrays[i][places], dtype) - ulp_order(base, dtype)
        rebuilt = old.arrays[i].copy()
        rebuilt[places] = ulp_pattern(ulp_order(base, dtype) + difference, dtype)
        exact = exact and np.array_equal(rebuilt, new.arrays[i])
        changed_classes.append(_exponents(base, dtype))
        differences.append(difference)
    exponent = np.concatenate(changed_classes)
    changed += np.bincount(exponent, minlength=classes)
    # A pair (exponent, difference) as one number: the value is pooled within its exponent only.
    _, value = np.unique(np.concatenate(differences), return_inverse=True)
    pairs = np.unique(exponent * (value.max(initial=0) + 1) + value, return_counts=True)[1]
    return Limit(
        place_bits=_bits(weights) - _bits(changed) - _bits(weights - changed),
        value_bits=_bits(changed) - _bits(pairs),
        changes=int(changed.sum()),
        exact=exact,
    )


def _bits(counts: _Counts) -> float:
    """Sum of n log2 n; differences of such sums are entropies times their counts."""
    n = counts[counts > 0].astype(np.float64)
    return float((n * np.log2(n)).sum())


def _exponents(lanes: Lanes, dtype: DType) -> npt.NDArray[np.int64]:
    if not dtype.is_float:
        return np.zeros(len(lanes), np.int64)
    return ((lanes >> dtype.mantissa_bits) & dtype.exponent_mask).astype(np.int64)


def ulp_order(lanes: Lanes, dtype: DType) -> Lanes:
    """Bit patterns as unsigned integers in numerical order (spec section 8)."""
    if not dtype.is_float:
        return lanes
    sign = lanes.dtype.type(1 << (8 * dtype.width - 1))
    return np.where(lanes & sign, ~lanes, lanes ^ sign)


def ulp_pattern(order: Lanes, dtype: DType) -> Lanes:
    """The inverse of `ulp_order`."""
    if not dtype.is_float:
        return order
    sign = order.dtype.type(1 << (8 * dtype.width - 1))
    return np.where(order & sign, order ^ sign, ~order)
