"""`raw`: places as u16 within sub-blocks and new bits (spec section 6). Decodes without a scan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from ... import kernels
from ...dtypes import Lanes
from ...errors import FormatError, TruncatedError
from ...kernels import Changes, Places
from ..boxes import Block, BoxMap
from .survey import Survey

_SUB = 1 << 16


@dataclass(frozen=True, slots=True)
class Diff:
    """The changes of a block on their way to bytes."""

    changes: Changes


class DiffEncoder:
    """What codecs of places and new bits share: the split is a plain diff, nothing is learnt."""

    learns = False

    def __init__(self, boxes: BoxMap, surveys: Mapping[int, Survey]) -> None:
        self._boxes = boxes

    def split(self, block: Block, old: Lanes, new: Lanes) -> Diff:
        """The changes of a block."""
        places, values = kernels.diff(old, new)
        return Diff(Changes(places, kernels.backend().gather(old, places), values))

    def observe(self, block: Block, split: Diff) -> None:
        """Nothing to observe."""

    def learn(self, observations: Iterable[None]) -> None:
        """Nothing to learn."""

    def tables(self) -> bytes:
        """No tables."""
        return b""


class RawEncoder(DiffEncoder):
    """Writes spec section 6."""

    def write(self, block: Block, split: Diff) -> bytes:
        """The payload of a sparse block."""
        places = split.changes.places
        counts = np.bincount(places // _SUB, minlength=-(-block.size // _SUB)).astype("<u4")
        return (
            counts.tobytes() + (places % _SUB).astype("<u2").tobytes() + split.changes.new.tobytes()
        )


class RawDecoder:
    """Reads spec section 6."""

    def __init__(self, boxes: BoxMap, tables: memoryview) -> None:
        if len(tables):
            raise FormatError("a raw part has no tables")

    def read(self, block: Block, data: memoryview, base: Lanes) -> Changes:
        """The changes of a sparse block."""
        subs = -(-block.size // _SUB)
        if len(data) < 4 * subs:
            raise TruncatedError("a raw block ends inside its counts")
        counts = np.frombuffer(data, "<u4", subs).astype(np.int64)
        k = int(counts.sum())
        if len(data) != 4 * subs + k * (2 + block.dtype.width):
            raise TruncatedError(f"a raw block of {k} changes has {len(data)} bytes")
        inside = np.frombuffer(data, "<u2", k, 4 * subs).astype(np.int64)
        places = inside + np.repeat(np.arange(subs, dtype=np.int64) * _SUB, counts)
        values = np.frombuffer(data, block.dtype.lane, k, 4 * subs + 2 * k)
        return checked(block, places, base, values)


def checked(block: Block, places: Places, base: Lanes, values: Lanes) -> Changes:
    """The changes of a block, once their places are known to ascend inside of it."""
    if kernels.backend().check_places(places, block.size) != len(places):
        raise FormatError("the places of a block do not ascend or lie outside of it")
    old = kernels.backend().gather(base, places)
    if (old == values).any():
        raise FormatError("a sparse block holds weights that do not change")
    return Changes(places, old, values)
