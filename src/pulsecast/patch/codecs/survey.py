"""A sample of two states: how dense the changes are, and how they depend on the base's exponent.

The encoder only needs an estimate to choose block size and classes; nothing decoded depends on it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...dtypes import DType, Lanes
from ...kernels import CLASSES, ClassMap
from ...kernels.rans import SYMBOLS, tokens_of
from ...kernels.reference import zigzag
from ..boxes import BoxMap, Segment
from ..state import State

_SLICES = 64
_SLICE = 1 << 12
_BITS_PER_CLASS = 160  # tables and counts of one class, about

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Survey:
    """Counts over sampled weights of one dtype."""

    dtype: DType
    share: float
    """Sampled weights / all weights."""
    weights: npt.NDArray[np.int64]
    """Number of sampled weights by exponent."""
    changes: npt.NDArray[np.int64]
    """Number of sampled changes by exponent and value token."""

    def classes(self) -> ClassMap:
        """The class map of least estimated size: exponents one by one, the rare ends merged."""
        used = np.flatnonzero(self.changes.sum(axis=1))
        if not self.dtype.is_float or not len(used):
            return ClassMap(self.dtype)
        changes = self.changes[:, : int(np.flatnonzero(self.changes.any(axis=0))[-1]) + 1]
        single = self._bits(self.weights, changes)
        below = self._bits(np.cumsum(self.weights), np.cumsum(changes, axis=0))
        above = self._bits(
            np.cumsum(self.weights[::-1])[::-1], np.cumsum(changes[::-1], axis=0)[::-1]
        )
        between = np.concatenate([[0.0], np.cumsum(single)])
        top = len(single) - 1
        if used[0] == top:
            return ClassMap(self.dtype)
        # All pairs of a lowest and a highest class.
        lo, hi = np.arange(int(used[0]), top)[:, None], np.arange(1, CLASSES)[None, :]
        hi = np.minimum(lo + hi, top)
        costs = below[lo] + between[hi] - between[lo + 1] + above[hi]
        best = int(np.argmin(costs))
        if below[top] <= costs.flat[best]:
            return ClassMap(self.dtype)
        return ClassMap(
            self.dtype, int(lo[best // (CLASSES - 1), 0]), int((hi - lo).flat[best]) + 1
        )

    def _bits(self, weights: npt.NDArray[np.int64], changes: npt.NDArray[np.int64]) -> Floats:
        """Estimated bits of classes with these counts in the whole part."""
        changed = changes.sum(axis=1)
        where = _entropy(np.stack([changed, weights - changed], axis=1))
        table = _BITS_PER_CLASS + 6 * (changes > 0).sum(axis=1)
        out: Floats = (where + _entropy(changes)) / self.share + table
        return out


def _entropy(counts: npt.NDArray[np.int64]) -> Floats:
    """Bits of sequences with these symbol counts, one per row."""
    total = counts.sum(axis=1)
    each = (counts * np.log2(np.maximum(counts, 1))).sum(axis=1)
    out: Floats = total * np.log2(np.maximum(total, 1)) - each
    return out


def survey(boxes: BoxMap, old: State, new: State) -> dict[int, Survey]:
    """A survey of every dtype of a part, by dtype code, from evenly spread slices."""
    by_dtype: dict[int, list[int]] = {}
    for i in range(len(boxes.boxes)):
        by_dtype.setdefault(boxes.dtype(i).code, []).append(i)
    found = {}
    for code, members in by_dtype.items():
        dtype = boxes.dtype(members[0])
        sizes = np.array([boxes.boxes[i].size for i in members], np.int64)
        pieces = [
            (boxes.read_segment(old, segment), boxes.read_segment(new, segment))
            for segment in (Segment(members[i], start, stop) for i, start, stop in _slices(sizes))
        ]
        found[code] = _count(
            dtype, int(sizes.sum()), *(np.concatenate(side) for side in zip(*pieces, strict=True))
        )
    return found


def _count(dtype: DType, size: int, before: Lanes, after: Lanes) -> Survey:
    rows = dtype.exponent_mask + 1
    exponent = (before >> dtype.lane.type(dtype.mantissa_bits)) & dtype.lane.type(rows - 1)
    exponent = exponent.astype(np.int64)
    weights = np.bincount(exponent, minlength=rows)
    at = np.flatnonzero(before != after)
    tokens = tokens_of(zigzag(before[at], after[at], dtype.is_float))
    flat = np.bincount(exponent[at] * SYMBOLS + tokens, minlength=rows * SYMBOLS)
    return Survey(dtype, len(before) / max(size, 1), weights, flat.reshape(rows, SYMBOLS))


def _slices(sizes: npt.NDArray[np.int64]) -> list[tuple[int, int, int]]:
    """Evenly spread ``(box, start, stop)``; all of every box when there is little."""
    total = int(sizes.sum())
    if total <= _SLICES * _SLICE:
        return [(i, 0, int(n)) for i, n in enumerate(sizes)]
    ends = np.cumsum(sizes)
    out = []
    for j in range(_SLICES):
        position = (2 * j + 1) * total // (2 * _SLICES)
        box = int(np.searchsorted(ends, position, side="right"))
        start = position - int(ends[box] - sizes[box])
        out.append((box, start, min(start + _SLICE, int(sizes[box]))))
    return out
