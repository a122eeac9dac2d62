"""dtypes: the table of spec section 1, and what arrays tell about themselves."""

from __future__ import annotations

import numpy as np
import pytest

from pulsecast import dtypes
from pulsecast.dtypes import DTYPES, by_code, by_name, of
from pulsecast.errors import ArrayError, UnsupportedError

# name, code, lane bytes, exponent bits, mantissa bits: copied from the spec, not from the code.
SPEC = [
    ("BF16", 1, 2, 8, 7), ("F16", 2, 2, 5, 10), ("F32", 3, 4, 8, 23), ("F64", 4, 8, 11, 52),
    ("F8_E4M3", 5, 1, 4, 3), ("F8_E5M2", 6, 1, 5, 2),
    ("I8", 7, 1, 0, 0), ("I16", 8, 2, 0, 0), ("I32", 9, 4, 0, 0), ("I64", 10, 8, 0, 0),
    ("U8", 11, 1, 0, 0), ("U16", 12, 2, 0, 0), ("U32", 13, 4, 0, 0), ("U64", 14, 8, 0, 0),
    ("BOOL", 15, 1, 0, 0),
]  # fmt: skip


def test_the_table_is_the_specs() -> None:
    found = [(d.name, d.code, d.width, d.exponent_bits, d.mantissa_bits) for d in DTYPES]
    assert found == SPEC


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
def test_fields_fill_the_lane(dtype: dtypes.DType) -> None:
    assert by_name(dtype.name) is dtype
    assert by_code(dtype.code) is dtype
    assert dtype.lane == np.dtype(f"<u{dtype.width}")
    if dtype.is_float:
        assert 1 + dtype.exponent_bits + dtype.mantissa_bits == 8 * dtype.width
        assert dtype.exponent_mask == 2**dtype.exponent_bits - 1
    else:
        assert dtype.exponent_mask == 0


def test_unknown_names_and_codes_are_refused() -> None:
    for name in ("", "bf16", "F4", "F8_E8M0", "BF16 "):
        with pytest.raises(UnsupportedError, match="not supported"):
            by_name(name)
    for code in (-1, 0, 16, 255):
        with pytest.raises(UnsupportedError, match="not known"):
            by_code(code)


def test_of_numpy() -> None:
    pairs = {
        "F16": np.float16, "F32": np.float32, "F64": np.float64, "BOOL": np.bool_, "I8": np.int8,
        "I16": np.int16, "I32": np.int32, "I64": np.int64, "U8": np.uint8, "U16": np.uint16,
        "U32": np.uint32, "U64": np.uint64,
    }  # fmt: skip
    for name, scalar in pairs.items():
        assert of(np.zeros(1, scalar)).name == name


def test_of_ml_dtypes() -> None:
    ml = pytest.importorskip("ml_dtypes")
    assert of(np.zeros(1, ml.bfloat16)).name == "BF16"
    assert of(np.zeros(1, ml.float8_e4m3fn)).name == "F8_E4M3"
    assert of(np.zeros(1, ml.float8_e5m2)).name == "F8_E5M2"


def test_of_torch() -> None:
    torch = pytest.importorskip("torch")
    for name, dtype in {
        "BF16": torch.bfloat16,
        "F16": torch.float16,
        "F32": torch.float32,
        "F8_E4M3": torch.float8_e4m3fn,
        "F8_E5M2": torch.float8_e5m2,
        "I64": torch.int64,
        "BOOL": torch.bool,
    }.items():
        assert of(torch.zeros(1, dtype=dtype)).name == name


@pytest.mark.parametrize("array", [np.zeros(1, np.complex64), np.array(["a"]), [1.0], None])
def test_what_safetensors_lacks_is_refused(array: object) -> None:
    with pytest.raises(ArrayError, match="not supported"):
        of(array)
