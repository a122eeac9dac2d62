"""The bytes of a journal: what an apply in place is about to change, old bits and new bits.

    magic       8 bytes
    identity    u32 length, JSON: layout id, base and target root, name and size of every file
    records     tensor u32, kind u32, start u64, count u64, then
                kind 1: count × u32 places above start, old lanes, new lanes
                kind 2: old lanes, new lanes of the run of weights from start
    trailer     magic, number of records u64, BLAKE3 of all that came before

All integers are little-endian; every field and array is padded with zeros to 8 bytes. A journal
gets its name only when it is complete and on disk, so one that `JournalReader` refuses was
damaged or forged afterwards.
"""

from __future__ import annotations

import json
import mmap
import os
import stat
import struct
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from pulsecast.dtypes import Lanes
from pulsecast.errors import JournalError
from pulsecast.patch.decode import Change
from pulsecast.patch.layout import Layout

MAGIC = b"pcjrnl\x00\x01"
END_MAGIC = b"pcjend\x00\x01"
IDENTITY_MAX_BYTES = 64 << 20
RECORD_MAX = 1 << 20
"""Weights in a record at most: what a reader or writer of a journal holds in memory."""

_PLACES, _RUN = 1, 2
_RECORD = struct.Struct("<IIQQ")
_TRAILER = struct.Struct("<8sQ32s")


@dataclass(frozen=True, slots=True)
class Identity:
    """Which files a journal belongs to, and between which states of them it leads.

    Attributes:
        layout: Layout id, hex.
        base: State root before, hex.
        target: State root after, hex.
        files: Size of every file by its name.
    """

    layout: str
    base: str
    target: str
    files: dict[str, int]


def _padding(size: int) -> bytes:
    return bytes(-size % 8)


class JournalWriter:
    """Writes a journal piece by piece, with memory for one record."""

    def __init__(self, file: BinaryIO, identity: Identity) -> None:
        self._file = file
        self._hash = blake3()
        self._records = 0
        text = json.dumps(asdict(identity), sort_keys=True).encode()
        self._write(MAGIC + struct.pack("<I", len(text)) + text + _padding(4 + len(text)))

    def write(self, change: Change) -> None:
        """Write a change and the bits it will replace, in as many records as it needs."""
        begin, size = 0, len(change.old)
        while begin < size:
            end = min(size, begin + RECORD_MAX)
            if change.places is None:
                self._header(change.tensor, _RUN, change.start + begin, end - begin)
            else:
                first = int(change.places[begin])
                # Offsets in a record have 32 bits.
                end = min(end, int(np.searchsorted(change.places, first + (1 << 32))))
                self._header(change.tensor, _PLACES, change.start + first, end - begin)
                self._array((change.places[begin:end] - first).astype("<u4"))
            self._array(change.old[begin:end])
            self._array(change.new[begin:end])
            begin = end

    def finish(self) -> None:
        """Write the trailer and flush the file to disk."""
        self._file.write(_TRAILER.pack(END_MAGIC, self._records, self._hash.digest()))
        self._file.flush()
        os.fsync(self._file.fileno())

    def _header(self, tensor: int, kind: int, start: int, count: int) -> None:
        self._records += 1
        self._write(_RECORD.pack(tensor, kind, start, count))

    def _array(self, array: npt.NDArray[np.unsignedinteger]) -> None:
        data = np.ascontiguousarray(array).view(np.uint8).data
        self._write(data)
        self._write(_padding(len(data)))

    def _write(self, data: bytes | memoryview) -> None:
        self._hash.update(data)
        self._file.write(data)


class JournalReader:
    """Reads a journal over a memory map: the identity at once, the records one at a time."""

    def __init__(self, path: Path) -> None:
        """Open a complete journal and check its hash.

        Raises:
            FileNotFoundError: There is none.
            JournalError: It is damaged.
        """
        self.path = path
        self._map = _map(path)
        self._end = len(self._map) - _TRAILER.size
        if self._end < len(MAGIC) + 4 or self._map[: len(MAGIC)] != MAGIC:
            raise self._damaged("is not a journal")
        magic, self._records, digest = _TRAILER.unpack_from(self._map, self._end)
        if magic != END_MAGIC or digest != blake3(memoryview(self._map)[: self._end]).digest():
            raise self._damaged("does not have its hash")
        self.identity, self._begin = self._identity()

    def records(self, layout: Layout) -> Iterator[Change]:
        """All changes and old bits as they were written, each checked against the layout.

        Raises:
            JournalError: A record does not fit the layout.
        """
        at = self._begin
        for _ in range(self._records):
            self._require(at + _RECORD.size)
            tensor, kind, start, count = _RECORD.unpack_from(self._map, at)
            at += _RECORD.size
            if tensor >= len(layout.tensors) or not 0 < count <= RECORD_MAX:
                raise self._damaged("has a record out of range")
            spec = layout.tensors[tensor]
            if start >= spec.size:
                raise self._damaged(f"has places outside tensor {spec.name!r}")
            places: npt.NDArray[np.int64] | None = None
            if kind == _PLACES:
                offsets, at = self._array(np.dtype("<u4"), count, at)
                places = offsets.astype(np.int64)
                last = start + int(places[-1])
                if offsets[0] or np.any(places[1:] <= places[:-1]):
                    raise self._damaged("has places out of order")
            elif kind == _RUN:
                last = start + count - 1
            else:
                raise self._damaged("has a record of no known kind")
            if last >= spec.size:
                raise self._damaged(f"has places outside tensor {spec.name!r}")
            old, at = self._array(spec.dtype.lane, count, at)
            new, at = self._array(spec.dtype.lane, count, at)
            yield Change(tensor, start, places, old, new)
        if at != self._end:
            raise self._damaged("has bytes that belong to no record")

    def _identity(self) -> tuple[Identity, int]:
        at = len(MAGIC) + 4
        (size,) = struct.unpack_from("<I", self._map, len(MAGIC))
        if size > IDENTITY_MAX_BYTES:
            raise self._damaged("has an identity above the limit")
        self._require(at + size)
        try:
            found = Identity(**json.loads(self._map[at : at + size]))
        except (ValueError, TypeError, RecursionError) as error:
            raise self._damaged("has no identity") from error
        return found, at + size + len(_padding(4 + size))

    def _array(self, dtype: np.dtype[np.unsignedinteger], count: int, at: int) -> tuple[Lanes, int]:
        size = count * dtype.itemsize
        self._require(at + size)
        array = np.frombuffer(self._map, dtype=dtype, count=count, offset=at)
        return array, at + size + len(_padding(size))

    def _require(self, stop: int) -> None:
        if stop > self._end:
            raise self._damaged("ends inside a record")

    def _damaged(self, what: str) -> JournalError:
        return JournalError(
            f"the journal {what}, in {self.path}: an apply in place was cut short and cannot be "
            "undone; restore the checkpoint from a copy, then remove the journal"
        )


def _map(path: Path) -> mmap.mmap:
    # A link or a pipe of that name was not put there by an apply; a pipe would even block.
    if not stat.S_ISREG(path.lstat().st_mode):
        raise JournalError(f"this is not a journal: {path}")
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size < _TRAILER.size:
            raise JournalError(f"this is not a journal: {path}")
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
