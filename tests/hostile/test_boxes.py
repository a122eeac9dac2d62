"""Forged boxes."""

from __future__ import annotations

import json
import time

import pytest

from pulsecast.dtypes import by_name
from pulsecast.errors import FormatError, PulsecastError
from pulsecast.patch.decode import Patch
from pulsecast.patch.encode import encode_bytes
from pulsecast.patch.layout import Layout, TensorSpec
from pulsecast.patch.part import Part
from pulsecast.patch.state import State
from tests.hostile.forge import Forge, attempt, refusal


def with_boxes(part: bytes, boxes: object) -> bytes:
    forged = Forge(part)
    forged.metadata["boxes"] = boxes if isinstance(boxes, str) else json.dumps(boxes)
    return forged.pack()


def test_all_boxes_by_name_are_the_same_patch(part: bytes, old: State, new: State) -> None:
    assert attempt(with_boxes(part, [[0], [1], [3], [2]]), old, new) is None
    whole = [[0, [0, 0], [9, 12]], [1, [0], [7]], [3, [0], [2]], [2, [0], [5]]]
    assert attempt(with_boxes(part, whole), old, new) is None


@pytest.mark.parametrize(
    "boxes",
    [
        [[0], [0], [1], [3], [2]],
        [[0], [0, [0, 0], [1, 1]], [1], [3], [2]],
        [[0, [0, 0], [9, 7]], [0, [0, 6], [9, 6]], [1], [3], [2]],
        [[0, [0, 0], [9, 12]], [1, [0], [4]], [1, [3], [4]], [3], [2]],
    ],
    ids=["twice", "inside", "columns", "runs"],
)
def test_boxes_that_overlap(boxes: list, part: bytes, old: State, new: State) -> None:
    assert isinstance(refusal(with_boxes(part, boxes), old, new), FormatError)


@pytest.mark.parametrize(
    "box",
    [
        [0, [0, 0], [10, 12]],
        [0, [1, 0], [9, 12]],
        [0, [0, 0], [9, 13]],
        [0, [9, 0], [1, 12]],
        [0, [-1, 0], [9, 12]],
        [0, [0, 0], [-9, -12]],
        [0, [0, 0], [0, 12]],
        [0, [2**63, 0], [9, 12]],
        [0, [0, 0], [2**63, 2**63]],
        [0, [0, 2**64], [1, 1]],
        [0, [-(2**63), 0], [2**63 + 9, 12]],
        [0, [0], [108]],
        [0, [0, 0, 0], [9, 12, 1]],
        [0, [], []],
        [0, [0, 0], [9]],
        [4],
        [-1],
        [2**63],
        [0.0],
        [None],
        ["0"],
        [True],
        [],
        0,
        {},
        [0, [0, 0]],
        [0, [0, 0], [9, 12], 1],
        [0, "00", "99"],
        [0, [0.0, 0], [9, 12]],
        [0, None, None],
    ],
    ids=str,
)
def test_boxes_that_escape_or_are_none(box: object, part: bytes, old: State, new: State) -> None:
    error = refusal(with_boxes(part, [box, [1], [3], [2]]), old, new)
    assert isinstance(error, FormatError)


def test_boxes_in_another_order(part: bytes, old: State, new: State) -> None:
    for boxes in ([[1], [0], [3], [2]], [[0], [1], [2], [3]]):
        assert isinstance(refusal(with_boxes(part, boxes), old, new), FormatError)


def test_boxes_that_leave_a_tensor_out(part: bytes, old: State, new: State) -> None:
    """The index has a block too many then."""
    for boxes in ([], [[0]], [[0], [1], [3]], [[1], [3], [2]]):
        refusal(with_boxes(part, boxes), old, new)


def test_boxes_of_another_shape_move_no_weight_unseen(part: bytes, old: State, new: State) -> None:
    """Same sizes, so the blocks fit, but other weights: only sums can tell."""
    split = [[0, [0, 0], [9, 6]], [0, [0, 6], [9, 6]], [1], [3], [2]]
    refusal(with_boxes(part, split), old, new)


@pytest.mark.parametrize("count", [1 << 20, (1 << 20) + 1])
def test_a_million_boxes_are_refused_quickly(count: int, old: State, new: State) -> None:
    layout = Layout([TensorSpec("t", by_name("U8"), (1 << 21,))])
    forged = Forge(encode_bytes(old, new, codec="raw"))
    forged.metadata["layout"] = layout.id.hex()
    forged.metadata["boxes"] = "[" + ",".join(f"[0,[{i}],[1]]" for i in range(count)) + "]"
    patch = Patch([Part(forged.pack())])
    started = time.process_time()
    with pytest.raises(PulsecastError):
        patch.bind(layout)
    assert time.process_time() - started < 5
