from math import log2

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.limit import limit, ulp_order, ulp_pattern
from pulsecast.dtypes import DTYPES, DType, by_name
from pulsecast.patch.layout import Layout, TensorSpec
from pulsecast.patch.state import State


def states(dtype: str, *tensors: tuple[list[int], list[int]]) -> tuple[State, State]:
    kind = by_name(dtype)
    layout = Layout([TensorSpec(f"t{i}", kind, (len(a),)) for i, (a, _) in enumerate(tensors)])
    old, new = (
        State(layout, [np.array(pair[side], kind.lane) for pair in tensors]) for side in (0, 1)
    )
    return old, new


def entropy(*counts: int) -> float:
    return -sum(n * log2(n / sum(counts)) for n in counts if n)


def test_by_hand() -> None:
    # Exponents 120 and 121, four and three weights, spread over two tensors.
    a, b = 120 << 7, 121 << 7
    old, new = states(
        "BF16",
        ([a + 1, a + 2, b + 5], [a + 2, a + 2, b + 6]),
        ([a + 3, a + 4, b + 7, b + 8], [a + 2, a + 6, b + 7, b + 8]),
    )
    found = limit(old, new)
    # Exponent 120: 3 of 4 change, by +1, -1 and +2. Exponent 121: 1 of 3 changes, by +1.
    assert found.place_bits == pytest.approx(entropy(3, 1) + entropy(1, 2))
    assert found.value_bits == pytest.approx(entropy(1, 1, 1))
    assert found.changes == 4
    assert found.exact


def test_integers_are_one_class() -> None:
    found = limit(*states("I8", ([1, 2, 3, 4], [1, 2, 3, 5])))
    assert found.bits == pytest.approx(entropy(1, 3))


def test_dtypes_are_not_pooled() -> None:
    layout = Layout([TensorSpec("a", by_name("I8"), (2,)), TensorSpec("b", by_name("I16"), (2,))])
    old = State(layout, [np.zeros(2, np.uint8), np.zeros(2, np.uint16)])
    new = State(layout, [np.array([0, 1], np.uint8), np.array([0, 1], np.uint16)])
    assert limit(old, new).bits == pytest.approx(2 * entropy(1, 1))


def test_no_change_costs_nothing() -> None:
    found = limit(*states("BF16", ([1, 2], [1, 2])))
    assert (found.bits, found.changes, found.exact) == (0, 0, True)


@given(st.sampled_from(DTYPES), st.data())
def test_the_order_is_a_bijection(dtype: DType, data: st.DataObject) -> None:
    bits = data.draw(st.lists(st.integers(0, 2 ** (8 * dtype.width) - 1), min_size=1))
    lanes = np.array(bits, dtype.lane)
    assert np.array_equal(ulp_pattern(ulp_order(lanes, dtype), dtype), lanes)


def test_the_order_is_numerical() -> None:
    numbers = np.array([-np.inf, -2, -1, -1e-40, -0.0, 0.0, 1e-40, 1, 2, np.inf], np.float32)
    order = ulp_order(numbers.view(np.uint32), by_name("F32"))
    assert (np.diff(order.astype(np.int64)) > 0).all()
