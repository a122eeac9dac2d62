"""The kernels in numpy: obvious, slow, and the oracle of every other backend."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..dtypes import Lanes
from .classes import CLASSES, ClassMap

Places = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]
U32 = npt.NDArray[np.uint32]

KEY_RUN = 1024
_MASK = (1 << 64) - 1


def mix(x: U64) -> U64:
    """The 64-bit finaliser of spec section 2."""
    x = x ^ (x >> np.uint64(30))
    x = x * np.uint64(0xBF58476D1CE4E5B9)
    x = x ^ (x >> np.uint64(27))
    x = x * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


_TABLE = mix(
    np.arange(1, KEY_RUN + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
) | np.uint64(1)


def keys(positions: U64) -> U64:
    """K(i) of spec section 2."""
    runs = (positions >> np.uint64(10)) + np.uint64(1)
    q = mix(runs * np.uint64(0xD1342543DE82EF95)) & np.uint64(_MASK - 1)
    out: U64 = _TABLE[positions & np.uint64(KEY_RUN - 1)] ^ q
    return out


def diff(old: Lanes, new: Lanes) -> tuple[Places, Lanes]:
    """Places where the lanes differ, ascending, and the new lanes there."""
    places = np.flatnonzero(old != new).astype(np.int64)
    return places, new[places]


def check_places(places: Places, size: int) -> int:
    """Index of the first place that is out of order or range; their number if all are good."""
    bad = places >= size
    bad[:1] |= places[:1] < 0
    bad[1:] |= places[1:] <= places[:-1]
    return int(np.argmax(bad)) if bad.any() else len(places)


def apply(target: Lanes, places: Places, values: Lanes) -> Lanes:
    """Write the values at checked places; return what stood there."""
    old = target[places]
    target[places] = values
    return old


def gather(source: Lanes, places: Places) -> Lanes:
    """The lanes at checked places."""
    return source[places]


def _halves(lanes: Lanes) -> Lanes:
    return np.ascontiguousarray(lanes).view("<u4")


def digest(lanes: Lanes, start: int) -> int:
    """Sum of spec section 2 over lanes whose first stands at position ``start``."""
    if lanes.dtype.itemsize == 8:
        lanes, start = _halves(lanes), 2 * start
    total = 0
    for first in range(0, len(lanes), 1 << 16):  # bounded temporaries
        piece = lanes[first : first + (1 << 16)].astype(np.uint64)
        position = np.arange(start + first, start + first + len(piece), dtype=np.uint64)
        total += int((piece * keys(position)).sum(dtype=np.uint64))
    return total & _MASK


def digest_change(places: Places, start: int, old: Lanes, new: Lanes) -> int:
    """What the sum changes by when the lanes at ``start + places`` turn from old into new."""
    position = places.astype(np.uint64) + np.uint64(start)
    if old.dtype.itemsize == 8:
        position = (np.repeat(position * np.uint64(2), 2)) + np.tile(
            np.array([0, 1], np.uint64), len(places)
        )
        old, new = _halves(old), _halves(new)
    change = new.astype(np.uint64) - old.astype(np.uint64)
    return int((change * keys(position)).sum(dtype=np.uint64))


def write(target: Lanes, places: Places, start: int, old: Lanes, new: Lanes) -> int:
    """Write at checked places, read back, and return the change of the sum that was read."""
    target[places] = new
    return digest_change(places, start, old, target[places])


def classes_of(lanes: Lanes, classes: ClassMap) -> npt.NDArray[np.uint8]:
    """The class of every weight (spec section 8)."""
    exponent = (lanes.astype(np.uint64) >> np.uint64(classes.mantissa_bits)) & np.uint64(
        classes.exponent_mask
    )
    above = np.maximum(exponent, np.uint64(classes.lo)) - np.uint64(classes.lo)
    out: npt.NDArray[np.uint8] = np.minimum(above, np.uint64(classes.count - 1)).astype(np.uint8)
    return out


def to_order(lanes: Lanes, is_float: bool) -> Lanes:
    """ULP order: a bijection on bit patterns, monotone in the value of floats (spec section 8)."""
    if not is_float:
        return lanes
    sign = lanes.dtype.type(1 << (8 * lanes.dtype.itemsize - 1))
    return np.where(lanes & sign, ~lanes, lanes ^ sign)


def from_order(order: Lanes, is_float: bool) -> Lanes:
    """The inverse of `to_order`."""
    if not is_float:
        return order
    sign = order.dtype.type(1 << (8 * order.dtype.itemsize - 1))
    return np.where(order & sign, order ^ sign, ~order)


def zigzag(old: Lanes, new: Lanes, is_float: bool) -> U64:
    """The difference in ULP order, numbered +1, −1, +2, −2 … from 0."""
    d = to_order(new, is_float) - to_order(old, is_float)
    one = d.dtype.type(1)
    negative = (d >> d.dtype.type(8 * d.dtype.itemsize - 1)) == one
    magnitude = np.where(negative, ~d + one, d) - one
    out: U64 = magnitude.astype(np.uint64) * np.uint64(2) + negative.astype(np.uint64)
    return out


def unzigzag(old: Lanes, z: U64, is_float: bool) -> Lanes:
    """The lane that lies ``z`` away from the old one."""
    magnitude = (z >> np.uint64(1)).astype(old.dtype) + old.dtype.type(1)
    d = np.where(z & np.uint64(1), ~magnitude + old.dtype.type(1), magnitude)
    return from_order(to_order(old, is_float) + d, is_float)


def _class_order(cls: npt.NDArray[np.uint8]) -> tuple[Places, Places]:
    """All places sorted by (class, place), and where each class starts in that order."""
    order = np.argsort(cls, kind="stable").astype(np.int64)
    starts = np.concatenate([[0], np.cumsum(np.bincount(cls, minlength=CLASSES))])
    return order, starts.astype(np.int64)


@dataclass(frozen=True, slots=True)
class Changes:
    """Places of a block, ascending, and the lanes there before and after."""

    places: Places
    old: Lanes
    new: Lanes


@dataclass(frozen=True, slots=True)
class Tokens:
    """The changes of a block, and class by class their gaps and zig-zag differences."""

    changes: Changes
    gaps: U32
    diffs: U64
    counts: U32


def tokenise(classes: ClassMap, old: Lanes, new: Lanes) -> Tokens:
    """The changes of a block, class by class."""
    places, values = diff(old, new)
    cls = classes_of(old, classes)
    order, starts = _class_order(cls)
    rank = np.empty(len(old), np.int64)
    rank[order] = np.arange(len(old)) - starts[cls[order]]
    by_class = places[np.argsort(cls[places], kind="stable")]
    ranks = rank[by_class]
    first = np.ones(len(ranks), bool)
    first[1:] = cls[by_class][1:] != cls[by_class][:-1]
    before = np.where(first, -1, np.concatenate([[0], ranks[:-1]])[: len(ranks)])
    counts = np.bincount(cls[places], minlength=CLASSES).astype(np.uint32)
    diffs = zigzag(old[by_class], new[by_class], classes.is_float)
    gaps = (ranks - before - 1).astype(np.uint32)
    return Tokens(Changes(places, old[places], values), gaps, diffs, counts)


def locate(classes: ClassMap, base: Lanes, counts: U32, gaps: U32, diffs: U64) -> Changes | None:
    """The changes that gaps and differences stand for; None when a rank is not in its class."""
    order, starts = _class_order(classes_of(base, classes))
    found = []
    ends = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
    for c in range(CLASSES):
        ranks = np.cumsum(gaps[ends[c] : ends[c + 1]].astype(np.int64) + 1) - 1
        if len(ranks) and ranks[-1] >= starts[c + 1] - starts[c]:
            return None
        found.append(order[starts[c] + ranks])
    places = np.concatenate(found)
    values = unzigzag(base[places], diffs, classes.is_float)
    by_place = np.argsort(places)
    return Changes(places[by_place], base[places][by_place], values[by_place])
