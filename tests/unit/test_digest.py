"""Sums and roots: spec section 2.

The numbers here were computed with Python integers from the spec alone.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from pulsecast import kernels
from pulsecast.dtypes import LANE_TYPES, Lanes, by_name
from pulsecast.patch import digest
from pulsecast.patch.boxes import Box, BoxMap
from pulsecast.patch.layout import Layout, TensorSpec
from pulsecast.patch.state import State
from tests.states import MIXED, change_state, make_state

pytestmark = pytest.mark.usefixtures("backend")

# lane bytes, elements, position of the first, sum
VECTORS = [
    (1, 1, 0, 0x4F737D7E588F2043),
    (1, 2500, 0, 0x4C49D1AAA505158B),
    (1, 2500, 1021, 0x21CED129A9014F75),
    (1, 7, 1099511628796, 0x128E4E90AE82B2F8),
    (1, 5, 281474976710651, 0x2AAD09CE2A7E4ED6),
    (2, 1, 0, 0x5047A69EAAB1AC29),
    (2, 2500, 0, 0x7FC784626F073DD7),
    (2, 2500, 1021, 0x2ADB323274289E8B),
    (2, 7, 1099511628796, 0x8678195AA52D0997),
    (2, 5, 281474976710651, 0x669390D57C7B183F),
    (4, 1, 0, 0xBEE93665E17109F5),
    (4, 2500, 0, 0x18F475108915F481),
    (4, 2500, 1021, 0x33D7DE472B7560C5),
    (4, 7, 1099511628796, 0x0177753FE0A662D8),
    (4, 5, 281474976710651, 0x707EA4B1CFFE350F),
    (8, 1, 0, 0xBF83909E81D3449C),
    (8, 2500, 0, 0x0708E4A1E6EDEB1B),
    (8, 2500, 1021, 0x8FF6A0A14F90A9BB),
    (8, 7, 1099511628796, 0x6AB7DD28A716B010),
    (8, 5, 281474976710651, 0xC1C6580BFFEDF9E4),
]
# K(i): the sum of a single 1 at position i
KEYS = {
    0: 0x4F737D7E588F2043,
    1: 0xC32B4B2D822B8819,
    1023: 0x818CF44288B8D89D,
    1024: 0x5F9D5AD5FB8D755F,
    2**49 - 1: 0xC3D0035F0A76CD3F,
}
ROOT = "01afcb0276712352a83959caef49008ea25da0761c811f31e5ba41169327ed98"
WIDTHS = (1, 2, 4, 8)


def pattern(width: int, size: int) -> Lanes:
    """The high bits of i · 0x9E37… + 0x0123…, as in the vectors."""
    numbers = np.arange(size, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    numbers += np.uint64(0x0123456789ABCDEF)
    return (numbers >> np.uint64(64 - 8 * width)).astype(LANE_TYPES[width])


@pytest.mark.parametrize(("width", "size", "start", "expected"), VECTORS)
def test_vectors(width: int, size: int, start: int, expected: int) -> None:
    assert kernels.digest(pattern(width, size), start) == expected


@pytest.mark.parametrize(("position", "key"), KEYS.items())
def test_keys(position: int, key: int) -> None:
    one = np.ones(1, "<u4")
    assert kernels.digest(one, position) == key
    at = np.array([position], np.int64)
    assert kernels.digest_change(at, np.zeros(1, "<u4"), one) == key


def test_root_vector() -> None:
    specs = [("é", "I64", ()), ("a.weight", "BF16", (2, 3)), ("z", "F8_E4M3", (0, 4))]
    layout = Layout([TensorSpec(n, by_name(d), s) for n, d, s in specs])
    arrays = [
        np.array([0x3F80, 0xBF80, 0, 0x8000, 0x7FC1, 1], "<u2"),
        np.empty(0, "u1"),
        np.array([0xFFFFFFFFFFFFFFFE], "<u8"),
    ]
    state = State(layout, arrays)
    assert digest.tensor_sums(state).tolist() == [0x87D75EFFCF0BDCBE, 0, 0x78A86231CCB63761]
    assert digest.state_root(state).hex() == ROOT


@pytest.mark.parametrize("width", WIDTHS)
def test_an_empty_run_adds_nothing(width: int) -> None:
    assert kernels.digest(np.empty(0, LANE_TYPES[width]), 12345) == 0


@pytest.mark.parametrize("width", WIDTHS)
def test_runs_add_up_wherever_they_are_cut(width: int) -> None:
    lanes = pattern(width, 4200)
    whole = kernels.digest(lanes)
    for cuts in ([1], [1023, 1024, 1025], [63, 64, 65, 2048], [4095, 4096, 4097], [4199]):
        edges = [0, *cuts, len(lanes)]
        pieces = [kernels.digest(lanes[a:b], a) for a, b in itertools.pairwise(edges)]
        assert sum(pieces) % 2**64 == whole
        assert sum(reversed(pieces)) % 2**64 == whole


@pytest.mark.parametrize("dtype", ["F8_E4M3", "BF16", "F32", "F64"])
@pytest.mark.parametrize("dimension", [0, 1, 2])
def test_pieces_along_any_dimension_add_up(dtype: str, dimension: int) -> None:
    shape = (6, 50, 11)
    state = make_state({"t": (dtype, shape)})
    boxes = []
    for first, stop in itertools.pairwise([0, 1, 3, shape[dimension]]):
        start, lengths = [0, 0, 0], list(shape)
        start[dimension], lengths[dimension] = first, stop - first
        boxes.append(Box(0, tuple(start), tuple(lengths)))
    pieces = BoxMap(state.layout, boxes, 16)
    total = sum(pieces.sum(state, i) for i in range(len(boxes))) % 2**64
    assert total == int(digest.tensor_sums(state)[0])


@pytest.mark.parametrize("width", WIDTHS)
def test_incremental_is_full(width: int) -> None:
    rng = np.random.default_rng(width)
    old = pattern(width, 5000)
    at = np.sort(rng.choice(5000, 700, replace=False)).astype(np.int64)
    new = old.copy()
    new[at] = np.frombuffer(rng.bytes(700 * width), old.dtype)
    for start in (0, 1021, 2**40):
        change = kernels.digest_change(at, old[at], new[at], start)
        assert (kernels.digest(old, start) + change) % 2**64 == kernels.digest(new, start)
        parts = [
            kernels.digest_change(at[i::3].copy(), old[at[i::3]], new[at[i::3]], start)
            for i in range(3)
        ]
        assert sum(parts) % 2**64 == change % 2**64


@pytest.mark.parametrize("width", WIDTHS)
def test_one_flipped_bit_anywhere_changes_the_sum(width: int) -> None:
    lanes = pattern(width, 2100)
    whole = kernels.digest(lanes)
    for place in (0, 1, 1023, 1024, 2099):
        for bit in range(8 * width):
            lanes[place] ^= lanes.dtype.type(1 << bit)
            assert kernels.digest(lanes) != whole
            lanes[place] ^= lanes.dtype.type(1 << bit)
    assert kernels.digest(lanes) == whole


def test_all_values_of_one_byte_have_their_own_sum() -> None:
    sums = {kernels.digest(np.array([v], "u1"), 77) for v in range(256)}
    assert len(sums) == 256


def test_swapped_weights_and_moved_weights_change_the_sum() -> None:
    lanes = pattern(2, 3000)
    assert kernels.digest(lanes[::-1].copy()) != kernels.digest(lanes)
    assert kernels.digest(lanes, 1) != kernels.digest(lanes)
    assert kernels.digest(np.roll(lanes, 1024)) != kernels.digest(lanes)


def test_roots_do_not_depend_on_threads_or_run_size(monkeypatch: pytest.MonkeyPatch) -> None:
    state = make_state(MIXED)
    roots = {digest.state_root(state, threads=n) for n in (1, 2, 5)}
    monkeypatch.setattr(digest, "_RUN", 64)
    roots |= {digest.state_root(state, threads=n) for n in (1, 3)}
    assert len(roots) == 1


def test_roots_tell_states_layouts_and_tensors_apart() -> None:
    state = make_state(MIXED)
    other = change_state(state, 0.001)
    assert digest.state_root(state) != digest.state_root(other)
    a, b = (make_state({"t": ("BF16", shape)}) for shape in ((2, 3), (3, 2)))
    assert a.arrays[0].tobytes() == b.arrays[0].tobytes()
    assert digest.state_root(a) != digest.state_root(b)
    c = State.of({"x": np.array([1], "u2"), "y": np.array([2], "u2")})
    d = State.of({"x": np.array([2], "u2"), "y": np.array([1], "u2")})
    assert digest.state_root(c) != digest.state_root(d)


def test_progress_counts_every_weight_once() -> None:
    state = make_state(MIXED)
    seen: list[int] = []
    digest.tensor_sums(state, progress=seen.append)
    assert sum(seen) == state.layout.weights


def test_the_empty_model_has_a_root() -> None:
    assert len(digest.state_root(State(Layout([]), []))) == 32
