"""Diff, apply, digest and the block kernels, on the fastest backend that is there.

Two backends give the same results for every input: ``reference`` (numpy, the oracle) and
``native`` (C++). Without the native core everything works on the reference; `status` says which is
in use and why.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from ..dtypes import Lanes
from ..errors import ArrayError, BackendUnavailableError, FormatError
from . import rans, reference
from .classes import CLASSES, ClassMap
from .lanes import lanes
from .native import LIBRARY, Native
from .rans import U32, U64, Decoding, Frequencies
from .reference import Changes, Places, Tokens

__all__ = [
    "CLASSES", "Changes", "ClassMap", "Kernels", "Places", "Status", "Tokens", "apply", "backend",
    "diff", "digest", "digest_change", "gather", "lanes", "status", "use", "write",
]  # fmt: skip


class Kernels(Protocol):
    """What a backend gives. Arrays are flat lanes; places are checked by the callers below."""

    def diff(self, old: Lanes, new: Lanes) -> tuple[Places, Lanes]: ...
    def check_places(self, places: Places, size: int) -> int: ...
    def apply(self, target: Lanes, places: Places, values: Lanes) -> Lanes: ...
    def gather(self, source: Lanes, places: Places) -> Lanes: ...
    def digest(self, lanes: Lanes, start: int) -> int: ...
    def digest_change(self, places: Places, start: int, old: Lanes, new: Lanes) -> int: ...
    def write(self, target: Lanes, places: Places, start: int, old: Lanes, new: Lanes) -> int: ...
    def tokenise(self, classes: ClassMap, old: Lanes, new: Lanes) -> Tokens: ...
    def histogram(self, gaps: U32, diffs: U64, counts: U32) -> tuple[U32, U32]: ...
    def encode(
        self, gaps: U32, diffs: U64, counts: U32, classes: int, frequencies: Frequencies
    ) -> bytes: ...
    def decode(
        self, data: bytes, classes: int, width: int, size: int, tables: Decoding
    ) -> tuple[U32, U32, U64]: ...
    def locate(
        self, classes: ClassMap, base: Lanes, counts: U32, gaps: U32, diffs: U64
    ) -> Changes | None: ...
    def read(
        self, classes: ClassMap, data: bytes, base: Lanes, tables: Decoding
    ) -> Changes | None: ...


class _Reference:
    diff = staticmethod(reference.diff)
    check_places = staticmethod(reference.check_places)
    apply = staticmethod(reference.apply)
    gather = staticmethod(reference.gather)
    digest = staticmethod(reference.digest)
    digest_change = staticmethod(reference.digest_change)
    write = staticmethod(reference.write)
    tokenise = staticmethod(reference.tokenise)
    histogram = staticmethod(rans.histogram)
    encode = staticmethod(rans.encode)
    decode = staticmethod(rans.decode)
    locate = staticmethod(reference.locate)

    def read(self, classes: ClassMap, data: bytes, base: Lanes, tables: Decoding) -> Changes | None:
        decoded = rans.decode(data, classes.count, base.dtype.itemsize, len(base), tables)
        return reference.locate(classes, base, *decoded)


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """Which backend runs, with which instruction set, and why."""

    backend: str
    simd: str | None
    reason: str
    library: str | None


def _start() -> tuple[Kernels, Status]:
    if os.environ.get("PULSECAST_DISABLE_NATIVE") == "1":
        reason = "PULSECAST_DISABLE_NATIVE=1 is set"
    else:
        try:
            native = Native()
        except BackendUnavailableError as error:
            if os.environ.get("PULSECAST_SIMD"):
                raise  # who names an instruction set does not want the reference instead
            reason = str(error)
        else:
            return native, Status(
                backend="native", simd=native.simd, reason="built and loaded", library=str(LIBRARY)
            )
    return _Reference(), Status(backend="reference", simd=None, reason=reason, library=None)


_current, _status = _start()


def status() -> Status:
    """The backend in use."""
    return _status


def backend() -> Kernels:
    """The backend's own kernels, for code that works on the lanes of a block."""
    return _current


@contextmanager
def use(backend: str) -> Iterator[None]:
    """Run the whole process on ``"reference"`` or ``"native"``, for tests and benchmarks.

    Raises:
        BackendUnavailableError: No such backend here.
    """
    global _current, _status
    before = _current, _status
    if backend == "reference":
        _current = _Reference()
        _status = Status(backend=backend, simd=None, reason="chosen by use()", library=None)
    elif backend == "native":
        native = Native()
        _current = native
        _status = Status(
            backend=backend, simd=native.simd, reason="chosen by use()", library=str(LIBRARY)
        )
    else:
        raise BackendUnavailableError(f"no backend {backend!r}: 'reference' or 'native'")
    try:
        yield
    finally:
        _current, _status = before


def diff(old: Any, new: Any) -> tuple[Places, Lanes]:
    """Find every element whose bits differ.

    Args:
        old: Contiguous numpy array, memory map or torch CPU tensor.
        new: The same number of elements of the same width.

    Returns:
        Flat places, ascending, and the new bits there.

    Raises:
        ArrayError: The arrays have no lanes or do not fit together.
    """
    before, after = lanes(old), lanes(new)
    if before.dtype != after.dtype or len(before) != len(after):
        raise ArrayError(
            f"{len(before)} lanes of {before.dtype} are no match for {len(after)} of {after.dtype}"
        )
    return _current.diff(before, after)


def _checked(places: Any, size: int) -> Places:
    bad = _current.check_places(places, size)
    if bad < len(places):
        raise FormatError(
            f"place {int(places[bad])} (number {bad}) does not ascend or lies outside [0, {size})"
        )
    return places  # type: ignore[no-any-return]


def apply(target: Any, places: Places, values: Lanes) -> Lanes:
    """Write new bits at places, all or none, and return the old bits there: the undo log.

    Raises:
        FormatError: A place is out of range or does not ascend; nothing was written.
        ArrayError: The target cannot be written, or the values do not fit to it.
    """
    flat = lanes(target, writable=True)
    if values.dtype != flat.dtype or len(values) != len(places):
        raise ArrayError(
            f"{len(values)} lanes of {values.dtype} do not fit to {len(places)} places "
            f"in {flat.dtype}"
        )
    return _current.apply(flat, _checked(places, len(flat)), values)


def gather(source: Any, places: Places) -> Lanes:
    """The bits at places.

    Raises:
        FormatError: A place is out of range or does not ascend.
    """
    flat = lanes(source)
    return _current.gather(flat, _checked(places, len(flat)))


def digest(array: Any, start: int = 0) -> int:
    """Sum (spec section 2) of a run of a tensor whose first element has flat position ``start``."""
    return _current.digest(lanes(array), start)


def digest_change(places: Places, old: Lanes, new: Lanes, start: int = 0) -> int:
    """What a tensor's sum changes by, mod 2^64, when bits at ``start + places`` become new."""
    return _current.digest_change(places, start % (1 << 64), lanes(old), lanes(new))


def write(target: Any, places: Places, old: Lanes, new: Lanes, start: int = 0) -> int:
    """Write new bits at places, read them back, and say what a tensor's sum changes by.

    Args:
        target: The run of a tensor that begins at flat position ``start``.
        places: Places in the target.
        old: The bits there before.
        new: The bits to write.
        start: Where the target begins in its tensor.

    Returns:
        The change, mod 2^64, from ``old`` to what was *read*.

    Raises:
        FormatError: A place is out of range or does not ascend; nothing was written.
        ArrayError: The target cannot be written, or the lanes do not fit to it.
    """
    flat = lanes(target, writable=True)
    return _current.write(flat, _checked(places, len(flat)), start, lanes(old), lanes(new))
