"""What a patch is made of, counted without applying it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

import numpy as np
import numpy.typing as npt

# Differences of one, two and three ULPs are nearly all; beyond, powers of two are fine enough.
_LOWS = np.array([1, 2, 3, 4, 8, 16, 32, 64, 128, 256, 1024, 4096, 1 << 16, 1 << 32], np.uint64)


@dataclass(frozen=True, slots=True)
class TensorChanges:
    """How much of a tensor changes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    changes: int
    density: float


@dataclass(frozen=True, slots=True)
class UlpCount:
    """The number of changes whose ULP difference has an absolute value from low to high."""

    low: int
    high: int
    changes: int


class UlpHistogram:
    """Counts ULP differences, given as the codec's zig-zag numbers (spec section 8)."""

    def __init__(self) -> None:
        self._counts = np.zeros(len(_LOWS), np.int64)
        self._largest = 0

    def add(self, zigzag: npt.NDArray[np.uint64]) -> None:
        """Count some changes."""
        if len(zigzag):
            size = (zigzag >> np.uint64(1)) + np.uint64(1)
            bins = np.searchsorted(_LOWS, size, side="right") - 1
            self._counts += np.bincount(bins, minlength=len(_LOWS))
            self._largest = max(self._largest, int(size.max()))

    def entries(self) -> list[UlpCount]:
        """The bins that hold something, in ascending order."""
        highs = [*(int(low) - 1 for low in _LOWS[1:]), self._largest]
        return [
            UlpCount(int(low), min(high, self._largest), int(count))
            for low, high, count in zip(_LOWS, highs, self._counts, strict=True)
            if count
        ]
