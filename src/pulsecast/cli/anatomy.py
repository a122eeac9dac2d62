"""What a patch is made of, counted without applying it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from pulsecast.errors import WrongBaseError
from pulsecast.kernels.reference import zigzag
from pulsecast.patch.codecs.weightwise import WeightwiseDecoder
from pulsecast.patch.decode import Patch
from pulsecast.patch.digest import state_root
from pulsecast.patch.layout import Layout
from pulsecast.patch.part import MODES, SPARSE, BoundPart
from pulsecast.patch.state import State

Zigzag = npt.NDArray[np.uint64]
"""ULP differences numbered +1, −1, +2, −2 … from 0 (spec section 8)."""

# Differences of one, two and three ULPs are nearly all; beyond, powers of two are fine enough.
_LOWS = np.array([1, 2, 3, 4, 8, 16, 32, 64, 128, 256, 1024, 4096, 1 << 16, 1 << 32], np.uint64)


@dataclass(frozen=True, slots=True)
class TensorChanges:
    """How much of a tensor changes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    changes: int
    density: float


@dataclass(frozen=True, slots=True)
class UlpCount:
    """The number of changes whose ULP difference has an absolute value from low to high."""

    low: int
    high: int
    changes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Anatomy:
    """What a patch is made of.

    Without the layout, which a patch need not carry, tensors and blocks are not known.

    Attributes:
        weights: Number of all weights.
        full_bytes: Bytes of all weights.
        blocks: Number of blocks by mode.
        tensors: Those that change, in layout order.
        unchanged_tensors: Number of the others.
        ulp: Histogram of the differences that are known.
        without_ulp: Number of changes whose differences are not known without the base.
    """

    codecs: list[str]
    layout: str
    base: str
    target: str
    parts: int
    file_bytes: int
    header_bytes: int
    changes: int
    weights: int | None
    full_bytes: int | None
    blocks: dict[str, int]
    tensors: list[TensorChanges]
    unchanged_tensors: int
    ulp: list[UlpCount]
    without_ulp: int

    @property
    def density(self) -> float | None:
        """Changed / all."""
        return None if self.weights is None else self.changes / max(1, self.weights)

    @property
    def bits_per_change(self) -> float:
        """Bits of the files per change, without the JSON headers; 0 if nothing changed."""
        return 8 * (self.file_bytes - self.header_bytes) / self.changes if self.changes else 0.0

    def to_json(self) -> dict[str, object]:
        """All of it, for JSON."""
        derived = {"density": self.density, "bits_per_change": self.bits_per_change}
        return asdict(self) | derived


def dissect(patch: Patch, *, base: State | None = None, threads: int | None = None) -> Anatomy:
    """Count what a patch changes; every block's hash is checked.

    Args:
        patch: The patch.
        base: Its base, if the ULP differences of every change are wanted.
        threads: By default all cores this process may use.

    Raises:
        FormatError: The patch is damaged.
        LayoutMismatchError: The base has other tensors than the patch.
        WrongBaseError: The base is another state than the patch's base.
    """
    layout = base.layout if base else patch.layout
    bound = patch.bind(layout) if layout else ()
    if base:
        found = state_root(base, threads=threads)
        if found != patch.base:
            raise WrongBaseError(found.hex(), patch.base.hex())
    histogram = _Histogram()
    differences = _with_base(patch, base, threads) if base else _without_base(bound)
    for some in differences:
        histogram.add(some)
    tensors = _tensors(bound, layout) if layout else []
    modes = [mode for part in bound for mode in part.modes]
    return Anatomy(
        codecs=patch.codecs,
        layout=patch.layout_id.hex(),
        base=patch.base.hex(),
        target=patch.target.hex(),
        parts=len(patch.parts),
        file_bytes=patch.file_bytes,
        header_bytes=sum(part.header_bytes for part in patch.parts),
        changes=patch.changes,
        weights=layout.weights if layout else None,
        full_bytes=layout.nbytes if layout else None,
        blocks={name: modes.count(mode) for mode, name in enumerate(MODES)},
        tensors=tensors,
        unchanged_tensors=len(layout.tensors) - len(tensors) if layout else 0,
        ulp=histogram.entries(),
        without_ulp=patch.changes - histogram.total,
    )


def _tensors(bound: tuple[BoundPart, ...], layout: Layout) -> list[TensorChanges]:
    counts: dict[int, int] = {}
    for part in bound:
        for touched in part.header.touched:
            tensor = part.boxes.boxes[touched.box].tensor
            counts[tensor] = counts.get(tensor, 0) + touched.changes
    found = []
    for tensor, count in sorted(counts.items()):
        spec = layout.tensors[tensor]
        density = count / spec.size
        found.append(TensorChanges(spec.name, spec.dtype.name, spec.shape, count, density))
    return found


def _without_base(bound: tuple[BoundPart, ...]) -> Iterator[Zigzag]:
    """Differences from the patch alone: `weightwise` decodes them without a look at a weight."""
    for part in bound:
        for group in part.groups():
            part.check_group(group)
            if isinstance(part.decoder, WeightwiseDecoder):
                for i in group:
                    if part.modes[i] == SPARSE:
                        yield part.decoder.split(part.boxes.blocks[i], part.payload(i))[2]


def _with_base(patch: Patch, base: State, threads: int | None) -> Iterator[Zigzag]:
    for block in patch.decode(base, threads=threads):
        for change in block:
            differs = change.old != change.new
            is_float = base.layout.tensors[change.tensor].dtype.is_float
            yield zigzag(change.old[differs], change.new[differs], is_float)


class _Histogram:
    def __init__(self) -> None:
        self._counts = np.zeros(len(_LOWS), np.int64)
        self._largest = 0

    @property
    def total(self) -> int:
        return int(self._counts.sum())

    def add(self, differences: Zigzag) -> None:
        if len(differences):
            size = (differences >> np.uint64(1)) + np.uint64(1)
            bins = np.searchsorted(_LOWS, size, side="right") - 1
            self._counts += np.bincount(bins, minlength=len(_LOWS))
            self._largest = max(self._largest, int(size.max()))

    def entries(self) -> list[UlpCount]:
        highs = [*(int(low) - 1 for low in _LOWS[1:]), self._largest]
        return [
            UlpCount(int(low), min(high, self._largest), int(count))
            for low, high, count in zip(_LOWS, highs, self._counts, strict=True)
            if count
        ]
