"""encode → decode → apply is the identity on bits: every codec, dtype, shape and cut into boxes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsecast import kernels
from pulsecast.dtypes import DTYPES, DType
from pulsecast.patch import digest
from pulsecast.patch.boxes import Box
from pulsecast.patch.codecs import CODECS
from pulsecast.patch.decode import Patch
from pulsecast.patch.encode import encode_bytes
from pulsecast.patch.layout import Layout, TensorSpec
from pulsecast.patch.part import Part
from pulsecast.patch.state import State
from pulsecast.patch.transaction import apply
from tests.property.pairs import Pair, large_pairs, pairs
from tests.states import change_state, make_state, same_bits

codecs = pytest.mark.parametrize("codec", CODECS)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)


def states_of(pair: Pair, shape: tuple[int, ...]) -> tuple[State, State]:
    layout = Layout([TensorSpec("t", pair.dtype, shape)])
    return State(layout, [pair.old]), State(layout, [pair.new])


def require_identity(old: State, new: State, *files: bytes) -> None:
    """Both backends turn old into new, bit for bit."""
    for name in ("reference", "native"):
        with kernels.use(name):
            state = old.copy()
            report = apply(Patch([Part(data) for data in files]), state, threads=1)
            assert same_bits(state, new)
            assert report.target == digest.state_root(new, threads=1)


@codecs
@each_dtype
@settings(max_examples=12)
@given(data=st.data())
def test_one_tensor(codec: str, dtype: DType, data: st.DataObject) -> None:
    pair = data.draw(pairs((dtype,), most=4097))
    size = len(pair.old)
    divisors = [d for d in (1, 2, 3, 5, 8, 64) if size % d == 0]
    rows = data.draw(st.sampled_from(divisors))
    old, new = states_of(pair, (rows, size // rows))
    found = set()
    for name in ("reference", "native"):
        with kernels.use(name):
            found.add(encode_bytes(old, new, codec=codec, threads=1))
    assert len(found) == 1
    require_identity(old, new, found.pop())


@codecs
@settings(max_examples=10)
@given(data=st.data())
def test_many_blocks(codec: str, data: st.DataObject) -> None:
    """Sizes around the smallest block; few changes, so that the reference is quick."""
    dtype = data.draw(st.sampled_from(DTYPES))
    size = data.draw(st.sampled_from([65535, 65536, 65537, 131072, 131073]))
    old = make_state({"t": (dtype.name, (size,)), "u": (dtype.name, (3,))})
    new = change_state(old, data.draw(st.sampled_from([0.0, 0.0001, 0.004])), size)
    require_identity(old, new, encode_bytes(old, new, codec=codec))


@st.composite
def cuts(draw: st.DrawFn, tensor: int, shape: tuple[int, ...]) -> list[Box]:
    """A tensor cut by random planes, again and again."""
    boxes = [Box(tensor, (0,) * len(shape), shape)]
    for _ in range(draw(st.integers(0, 6))):
        i = draw(st.integers(0, len(boxes) - 1))
        box = boxes[i]
        wide = [d for d, n in enumerate(box.shape) if n > 1]
        if wide:
            d = draw(st.sampled_from(wide))
            at = draw(st.integers(1, box.shape[d] - 1))
            low, high = list(box.shape), list(box.shape)
            low[d], high[d] = at, box.shape[d] - at
            start = list(box.start)
            start[d] += at
            boxes[i : i + 1] = [
                Box(tensor, box.start, tuple(low)),
                Box(tensor, tuple(start), tuple(high)),
            ]
    return boxes


SHAPES = st.lists(
    st.lists(st.integers(1, 9), min_size=0, max_size=4).map(tuple), min_size=1, max_size=4
)


@codecs
@settings(max_examples=40)
@given(shapes=SHAPES, seed=st.integers(0, 2**16), data=st.data())
def test_random_boxes_in_random_parts(
    codec: str, shapes: list[tuple[int, ...]], seed: int, data: st.DataObject
) -> None:
    kinds = data.draw(
        st.lists(
            st.sampled_from([d.name for d in DTYPES]), min_size=len(shapes), max_size=len(shapes)
        )
    )
    old = make_state({f"t{i}": (kinds[i], shape) for i, shape in enumerate(shapes)}, seed)
    new = change_state(old, data.draw(st.sampled_from([0.0, 0.1, 1.0])), seed)
    boxes = [box for i, shape in enumerate(shapes) for box in data.draw(cuts(i, shape))]
    assert sum(box.size for box in boxes) == sum(math.prod(s) for s in shapes)
    parts = data.draw(st.integers(1, 3))
    owner = [data.draw(st.integers(0, parts - 1)) for _ in boxes]
    files = [
        encode_bytes(
            old,
            new,
            codec=codec,
            boxes=[box for box, part in zip(boxes, owner, strict=True) if part == i],
            part=(i, parts),
        )
        for i in range(parts)
    ]
    require_identity(old, new, *files)


@codecs
@settings(max_examples=30)
@given(first=large_pairs(most=1025), second=st.integers(0, 2**32))
def test_there_and_back_again(codec: str, first: Pair, second: int) -> None:
    """Patches compose: a → b → c → a."""
    a, b = states_of(first, (len(first.old),))
    c = change_state(b, 0.1 if len(first.old) else 0.0, second)
    state = a.copy()
    sums = digest.tensor_sums(state)
    for old, new in ((a, b), (b, c), (c, a)):
        patch = Patch([Part(encode_bytes(old, new, codec=codec))])
        sums = apply(patch, state, sums=sums).sums
        assert same_bits(state, new)
    assert np.array_equal(sums, digest.tensor_sums(a))
