"""The C++ core through ctypes: lengths, dtypes and addresses are checked, then the GIL is released.

The arrays come from the package itself: flat, contiguous lanes (`lanes.lanes`), so this module
checks what a wrong caller could get wrong and turns the core's error codes into typed errors.
"""

from __future__ import annotations

import ctypes
import os
import threading
from ctypes import POINTER, byref, c_char_p, c_int, c_int32, c_int64, c_uint64, c_void_p
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..dtypes import Lanes
from ..errors import ArrayError, BackendUnavailableError, FormatError, TruncatedError
from .classes import CLASSES, ClassMap
from .rans import SYMBOLS, U32, U64, Decoding, Frequencies
from .reference import Changes, Places, Tokens

ABI = 1
LIBRARY = Path(__file__).parent.parent / "_core" / "libpulsecast_core.so"
_SLICE = 1 << 20  # weights diffed at once: what the outputs must have room for
_RANGE = -2
_ROOM_KEPT = 1 << 22  # weights; rooms for more are not kept


class _ClassMap(ctypes.Structure):
    _fields_ = [
        (name, c_int32) for name in ("width", "mantissa_bits", "exponent_mask", "lo", "classes")
    ]


_ERRORS: dict[int, tuple[type[Exception], str]] = {
    -1: (TruncatedError, "a block ends before what it declares"),
    _RANGE: (FormatError, "a block holds a count, gap or difference out of range"),
    -3: (FormatError, "a block does not end where its streams end"),
    -4: (MemoryError, "no memory for a block"),
    -5: (MemoryError, "the room for a block's bytes was too small"),
    -6: (
        ArrayError,
        "a block was given to the core with a width, size or class map it does not know",
    ),
}


def load() -> ctypes.CDLL:
    """Load the core and take the instruction set of ``PULSECAST_SIMD`` if given.

    Raises:
        BackendUnavailableError: The library is not there, does not load or is of another release.
    """
    if not LIBRARY.exists():
        raise BackendUnavailableError(
            "the native core was not built: reinstall where a C++17 compiler is "
            "(PULSECAST_REQUIRE_NATIVE=1 shows the compiler's errors)"
        )
    try:
        core = ctypes.CDLL(str(LIBRARY))
    except OSError as error:
        raise BackendUnavailableError(f"{LIBRARY} does not load: {error}") from error
    _declare(core)
    if core.pc_abi() != ABI:
        raise BackendUnavailableError(f"{LIBRARY} is of another release: reinstall pulsecast")
    simd = os.environ.get("PULSECAST_SIMD")
    if simd and core.pc_use(simd.encode()) != 0:
        raise BackendUnavailableError(
            f"PULSECAST_SIMD={simd}: this machine or build does not have it"
        )
    return core


def _declare(core: ctypes.CDLL) -> None:
    p, i64 = c_void_p, c_int64
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "pc_abi": (c_int, []),
        "pc_simd": (c_char_p, []),
        "pc_use": (c_int, [c_char_p]),
        "pc_diff": (i64, [c_int, p, p, i64, i64, p, p]),
        "pc_check_places": (i64, [p, i64, i64]),
        "pc_apply": (c_int, [c_int, p, p, p, i64, p]),
        "pc_gather": (c_int, [c_int, p, p, i64, p]),
        "pc_digest": (c_uint64, [c_int, p, i64, c_uint64]),
        "pc_digest_change": (c_uint64, [c_int, p, i64, c_uint64, p, p]),
        "pc_write": (c_uint64, [c_int, p, p, i64, c_uint64, p, p]),
        "pc_tokenise": (i64, [POINTER(_ClassMap), p, p, i64, p, p, p, p, p, p]),
        "pc_histogram": (None, [p, p, p, p, p]),
        "pc_encode": (i64, [p, p, p, c_int, p, p, i64]),
        "pc_decode_counts": (i64, [p, i64, c_int, i64, p]),
        "pc_decode": (c_int, [p, i64, c_int, c_int, i64, p, p, p, p]),
        "pc_locate": (c_int, [POINTER(_ClassMap), p, i64, p, p, p, p, p, p]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(core, name)
        function.restype, function.argtypes = result, arguments


def _raise(code: int) -> None:
    error, text = _ERRORS[code]
    raise error(text)


def _same(*arrays: Lanes) -> int:
    """The common lane width of arrays of one length."""
    first = arrays[0]
    for array in arrays:
        if array.dtype != first.dtype or len(array) != len(first):
            raise ArrayError(
                f"lanes differ: {len(first)} of {first.dtype}, {len(array)} of {array.dtype}"
            )
        if not array.flags.c_contiguous:
            raise ArrayError("lanes are not contiguous")
    return first.dtype.itemsize


def _int64(places: Places) -> Places:
    if places.dtype != np.int64 or not places.flags.c_contiguous:
        raise ArrayError(f"places must be contiguous int64, not {places.dtype}")
    return places


class _Room:
    """Outputs of `pc_tokenise` for blocks of up to n weights."""

    def __init__(self, n: int) -> None:
        self.places = np.empty(n, np.int64)
        self.gaps = np.empty(n, np.uint32)
        self.diffs, self.old, self.new = (np.empty(n, np.uint64) for _ in range(3))


def _grown(array: npt.NDArray[Any], used: int, size: int) -> npt.NDArray[Any]:
    out = np.empty(size, array.dtype)
    out[:used] = array[:used]
    return out


class Native:
    """The kernels of `reference` and `rans` on the C++ core; the same names, the same results."""

    def __init__(self) -> None:
        self._core = load()
        self._rooms = threading.local()

    @property
    def simd(self) -> str:
        """The instruction set in use."""
        name: bytes = self._core.pc_simd()
        return name.decode()

    def diff(self, old: Lanes, new: Lanes) -> tuple[Places, Lanes]:
        """Places where the lanes differ, ascending, and the new lanes there."""
        width, k = _same(old, new), 0
        places, values = np.empty(0, np.int64), np.empty(0, new.dtype)
        for start in range(0, len(old), _SLICE):
            n = min(_SLICE, len(old) - start)
            if len(places) < k + n:
                # Enough if it goes on like this. Pages that are never written cost nothing.
                room = k + n + (k * (len(old) - start) // start * 5 // 4 if start else 0)
                places, values = _grown(places, k, room), _grown(values, k, room)
            k += self._core.pc_diff(
                width, old.ctypes.data + start * width, new.ctypes.data + start * width, n, start,
                places.ctypes.data + 8 * k, values.ctypes.data + k * width,
            )  # fmt: skip
        return places[:k], values[:k]

    def check_places(self, places: Places, size: int) -> int:
        """Index of the first place that is out of order or range; their number if all are good."""
        k: int = self._core.pc_check_places(_int64(places).ctypes.data, len(places), size)
        return k

    def apply(self, target: Lanes, places: Places, values: Lanes) -> Lanes:
        """Write the values at checked places; return what stood there."""
        if not target.flags.writeable or values.dtype != target.dtype or len(values) != len(places):
            raise ArrayError("target is read-only, or values do not fit to target and places")
        _same(target)
        old = np.empty_like(values)
        width = _same(values, old)
        self._core.pc_apply(
            width, target.ctypes.data, _int64(places).ctypes.data, values.ctypes.data, len(places),
            old.ctypes.data,
        )  # fmt: skip
        return old

    def gather(self, source: Lanes, places: Places) -> Lanes:
        """The lanes at checked places."""
        out = np.empty(len(places), source.dtype)
        self._core.pc_gather(
            _same(source), source.ctypes.data, _int64(places).ctypes.data, len(places),
            out.ctypes.data,
        )  # fmt: skip
        return out

    def digest(self, lanes: Lanes, start: int) -> int:
        """Sum of spec section 2 over lanes whose first stands at position ``start``."""
        total: int = self._core.pc_digest(_same(lanes), lanes.ctypes.data, len(lanes), start)
        return total

    def digest_change(self, places: Places, start: int, old: Lanes, new: Lanes) -> int:
        """What the sum changes by when the lanes at ``start + places`` turn from old into new."""
        if len(old) != len(places):
            raise ArrayError(f"{len(places)} places, {len(old)} lanes")
        total: int = self._core.pc_digest_change(
            _same(old, new), _int64(places).ctypes.data, len(places), start, old.ctypes.data,
            new.ctypes.data,
        )  # fmt: skip
        return total

    def write(self, target: Lanes, places: Places, start: int, old: Lanes, new: Lanes) -> int:
        """Write at checked places, read back, and return the change of the sum that was read."""
        if not target.flags.writeable or new.dtype != target.dtype or len(new) != len(places):
            raise ArrayError("target is read-only, or lanes do not fit to target and places")
        _same(target)
        total: int = self._core.pc_write(
            _same(old, new), target.ctypes.data, _int64(places).ctypes.data, len(places), start,
            old.ctypes.data, new.ctypes.data,
        )  # fmt: skip
        return total

    def tokenise(self, classes: ClassMap, old: Lanes, new: Lanes) -> Tokens:
        """The changes of a block, class by class."""
        n = len(old)
        _same(old, new)
        room = self._room(n)
        before, after = room.old.view(old.dtype), room.new.view(old.dtype)
        counts = np.empty(CLASSES, np.uint32)
        k = self._core.pc_tokenise(
            byref(_native_map(classes)), old.ctypes.data, new.ctypes.data, n,
            room.places.ctypes.data, before.ctypes.data, after.ctypes.data,
            room.gaps.ctypes.data, room.diffs.ctypes.data,
            counts.ctypes.data,
        )  # fmt: skip
        if k < 0:
            _raise(k)
        changes = Changes(room.places[:k].copy(), before[:k].copy(), after[:k].copy())
        return Tokens(changes, room.gaps[:k].copy(), room.diffs[:k].copy(), counts)

    def _room(self, n: int) -> _Room:
        """This thread's outputs for n weights; kept: fresh pages cost more than the work."""
        if n > _ROOM_KEPT:
            return _Room(n)
        room: _Room | None = getattr(self._rooms, "room", None)
        if room is None or len(room.places) < n:
            room = self._rooms.room = _Room(n)
        return room

    def histogram(self, gaps: U32, diffs: U64, counts: U32) -> tuple[U32, U32]:
        """How often each class has each gap token and each value token."""
        tables = np.zeros((2, CLASSES, SYMBOLS), np.uint32)
        self._core.pc_histogram(
            gaps.ctypes.data, diffs.ctypes.data, counts.ctypes.data, tables[0].ctypes.data,
            tables[1].ctypes.data,
        )  # fmt: skip
        return tables[0], tables[1]

    def encode(
        self, gaps: U32, diffs: U64, counts: U32, classes: int, frequencies: Frequencies
    ) -> bytes:
        """A sparse block (spec section 8.2)."""
        # A word each, escapes with their tokens, extra bits: a change takes at most 22 bytes.
        room = np.empty(22 * len(gaps) + 10 * CLASSES + 32, np.uint8)
        size = self._core.pc_encode(
            gaps.ctypes.data, diffs.ctypes.data, counts.ctypes.data, classes,
            frequencies.ctypes.data, room.ctypes.data, len(room),
        )  # fmt: skip
        if size < 0:
            _raise(size)
        return room[:size].tobytes()

    def decode(
        self, data: bytes, classes: int, width: int, size: int, tables: Decoding
    ) -> tuple[U32, U32, U64]:
        """Counts per class, gaps and differences of a sparse block, without a look at a weight."""
        counts, gaps, diffs = self._decode(data, classes, width, size, tables)
        return counts, gaps.copy(), diffs.copy()

    def _decode(
        self, data: bytes, classes: int, width: int, size: int, tables: Decoding
    ) -> tuple[U32, U32, U64]:
        """`decode` into this thread's room."""
        block = np.frombuffer(data, np.uint8)
        counts = np.empty(CLASSES, np.uint32)
        k = self._core.pc_decode_counts(
            block.ctypes.data, len(block), classes, size, counts.ctypes.data
        )
        if k < 0:
            _raise(k)
        room = self._room(k)
        gaps, diffs = room.gaps[:k], room.diffs[:k]
        code = self._core.pc_decode(
            block.ctypes.data, len(block), classes, width, size,
            tables.frequencies.ctypes.data, tables.slots.ctypes.data, gaps.ctypes.data,
            diffs.ctypes.data,
        )  # fmt: skip
        if code < 0:
            _raise(code)
        return counts, gaps, diffs

    def locate(
        self, classes: ClassMap, base: Lanes, counts: U32, gaps: U32, diffs: U64
    ) -> Changes | None:
        """The changes that gaps and differences stand for; None when a rank is not in its class."""
        k = len(gaps)
        if int(counts.sum()) != k or k != len(diffs) or k > len(base):
            raise ArrayError("counts, gaps and differences do not fit together")
        _same(base)
        places, old, new = np.empty(k, np.int64), np.empty(k, base.dtype), np.empty(k, base.dtype)
        code = self._core.pc_locate(
            byref(_native_map(classes)), base.ctypes.data, len(base), counts.ctypes.data,
            gaps.ctypes.data, diffs.ctypes.data, places.ctypes.data, old.ctypes.data,
            new.ctypes.data,
        )  # fmt: skip
        if code == _RANGE:
            return None
        if code < 0:
            _raise(code)
        return Changes(places, old, new)

    def read(self, classes: ClassMap, data: bytes, base: Lanes, tables: Decoding) -> Changes | None:
        """`decode` and `locate` in one, without fresh memory for what lies between."""
        width = base.dtype.itemsize
        return self.locate(
            classes, base, *self._decode(data, classes.count, width, len(base), tables)
        )


def _native_map(classes: ClassMap) -> _ClassMap:
    return _ClassMap(
        classes.dtype.width, classes.mantissa_bits, classes.exponent_mask, classes.lo, classes.count
    )
