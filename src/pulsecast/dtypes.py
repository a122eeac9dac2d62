"""What every dtype looks like as bits: lane width, exponent field, ULP order.

A *lane* is the bit pattern of one weight as an unsigned integer. numpy has no bf16 and no fp8, so
lanes are what the rest of the package works on; nothing goes through floats.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .errors import ArrayError, UnsupportedError

Lanes = npt.NDArray[np.unsignedinteger]
"""A one-dimensional array of bit patterns: uint8, uint16, uint32 or uint64."""

LANE_TYPES: dict[int, np.dtype[np.unsignedinteger]] = {w: np.dtype(f"<u{w}") for w in (1, 2, 4, 8)}


@dataclass(frozen=True, slots=True)
class DType:
    """One dtype: its safetensors name, its code in patches (spec section 1) and its bit fields."""

    name: str
    code: int
    width: int
    exponent_bits: int = 0
    mantissa_bits: int = 0

    @property
    def lane(self) -> np.dtype[np.unsignedinteger]:
        """The numpy dtype of a lane."""
        return LANE_TYPES[self.width]

    @property
    def is_float(self) -> bool:
        """Whether lanes have a sign, an exponent field and the ULP order of floats."""
        return self.exponent_bits > 0

    @property
    def exponent_mask(self) -> int:
        """Mask of the exponent field after shifting out the mantissa; 0 for integers."""
        return (1 << self.exponent_bits) - 1


DTYPES: tuple[DType, ...] = (
    DType("BF16", 1, 2, 8, 7),
    DType("F16", 2, 2, 5, 10),
    DType("F32", 3, 4, 8, 23),
    DType("F64", 4, 8, 11, 52),
    DType("F8_E4M3", 5, 1, 4, 3),
    DType("F8_E5M2", 6, 1, 5, 2),
    DType("I8", 7, 1),
    DType("I16", 8, 2),
    DType("I32", 9, 4),
    DType("I64", 10, 8),
    DType("U8", 11, 1),
    DType("U16", 12, 2),
    DType("U32", 13, 4),
    DType("U64", 14, 8),
    DType("BOOL", 15, 1),
)

_BY_NAME = {d.name: d for d in DTYPES}
_BY_CODE = {d.code: d for d in DTYPES}
# The names that numpy, ml_dtypes and torch print.
_BY_ARRAY_NAME = {
    "bfloat16": "BF16",
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "bool": "BOOL",
    **{f"int{8 * w}": f"I{8 * w}" for w in (1, 2, 4, 8)},
    **{f"uint{8 * w}": f"U{8 * w}" for w in (1, 2, 4, 8)},
}


def by_name(name: str) -> DType:
    """The dtype with a safetensors name.

    Raises:
        UnsupportedError: No such dtype.
    """
    try:
        return _BY_NAME[name]
    except KeyError:
        raise UnsupportedError(
            f"dtype {name!r} is not supported; known are {', '.join(_BY_NAME)}"
        ) from None


def by_code(code: int) -> DType:
    """The dtype with a code of spec section 1.

    Raises:
        UnsupportedError: No such code.
    """
    try:
        return _BY_CODE[code]
    except KeyError:
        raise UnsupportedError(f"dtype code {code} is not known") from None


def of(array: object) -> DType:
    """The dtype of a numpy array (also of ml_dtypes) or a torch tensor, told by its name.

    Raises:
        ArrayError: The array has a dtype without a counterpart in safetensors.
    """
    name = str(getattr(array, "dtype", type(array).__name__)).removeprefix("torch.")
    try:
        return _BY_NAME[_BY_ARRAY_NAME[name]]
    except KeyError:
        raise ArrayError(f"arrays of dtype {name} are not supported") from None
