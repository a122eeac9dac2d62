"""Boxes and the blocks they are cut into (spec section 4)."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from .. import kernels
from ..dtypes import DType, Lanes
from ..errors import FormatError, HeaderError, LimitError
from ..kernels import Places
from .layout import Layout
from .state import State

MAX_BOXES = 1 << 18
MAX_BLOCKS = 1 << 26
MAX_BOXES_OF_TENSOR = 1 << 10


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangular piece of a tensor."""

    tensor: int
    start: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of weights."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Segment:
    """The weights ``start`` to ``stop`` of a box, in the box's row-major order."""

    box: int
    start: int
    stop: int

    @property
    def size(self) -> int:
        """Number of weights."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Block:
    """Segments of one dtype that are coded together."""

    dtype: DType
    segments: tuple[Segment, ...]

    @property
    def size(self) -> int:
        """Number of weights."""
        return sum(segment.size for segment in self.segments)


class BoxMap:
    """The boxes of a part, where their weights lie in the tensors, and their blocks.

    Args:
        layout: The layout the boxes belong to.
        boxes: In any order, or None for every tensor.
        block_log2: Binary logarithm of the most weights in a block.
        limit: Refuse more blocks than this before any is made.

    Raises:
        FormatError: A box lies outside its tensor, is empty, or overlaps another.
    """

    def __init__(
        self,
        layout: Layout,
        boxes: Iterable[Box] | None,
        block_log2: int,
        limit: int = MAX_BLOCKS,
    ) -> None:
        self.layout = layout
        self.whole = boxes is None
        if boxes is None:
            boxes = [
                Box(i, (0,) * len(t.shape), t.shape) for i, t in enumerate(layout.tensors) if t.size
            ]
        self.boxes = tuple(sorted(boxes, key=_order(layout)))
        self.block_log2 = block_log2
        if not self.whole:
            _check_boxes(layout, self.boxes)
        self._offsets = [_offset(box, layout.tensors[box.tensor].shape) for box in self.boxes]
        self.blocks = self._cut(1 << block_log2, limit)

    def dtype(self, box: int) -> DType:
        """The dtype of a box."""
        return self.layout.tensors[self.boxes[box].tensor].dtype

    def _cut(self, most: int, limit: int) -> tuple[Block, ...]:
        large = sum(-(-box.size // most) for box in self.boxes if box.size > most)
        if large > limit:
            raise LimitError(f"a part would have {large} blocks or more, at most {limit} allowed")
        blocks: list[Block] = []
        gathered: list[Segment] = []
        weights = 0
        for i, box in enumerate(self.boxes):
            dtype = self.dtype(i)
            if gathered and (weights + box.size > most or self.dtype(gathered[0].box) != dtype):
                blocks.append(Block(self.dtype(gathered[0].box), tuple(gathered)))
                gathered, weights = [], 0
            if box.size > most:
                starts = range(0, box.size, most)
                blocks += [Block(dtype, (Segment(i, s, min(s + most, box.size)),)) for s in starts]
            else:
                gathered.append(Segment(i, 0, box.size))
                weights += box.size
        if gathered:
            blocks.append(Block(self.dtype(gathered[0].box), tuple(gathered)))
        return tuple(blocks)

    def offset(self, box: int) -> int | None:
        """Where a box starts in its tensor if its weights lie there in one run, else None."""
        return self._offsets[box]

    def segments(self, block: Block) -> Iterator[tuple[Segment, int]]:
        """The segments of a block and where they start in it."""
        start = 0
        for segment in block.segments:
            yield segment, start
            start += segment.size

    def read(self, state: State, block: Block) -> Lanes:
        """The lanes of a block: a view where it is one run of a tensor, else a copy."""
        pieces = [self.read_segment(state, segment) for segment in block.segments]
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def read_segment(self, state: State, segment: Segment) -> Lanes:
        """The lanes of a segment: a view where it is one run of its tensor, else a copy."""
        box = self.boxes[segment.box]
        array = state.arrays[box.tensor]
        offset = self.offset(segment.box)
        if offset is not None:
            return array[offset + segment.start : offset + segment.stop]
        rows, skip = self._rows(segment)
        piece = array.reshape(self.layout.tensors[box.tensor].shape)[rows]
        return np.ascontiguousarray(piece).reshape(-1)[skip : skip + segment.size]

    def _rows(self, segment: Segment) -> tuple[tuple[slice, ...], int]:
        """Slices of the tensor that hold a segment, and where it starts in them.

        They take whole rows of the box's first dimension, so at most two rows too much.
        """
        box = self.boxes[segment.box]
        row = box.size // box.shape[0]
        first, last = segment.start // row, -(-segment.stop // row)
        slices = [slice(s, s + n) for s, n in zip(box.start, box.shape, strict=True)]
        slices[0] = slice(box.start[0] + first, box.start[0] + last)
        return tuple(slices), segment.start - first * row

    def places(self, segment: Segment, places: Places) -> Places:
        """Positions in the tensor of places in a segment."""
        offset = self.offset(segment.box)
        if offset is not None:
            return places + (offset + segment.start)
        box = self.boxes[segment.box]
        shape = self.layout.tensors[box.tensor].shape
        inside = np.unravel_index(places + segment.start, box.shape)
        at = [index + start for index, start in zip(inside, box.start, strict=True)]
        return np.ravel_multi_index(at, shape).astype(np.int64)

    def sum(self, state: State, box: int) -> int:
        """The sum of a box's weights with their positions in the tensor (spec section 2)."""
        b = self.boxes[box]
        array, shape = state.arrays[b.tensor], self.layout.tensors[b.tensor].shape
        offset = self.offset(box)
        if offset is not None:
            return kernels.digest(array[offset : offset + b.size], offset)
        # Runs of the last dimension lie in one piece each.
        outer = np.ndindex(*b.shape[:-1])
        starts = [
            _flat([*(s + i for s, i in zip(b.start, at, strict=False)), b.start[-1]], shape)
            for at in outer
        ]
        run = b.shape[-1]
        return sum(kernels.digest(array[s : s + run], s) for s in starts) % (1 << 64)

    def to_json(self) -> str:
        """The metadata value of spec section 3."""
        if self.whole:
            return "*"
        rows: list[list[object]] = []
        for box in self.boxes:
            full = box.shape == self.layout.tensors[box.tensor].shape
            rows.append([box.tensor] if full else [box.tensor, list(box.start), list(box.shape)])
        return json.dumps(rows, separators=(",", ":"))


def parse_boxes(text: str, layout: Layout) -> list[Box] | None:
    """Read the metadata value of spec section 3; None means every tensor.

    Raises:
        HeaderError: It is no list of boxes.
    """
    if text == "*":
        return None
    try:
        rows = json.loads(text)
        if not isinstance(rows, list) or len(rows) > MAX_BOXES:
            raise HeaderError(f"boxes must be a list of at most {MAX_BOXES}")
        boxes: list[Box] = []
        of_tensor: Counter[int] = Counter()
        for row in rows:
            tensor = _integer(row[0])
            of_tensor[tensor] += 1
            if of_tensor[tensor] > MAX_BOXES_OF_TENSOR:
                raise LimitError(f"more than {MAX_BOXES_OF_TENSOR} boxes of one tensor")
            if not 0 <= tensor < len(layout.tensors):
                raise HeaderError(f"a box names tensor {tensor}: the layout has no such")
            shape = layout.tensors[tensor].shape
            if len(row) == 1:
                boxes.append(Box(tensor, (0,) * len(shape), shape))
            else:
                _, start, lengths = row
                if not isinstance(start, list) or not isinstance(lengths, list):
                    raise HeaderError(f"{row!r:.60} is no box")
                boxes.append(
                    Box(tensor, tuple(map(_integer, start)), tuple(map(_integer, lengths)))
                )
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        if isinstance(error, FormatError):
            raise
        raise HeaderError(f"boxes are not [tensor, [start…], [shape…]]: {error}") from error
    if sorted(boxes, key=_order(layout)) != boxes:
        raise HeaderError("boxes are not in the order of spec section 4")
    return boxes


def _order(layout: Layout) -> Callable[[Box], tuple[int, int, tuple[int, ...]]]:
    """The order of boxes in a part (spec section 4)."""

    def key(box: Box) -> tuple[int, int, tuple[int, ...]]:
        if not 0 <= box.tensor < len(layout.tensors):
            raise HeaderError(
                f"a box names tensor {box.tensor}, the layout has {len(layout.tensors)}"
            )
        return layout.tensors[box.tensor].dtype.code, box.tensor, box.start

    return key


def _integer(value: object) -> int:
    if type(value) is not int:
        raise HeaderError(f"{value!r} in a box is no integer")
    return value


def _offset(box: Box, shape: Sequence[int]) -> int | None:
    partial = [d for d in range(len(shape)) if box.shape[d] != shape[d]]
    if partial and any(box.shape[d] != 1 for d in range(partial[-1])):
        return None
    return _flat(box.start, shape)


def _flat(index: Sequence[int], shape: Sequence[int]) -> int:
    flat = 0
    for i, n in zip(index, shape, strict=True):
        flat = flat * n + i
    return flat


def _check_boxes(layout: Layout, boxes: Sequence[Box]) -> None:
    if len(boxes) > MAX_BOXES:
        raise LimitError(f"a part has {len(boxes)} boxes, at most {MAX_BOXES} allowed")
    by_tensor: dict[int, list[Box]] = {}
    for box in boxes:
        shape = layout.tensors[box.tensor].shape
        inside = len(box.start) == len(box.shape) == len(shape) and all(
            s >= 0 and n >= 1 and s + n <= d
            for s, n, d in zip(box.start, box.shape, shape, strict=True)
        )
        if not inside:
            raise FormatError(
                f"a box is empty or lies outside of {layout.tensors[box.tensor]}: {box}"
            )
        by_tensor.setdefault(box.tensor, []).append(box)
    for group in by_tensor.values():
        require_disjoint(group)


def require_disjoint(boxes: Sequence[Box]) -> None:
    """Raise FormatError if two of the boxes of one tensor overlap."""
    if len(boxes) < 2:
        return
    if len(boxes) > MAX_BOXES_OF_TENSOR:
        raise LimitError(f"{len(boxes)} boxes of one tensor, at most {MAX_BOXES_OF_TENSOR} allowed")
    low = np.array([box.start for box in boxes], np.int64).reshape(len(boxes), -1)
    high = low + np.array([box.shape for box in boxes], np.int64).reshape(len(boxes), -1)
    for i in range(1, len(boxes)):
        overlap = ((low[:i] < high[i]) & (low[i] < high[:i])).all(axis=1)
        if overlap.any():
            raise FormatError(f"boxes overlap: {boxes[int(np.argmax(overlap))]} and {boxes[i]}")
