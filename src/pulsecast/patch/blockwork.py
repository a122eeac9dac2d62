"""Encoding single blocks, in any order and thread."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import kernels
from ..kernels import Changes
from .boxes import Block, BoxMap
from .codecs import BlockEncoder
from .parallel import Workers
from .part import DENSE, SPARSE, UNCHANGED
from .state import State

_SAMPLE_CHANGES = 1 << 18  # tables gain nothing from more, and a bound on what waits in memory
_SAMPLE_STEP = 16


@dataclass(frozen=True, slots=True)
class EncodedBlock:
    """A block in its smallest mode."""

    mode: int
    payload: bytes
    touched: list[tuple[int, int, int]]
    """Box, number of changes, change of its sum."""
    weights: int


class BlockWork:
    """Encodes blocks in any order; those that were split for the sample are not split again."""

    def __init__(self, boxes: BoxMap, encoder: BlockEncoder, old: State, new: State) -> None:
        self._boxes, self._encoder, self._old, self._new = boxes, encoder, old, new
        self._kept: dict[int, Any] = {}

    def _split(self, i: int) -> Any:
        block = self._boxes.blocks[i]
        old, new = self._boxes.read(self._old, block), self._boxes.read(self._new, block)
        return self._encoder.split(block, old, new)

    def learn(self, workers: Workers) -> None:
        """Split blocks spread over the part until there are changes enough for the tables.

        That is judged after steps of a fixed size, so that the sample does not depend on threads.
        """
        if not self._encoder.learns:
            return

        def look(i: int) -> tuple[Any, Any]:
            split = self._split(i)
            return split, self._encoder.observe(self._boxes.blocks[i], split)

        order = _spread(len(self._boxes.blocks))
        observations, changes = [], 0
        for done, (split, observation) in enumerate(workers.map(look, order)):
            if done % _SAMPLE_STEP == 0 and changes >= _SAMPLE_CHANGES:
                break
            self._kept[order[done]] = split
            observations.append(observation)
            changes += len(split.changes.places)
        self._encoder.learn(observations)

    def encode(self, i: int) -> EncodedBlock:
        """One block in its smallest mode."""
        block = self._boxes.blocks[i]
        split = self._kept.pop(i, None) or self._split(i)
        if not len(split.changes.places):
            return EncodedBlock(UNCHANGED, b"", [], block.size)
        touched = list(_touched(self._boxes, block, split.changes))
        payload = self._encoder.write(block, split)
        if len(payload) < block.size * block.dtype.width:
            return EncodedBlock(SPARSE, payload, touched, block.size)
        return EncodedBlock(
            DENSE, self._boxes.read(self._new, block).tobytes(), touched, block.size
        )


def _spread(n: int) -> list[int]:
    """0 … n − 1 so that every beginning of the list is spread over the range."""
    bits = max(n - 1, 1).bit_length()
    order = (int(f"{i:0{bits}b}"[::-1], 2) for i in range(1 << bits))
    return [i for i in order if i < n]


def _touched(boxes: BoxMap, block: Block, changes: Changes) -> Iterator[tuple[int, int, int]]:
    """Box, number of changes and change of the sum, for every segment with changes."""
    for segment, start in boxes.segments(block):
        first, last = np.searchsorted(changes.places, (start, start + segment.size))
        if last > first:
            places, offset = changes.places[first:last], boxes.offset(segment.box)
            if offset is None:
                places, origin = boxes.places(segment, places - start), 0
            else:
                origin = offset + segment.start - start
            change = kernels.digest_change(
                places, changes.old[first:last], changes.new[first:last], origin
            )
            yield segment.box, int(last - first), change
