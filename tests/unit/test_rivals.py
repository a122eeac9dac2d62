import json
import struct

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.fireworks import arc_codecs
from benchmarks.rivals import RIVALS, Codec, Gap16, PulseV31
from pulsecast.dtypes import DType, by_name
from pulsecast.patch.layout import Layout, TensorSpec
from pulsecast.patch.state import State
from pulsecast.testing import adam_pair, perturb, scramble

DTYPES = [by_name(name) for name in ("BF16", "F32", "I8", "F64")]


def round_trip(codec: Codec, old: State, new: State) -> None:
    result = codec.decode(codec.encode(old, new), old.copy())
    for i, spec in enumerate(old.layout.tensors):
        assert np.array_equal(result.arrays[i], new.arrays[i]), spec.name


@st.composite
def pairs(draw: st.DrawFn) -> tuple[State, State]:
    """States of a few tensors of odd shapes; some with no changes, some with all changed."""
    specs, old, new = [], [], []
    for number in range(draw(st.integers(1, 4))):
        dtype: DType = draw(st.sampled_from(DTYPES))
        shape = tuple(draw(st.lists(st.integers(0, 9), max_size=3)))
        spec = TensorSpec(f"t{number}", dtype, shape)
        bits = st.integers(0, 2 ** (8 * dtype.width) - 1)
        before = draw(st.lists(bits, min_size=spec.size, max_size=spec.size))
        flips = draw(st.lists(bits | st.just(0), min_size=spec.size, max_size=spec.size))
        specs.append(spec)
        old.append(np.array(before, dtype.lane))
        new.append(old[-1] ^ np.array(flips, dtype.lane))
    layout = Layout(specs)
    return State(layout, old), State(layout, new)


@pytest.mark.parametrize("make", RIVALS)
@given(pair=pairs())
def test_round_trip_of_any_bits(make: type[Codec], pair: tuple[State, State]) -> None:
    round_trip(make(), *pair)


@pytest.mark.parametrize("make", RIVALS)
@pytest.mark.parametrize("density", [0, 1e-5, 0.01, 1])
def test_round_trip_over_wide_gaps(make: type[Codec], density: float) -> None:
    old, _ = adam_pair({"a": (3, 200_000), "b": (70_000, 4), "c": (100_000,), "d": (7, 3, 11)})
    round_trip(make(), old, perturb(old, density, 1))
    round_trip(make(), old, scramble(old, density, 2))


def test_gaps_beyond_16_bits_walk() -> None:
    layout = Layout([TensorSpec("w", by_name("I8"), (200_000,))])
    old = State(layout, [np.zeros(200_000, np.uint8)])
    new = old.copy()
    new.arrays[0][[0, 65535, 65536 + 65536, 199_999]] = 1
    (blob,) = Gap16().encode(old, new)
    gaps = np.frombuffer(blob, "<u2", struct.unpack_from("<Q", blob)[0], 8)
    assert gaps.tolist() == [0, 65534, 65535, 1, 65535, 3391]
    round_trip(Gap16(), old, new)


def test_pulse_container_by_hand() -> None:
    layout = Layout([TensorSpec(n, by_name("BF16"), s) for n, s in (("a", (3, 300)), ("b", (2,)))])
    old = State(layout, [np.zeros(900, np.uint16), np.zeros(2, np.uint16)])
    new = old.copy()
    new.arrays[0][[5, 7, 299, 601, 899]] = [1, 2, 3, 4, 5]
    (blob,) = PulseV31().encode(old, new)
    raw = zstandard.ZstdDecompressor().decompress(blob)
    (length,) = struct.unpack_from("<I", raw)
    assert json.loads(raw[4 : 4 + length]) == {
        "version": 31,
        "tensors": [
            {
                "name": "a",
                "shape": [3, 300],
                "num_nonzero": 5,
                "value_dtype": "int16",
                "row_dtype": "uint8",
                "col_dtype": "uint16",
                "indices_offset": 0,
                "indices_size": 15,
                "rows_size": 5,
                "cols_size": 10,
                "values_offset": 15,
                "values_size": 10,
            }
        ],
    }
    body = raw[4 + length :]
    assert list(body[:5]) == [0, 0, 0, 2, 0]
    assert struct.unpack("<5H", body[5:15]) == (5, 2, 292, 1, 298)
    assert struct.unpack("<5H", body[15:]) == (1, 2, 3, 4, 5)


def test_the_real_arc_codecs_round_trip() -> None:
    pytest.importorskip("fireworks_delta_compression")
    old, new = adam_pair({"w": (64, 512), "norm": (64,)})
    for codec in arc_codecs():
        round_trip(codec, old, new)
