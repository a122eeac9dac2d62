"""Patches: one or more parts, checked against each other and decoded block by block."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np

from ..dtypes import Lanes
from ..errors import FormatError, HeaderError
from ..kernels import Changes, Places
from .boxes import Box, BoxMap, Segment, require_disjoint
from .layout import Layout
from .parallel import Workers
from .part import UNCHANGED, BoundPart, Part
from .state import State


@dataclass(frozen=True, slots=True)
class Change:
    """Lanes of one tensor before and after, at ``start + places``; without places from start on."""

    tensor: int
    start: int
    places: Places | None
    old: Lanes
    new: Lanes

    def flat(self) -> Places:
        """The places in the tensor."""
        if self.places is None:
            return np.arange(self.start, self.start + len(self.new), dtype=np.int64)
        return self.places + self.start


class Patch:
    """What turns one state into another.

    Args:
        parts: All parts, in any order.

    Raises:
        HeaderError: Parts are missing, doubled or of different patches.
    """

    def __init__(self, parts: Collection[Part]) -> None:
        if not parts:
            raise HeaderError("a patch has at least one part")
        self.parts = tuple(sorted(parts, key=lambda part: part.header.part))
        first = self.parts[0].header
        for i, part in enumerate(self.parts):
            h = part.header
            same = (h.layout_id, h.base, h.target, h.parts)
            if same != (first.layout_id, first.base, first.target, first.parts):
                raise HeaderError(
                    f"{part.where} belongs to another patch than {self.parts[0].where}"
                )
            if h.part != i or first.parts != len(self.parts):
                raise HeaderError(
                    f"a patch of {first.parts} parts was given {len(self.parts)}, or one twice"
                )
        self.base, self.target, self.layout_id = first.base, first.target, first.layout_id
        self.layout = next((p.header.layout for p in self.parts if p.header.layout), None)
        self.codecs = sorted({part.header.codec for part in self.parts})
        self.changes = sum(part.header.changes for part in self.parts)
        self.file_bytes = sum(part.file_bytes for part in self.parts)
        self._bound: tuple[BoundPart, ...] | None = None

    def bind(self, layout: Layout) -> tuple[BoundPart, ...]:
        """Lay all parts over their layout.

        Raises:
            LayoutMismatchError: The layout is another one than the patch's.
            FormatError: A part breaks its format, or parts overlap.
        """
        # A patch fits one layout only, so the first binding that succeeds serves all.
        if self._bound is None or layout.id != self.layout_id:
            bound = tuple(part.bind(layout) for part in self.parts)
            if len(bound) > 1:
                by_tensor: dict[int, list[Box]] = {}
                for part in bound:
                    for box in part.boxes.boxes:
                        by_tensor.setdefault(box.tensor, []).append(box)
                for boxes in by_tensor.values():
                    require_disjoint(boxes)
            self._bound = bound
        return self._bound

    def decode(
        self, state: State, tensors: Collection[str] | None = None, *, threads: int | None = None
    ) -> Iterator[list[Change]]:
        """Decode against the base, a list of changes per block, every group's hash checked first.

        Nothing is written. While the caller takes blocks one by one it may write those it has; each
        block reads only its own weights.

        Args:
            state: The base. Its root is *not* checked here.
            tensors: Only blocks with these tensors are read, and only their changes given.
            threads: By default all cores this process may use.

        Raises:
            FormatError: A block is damaged or breaks its format.
        """
        wanted = None if tensors is None else {state.layout.index(name) for name in tensors}
        parts = self.bind(state.layout)
        with Workers(threads) as workers:
            for part in parts:
                yield from _decode_part(part, state, wanted, workers)


def open_patch(*paths: str | os.PathLike[str]) -> Patch:
    """Open a patch from its part files; headers are read and checked, blocks when they are decoded.

    Raises:
        FormatError: A file breaks its format, or the files are not one patch.
    """
    return Patch([Part.open(path) for path in paths])


def _decode_part(
    part: BoundPart, state: State, wanted: set[int] | None, workers: Workers
) -> Iterator[list[Change]]:
    boxes = part.boxes

    def needed(i: int) -> bool:
        if part.modes[i] == UNCHANGED:
            return False
        tensors = {boxes.boxes[s.box].tensor for s in boxes.blocks[i].segments}
        return wanted is None or not wanted.isdisjoint(tensors)

    def read(i: int) -> tuple[list[Change], list[tuple[int, int]]]:
        block = boxes.blocks[i]
        base = boxes.read(state, block)
        found = part.read(i, base)
        changes, counts = [], []
        for segment, start in boxes.segments(block):
            piece = slice(start, start + segment.size)
            if isinstance(found, Changes):
                change = _sparse(boxes, segment, start, found)
                count = len(change.new)
            else:
                change = _dense(boxes, segment, base[piece].copy(), found[piece])
                count = int(np.count_nonzero(change.old != change.new))
            counts.append((segment.box, count))
            if count and (wanted is None or change.tensor in wanted):
                changes.append(change)
        return changes, counts

    def items() -> Iterator[int]:
        for group in part.groups():
            members = [i for i in group if needed(i)]
            if members:
                part.check_group(group)
                yield from members

    counted: dict[int, int] = {}
    for changes, counts in workers.map(read, items()):
        for box, count in counts:
            counted[box] = counted.get(box, 0) + count
        if changes:
            yield changes
    declared = {t.box: t.changes for t in part.header.touched}
    for box in sorted(counted.keys() | declared.keys()):
        if wanted is None or boxes.boxes[box].tensor in wanted:
            have, need = counted.get(box, 0), declared.get(box, 0)
            if have != need or (box in declared and not need):
                raise FormatError(
                    f"{part.where}: box {box} has {have} changes, {need} are declared"
                )


def _sparse(boxes: BoxMap, segment: Segment, start: int, found: Changes) -> Change:
    """The changes of a block that fall into a segment that starts at ``start`` in it."""
    tensor, offset = boxes.boxes[segment.box].tensor, boxes.offset(segment.box)
    first, last = np.searchsorted(found.places, (start, start + segment.size))
    old, new = found.old[first:last], found.new[first:last]
    inside = found.places[first:last]
    if start:
        inside = inside - start
    if offset is None:
        return Change(tensor, 0, boxes.places(segment, inside), old, new)
    return Change(tensor, offset + segment.start, inside, old, new)


def _dense(boxes: BoxMap, segment: Segment, old: Lanes, new: Lanes) -> Change:
    """All weights of a segment as one change."""
    tensor, offset = boxes.boxes[segment.box].tensor, boxes.offset(segment.box)
    if offset is None:
        places = boxes.places(segment, np.arange(segment.size, dtype=np.int64))
        return Change(tensor, 0, places, old, new)
    return Change(tensor, offset + segment.start, None, old, new)
