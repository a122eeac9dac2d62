"""How the class of a weight follows from the exponent of its base lane (spec section 8)."""

from __future__ import annotations

from dataclasses import dataclass

from ..dtypes import DType

CLASSES = 16
"""Most classes of a dtype."""


@dataclass(frozen=True, slots=True)
class ClassMap:
    """``class = min(max(exponent, lo) - lo, count - 1)`` for lanes of one dtype."""

    dtype: DType
    lo: int = 0
    count: int = 1

    @property
    def mantissa_bits(self) -> int:
        """Bits below the exponent field."""
        return self.dtype.mantissa_bits

    @property
    def exponent_mask(self) -> int:
        """Mask of the exponent field; 0 for integers, which have one class."""
        return self.dtype.exponent_mask

    @property
    def is_float(self) -> bool:
        """Whether differences are counted in the ULP order of floats."""
        return self.dtype.is_float
