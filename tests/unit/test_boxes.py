"""Boxes and blocks: spec section 4."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest

from pulsecast.dtypes import by_name
from pulsecast.errors import FormatError, LimitError
from pulsecast.patch.boxes import Box, BoxMap, Segment, parse_boxes, require_disjoint
from pulsecast.patch.codecs.raw import checked
from pulsecast.patch.decode import Patch
from pulsecast.patch.encode import encode_bytes
from pulsecast.patch.layout import Layout, TensorSpec
from pulsecast.patch.part import Part
from pulsecast.patch.state import State
from pulsecast.patch.transaction import apply
from tests.states import MIXED, make_state

LAYOUT = Layout(
    [
        TensorSpec("a", by_name("F32"), (4, 6, 5)),
        TensorSpec("b", by_name("BF16"), (10, 10)),
        TensorSpec("c", by_name("BF16"), ()),
        TensorSpec("d", by_name("BF16"), (0, 3)),
        TensorSpec("e", by_name("I8"), (7,)),
    ]
)


def counted() -> State:
    """A state in which every weight is its own position."""
    return State(LAYOUT, [np.arange(t.size).astype(t.dtype.lane) for t in LAYOUT.tensors])


def test_every_tensor_with_elements_in_the_order_of_dtype_and_name() -> None:
    boxes = BoxMap(LAYOUT, None, 12)
    assert [b.tensor for b in boxes.boxes] == [1, 2, 0, 4]  # BF16, BF16, F32, I8
    assert boxes.whole
    assert boxes.to_json() == "*"
    assert parse_boxes("*", LAYOUT) is None


def test_blocks_gather_whole_boxes_of_one_dtype() -> None:
    blocks = BoxMap(LAYOUT, None, 12).blocks
    assert [(b.dtype.name, b.size, len(b.segments)) for b in blocks] == [
        ("BF16", 101, 2),
        ("F32", 120, 1),
        ("I8", 7, 1),
    ]


def test_large_boxes_are_cut_and_small_ones_stay_whole() -> None:
    sizes = [3000, 1096, 1, 4096, 4097, 9000, 5, 4096]
    layout = Layout([TensorSpec(f"t{i}", by_name("U8"), (n,)) for i, n in enumerate(sizes)])
    blocks = BoxMap(layout, None, 12).blocks
    cut = [[(s.box, s.start, s.stop) for s in block.segments] for block in blocks]
    assert cut == [
        [(0, 0, 3000), (1, 0, 1096)],
        [(2, 0, 1)],
        [(3, 0, 4096)],
        [(4, 0, 4096)],
        [(4, 4096, 4097)],
        [(5, 0, 4096)],
        [(5, 4096, 8192)],
        [(5, 8192, 9000)],
        [(6, 0, 5)],
        [(7, 0, 4096)],
    ]


@pytest.mark.parametrize("log2", [12, 13, 24])
def test_blocks_cover_every_weight_once(log2: int) -> None:
    state = make_state({**MIXED, "large": ("BF16", (3, 7001))})
    boxes = BoxMap(state.layout, None, log2)
    seen = [np.zeros(t.size, int) for t in state.layout.tensors]
    for block in boxes.blocks:
        assert 0 < block.size <= 1 << log2
        for segment in block.segments:
            places = boxes.places(segment, np.arange(segment.size, dtype=np.int64))
            seen[boxes.boxes[segment.box].tensor][places] += 1
    assert all((s == 1).all() for s in seen)


ALL_BOXES = [
    Box(0, s, n)
    for s, n in itertools.product(
        [(0, 0, 0), (1, 2, 3), (3, 0, 0)], [(1, 1, 1), (1, 4, 2), (1, 6, 5), (3, 4, 2), (4, 6, 5)]
    )
    if all(a + b <= d for a, b, d in zip(s, n, (4, 6, 5), strict=True))
]


@pytest.mark.parametrize("box", ALL_BOXES, ids=str)
def test_a_box_reads_its_own_weights_in_row_major_order(box: Box) -> None:
    state = counted()
    boxes = BoxMap(LAYOUT, [box], 12)
    cut = tuple(slice(s, s + n) for s, n in zip(box.start, box.shape, strict=True))
    expected = np.arange(120).reshape(4, 6, 5)[cut].ravel()
    assert boxes.read(state, boxes.blocks[0]).tolist() == expected.tolist()
    segment = Segment(0, 1, box.size) if box.size > 1 else Segment(0, 0, 1)
    places = boxes.places(segment, np.arange(segment.size, dtype=np.int64))
    assert places.tolist() == expected[segment.start :].tolist()
    offset = boxes.offset(0)
    is_run = (np.diff(expected) == 1).all()
    assert (offset is not None) == is_run
    if offset is not None:
        assert offset == expected[0]


def test_boxes_are_sorted_and_written_as_json() -> None:
    boxes = BoxMap(
        LAYOUT,
        [Box(4, (0,), (7,)), Box(0, (0, 0, 0), (1, 6, 5)), Box(2, (), ()), Box(1, (5, 0), (5, 10)),
         Box(1, (0, 3), (5, 2))],
        12,
    )  # fmt: skip
    text = "[[1,[0,3],[5,2]],[1,[5,0],[5,10]],[2],[0,[0,0,0],[1,6,5]],[4]]"
    assert boxes.to_json() == text
    assert parse_boxes(text, LAYOUT) == list(boxes.boxes)


def test_no_boxes_is_no_blocks() -> None:
    assert BoxMap(LAYOUT, [], 12).blocks == ()
    assert parse_boxes("[]", LAYOUT) == []


@pytest.mark.parametrize(
    "boxes",
    [
        [Box(1, (0, 0), (11, 1))],
        [Box(1, (10, 0), (1, 1))],
        [Box(1, (-1, 0), (1, 1))],
        [Box(1, (0, 0), (0, 10))],
        [Box(1, (0, 0), (-1, 10))],
        [Box(1, (0,), (10,))],
        [Box(1, (0, 0, 0), (1, 1, 1))],
        [Box(1, (0, 0), (1,))],
        [Box(1, (2**63, 0), (1, 1))],
        [Box(1, (1, 0), (2**64, 1))],
        [Box(3, (0, 0), (0, 3))],
        [Box(5, (0,), (1,))],
        [Box(-1, (0,), (1,))],
        [Box(2, (), ()), Box(2, (), ())],
        [Box(1, (0, 0), (5, 5)), Box(1, (4, 4), (2, 2))],
        [Box(1, (0, 0), (10, 10)), Box(1, (3, 3), (1, 1))],
        [Box(4, (0,), (4,)), Box(4, (3,), (4,))],
    ],
    ids=str,
)
def test_boxes_outside_empty_or_overlapping_are_refused(boxes: list[Box]) -> None:
    with pytest.raises(FormatError):
        BoxMap(LAYOUT, boxes, 12)


def test_neighbours_do_not_overlap() -> None:
    quarters = [Box(1, (r, c), (5, 5)) for r in (0, 5) for c in (0, 5)]
    assert len(BoxMap(LAYOUT, quarters, 12).boxes) == 4


def test_random_boxes_are_judged_as_a_painter_would() -> None:
    rng = np.random.default_rng(0)
    overlaps = 0
    for _ in range(300):
        boxes, painted = [], np.zeros((10, 10), int)
        for _ in range(int(rng.integers(2, 5))):
            start = rng.integers(0, 10, 2)
            shape = [int(rng.integers(1, min(4, 10 - s) + 1)) for s in start]
            boxes.append(Box(1, tuple(int(s) for s in start), tuple(shape)))
            painted[tuple(slice(s, s + n) for s, n in zip(start, shape, strict=True))] += 1
        if painted.max() > 1:
            overlaps += 1
            with pytest.raises(FormatError, match="overlap"):
                require_disjoint(boxes)
        else:
            require_disjoint(boxes)
    assert 30 < overlaps < 270


def test_too_many_boxes_of_one_tensor_are_refused() -> None:
    layout = Layout([TensorSpec("t", by_name("U8"), (5000,))])
    BoxMap(layout, [Box(0, (i,), (1,)) for i in range(1024)], 12)
    with pytest.raises(LimitError):
        BoxMap(layout, [Box(0, (i,), (1,)) for i in range(1025)], 12)


def test_too_many_blocks_are_refused_before_they_are_made() -> None:
    layout = Layout([TensorSpec(f"t{i}", by_name("U8"), (1 << 48,)) for i in range(3)])
    started = time.perf_counter()
    with pytest.raises(LimitError):
        BoxMap(layout, None, 12)
    assert time.perf_counter() - started < 1


@pytest.mark.parametrize(
    "text",
    [
        "", "**", "{}", "null", "7", "[7]", "[[]]", "[{}]", '["1"]', '[["1"]]', "[[1.0]]",
        "[[true]]", "[[null]]", "[[1,[0,0]]]", "[[1,[0,0],[1,1],0]]", "[[1,0,1]]",
        '[[1,"00","11"]]',
        "[[1,[0.0,0],[1,1]]]", "[[1,[true,0],[1,1]]]", "[[1,{},{}]]", "[[NaN]]", "[[-1]]", "[[5]]",
        "[[9223372036854775808]]", "[[1],[1,[0,0],[1,1]]", "[[4],[1]]",
        "[[1,[5,0],[1,1]],[1,[0,0],[1,1]]]",
        "[" * 100_000, "[[" + "1" * 5000 + "]]",
    ],
    ids=lambda t: t[:24],
)  # fmt: skip
def test_anything_but_ordered_boxes_is_refused(text: str) -> None:
    with pytest.raises(FormatError):
        BoxMap(LAYOUT, parse_boxes(text, LAYOUT), 12)


@pytest.mark.parametrize("codec", ["raw", "pulse", "weightwise"])
def test_blocks_that_start_inside_a_row_of_a_column_box(codec: str) -> None:
    rng = np.random.default_rng(0)
    weights = rng.integers(0, 1 << 16, (300, 1000), np.uint16)
    old = State.of({"w": weights}, "BF16")
    new = State.of({"w": weights ^ rng.integers(0, 2, weights.shape, np.uint16)}, "BF16")
    boxes = [Box(0, (0, 0), (300, 701)), Box(0, (0, 701), (300, 299))]
    parts = [
        Part(encode_bytes(old, new, codec=codec, boxes=[box], part=(i, 2)))
        for i, box in enumerate(boxes)
    ]
    cut = parts[0].bind(old.layout).boxes.blocks
    assert any(block.segments[0].start % 701 for block in cut)
    state = old.copy()
    apply(Patch(parts), state)
    assert np.array_equal(state.arrays[0], new.arrays[0])


def test_a_sparse_block_with_a_weight_that_does_not_change_is_refused() -> None:
    layout = Layout([TensorSpec("t", by_name("BF16"), (4,))])
    (block,) = BoxMap(layout, None, 12).blocks
    base = np.array([5, 6, 7, 8], np.uint16)
    places = np.array([1, 3], np.int64)
    assert np.array_equal(checked(block, places, base, base[places] + 1).old, base[places])
    with pytest.raises(FormatError, match="do not change"):
        checked(block, places, base, np.array([9, 8], np.uint16))
