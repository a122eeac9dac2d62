"""Part files: header, index and payload in a safetensors file (spec sections 3 and 5)."""

from __future__ import annotations

import base64
import binascii
import mmap
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import zstandard
from blake3 import blake3

from ..dtypes import Lanes
from ..errors import (
    FormatError,
    HashMismatchError,
    HeaderError,
    LayoutMismatchError,
    LimitError,
    TruncatedError,
    UnsupportedError,
)  # fmt: skip
from ..kernels import Changes
from ..kernels.bits import read_varint, write_varint
from . import codecs
from .boxes import MAX_BLOCKS, BoxMap, parse_boxes
from .layout import Layout, layout_hash
from .safefile import SafeHeader, read_header, write_header

FORMAT = "pulsecast-patch-1"
GROUP = 16
UNCHANGED, SPARSE, DENSE = 0, 1, 2
MODES = ("unchanged", "sparse", "dense")
BLOCK_LOG2 = range(12, 25)
_TENSORS = ("index", "tables", "payload")
_MAX_LAYOUT = 64 << 20


@dataclass(frozen=True, slots=True)
class Touched:
    """A box with changes: how many, and its sum in the target state."""

    box: int
    changes: int
    sum: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartHeader:
    """The metadata of a part. Roots and ids are 32 bytes."""

    codec: str
    layout_id: bytes
    base: bytes
    target: bytes
    part: int
    parts: int
    boxes: str
    block_log2: int
    touched: tuple[Touched, ...]
    hashes: tuple[bytes, ...]
    layout: Layout | None = None

    @property
    def changes(self) -> int:
        """Number of changed weights."""
        return sum(t.changes for t in self.touched)

    def to_metadata(self) -> dict[str, str]:
        """The strings of spec section 3."""
        out = {
            "format": FORMAT,
            "codec": self.codec,
            "layout": self.layout_id.hex(),
            "base": self.base.hex(),
            "target": self.target.hex(),
            "part": f"{self.part}/{self.parts}",
            "boxes": self.boxes,
            "block": str(self.block_log2),
            "touched": base64.b64encode(_write_touched(self.touched)).decode(),
            "hashes": b"".join(self.hashes).hex(),
        }
        if self.layout:
            frame = zstandard.ZstdCompressor(level=19).compress(self.layout.to_json())
            out["layout_zstd"] = base64.b64encode(frame).decode()
        return out

    @classmethod
    def from_metadata(cls, metadata: dict[str, str]) -> PartHeader:
        """Read the strings of spec section 3.

        Raises:
            HeaderError: A key is missing or malformed.
            UnsupportedError: The format or codec is not known.
        """
        if metadata.get("format") != FORMAT:
            raise UnsupportedError(
                f"this is no patch of format {FORMAT}: format = {metadata.get('format')!r:.60}"
            )
        codec = _field(metadata, "codec", r"[a-z0-9_-]{1,32}")
        if codec not in codecs.CODECS:
            raise UnsupportedError(
                f"codec {codec!r} is not known; known are {', '.join(codecs.CODECS)}"
            )
        part, parts = map(int, _field(metadata, "part", r"\d{1,7}/\d{1,7}").split("/"))
        block_log2 = int(_field(metadata, "block", r"\d\d"))
        if part >= parts or block_log2 not in BLOCK_LOG2:
            raise HeaderError(f"part {part}/{parts} or block {block_log2} is out of range")
        layout_id = bytes.fromhex(_field(metadata, "layout", "[0-9a-f]{64}"))
        hashes = bytes.fromhex(_field(metadata, "hashes", "([0-9a-f]{64})+"))
        return cls(
            codec=codec,
            layout_id=layout_id,
            base=bytes.fromhex(_field(metadata, "base", "[0-9a-f]{64}")),
            target=bytes.fromhex(_field(metadata, "target", "[0-9a-f]{64}")),
            part=part,
            parts=parts,
            boxes=_field(metadata, "boxes", r"(?s).+"),
            block_log2=block_log2,
            touched=_read_touched(_base64(metadata, "touched")),
            hashes=tuple(hashes[i : i + 32] for i in range(0, len(hashes), 32)),
            layout=_read_layout(metadata, layout_id) if "layout_zstd" in metadata else None,
        )


def _field(metadata: dict[str, str], key: str, pattern: str) -> str:
    value = metadata.get(key)
    if value is None or not re.fullmatch(pattern, value, re.ASCII):
        raise HeaderError(f"the patch's metadata {key!r} is missing or malformed: {value!r:.60}")
    return value


def _base64(metadata: dict[str, str], key: str) -> bytes:
    try:
        return base64.b64decode(metadata[key], validate=True)
    except (KeyError, ValueError, binascii.Error) as error:
        raise HeaderError(f"the patch's metadata {key!r} is missing or no base64") from error


def _read_layout(metadata: dict[str, str], layout_id: bytes) -> Layout:
    frame = _base64(metadata, "layout_zstd")
    try:
        size = zstandard.frame_content_size(frame)
        if not 0 <= size <= _MAX_LAYOUT:
            raise LimitError(f"a layout of {size} bytes, at most {_MAX_LAYOUT} allowed")
        data = zstandard.ZstdDecompressor().decompress(
            frame, max_output_size=size, allow_extra_data=False
        )
    except zstandard.ZstdError as error:
        raise HeaderError(f"the patch's layout is no zstd frame: {error}") from error
    if layout_hash(data) != layout_id:  # before it is parsed: JSON takes many times its size
        raise HashMismatchError("the patch carries a layout with another id than it declares")
    return Layout.from_json(data)


def _write_touched(touched: tuple[Touched, ...]) -> bytes:
    out, previous = bytearray(), -1
    for t in touched:
        out += (
            write_varint(t.box - previous - 1)
            + write_varint(t.changes)
            + t.sum.to_bytes(8, "little")
        )
        previous = t.box
    return bytes(out)


def _read_touched(data: bytes) -> tuple[Touched, ...]:
    out, position, box = [], 0, -1
    while position < len(data):
        distance, position = read_varint(data, position)
        changes, position = read_varint(data, position)
        if position + 8 > len(data):
            raise TruncatedError("the list of touched boxes is cut off")
        box += distance + 1
        out.append(Touched(box, changes, int.from_bytes(data[position : position + 8], "little")))
        position += 8
    return tuple(out)


def write_part(header: PartHeader, index: bytes, tables: bytes, payload_bytes: int) -> bytes:
    """Everything of a part file that comes before its payload."""
    sizes = dict(zip(_TENSORS, (len(index), len(tables), payload_bytes), strict=True))
    return write_header(sizes, header.to_metadata()) + index + tables


class Part:
    """A part file, its header checked. Blocks are checked when they are read.

    Args:
        data: The whole file.
        where: Its name for error messages.

    Raises:
        FormatError: The file breaks its format.
    """

    def __init__(self, data: bytes | memoryview, where: str = "the patch") -> None:
        self._data = memoryview(data)
        self.where = where
        self.file_bytes = len(self._data)
        safe = read_header(self._data)
        self.header_bytes = safe.data_start
        self.header = PartHeader.from_metadata(safe.metadata)
        self._index, self._tables, self._payload = (self._tensor(safe, name) for name in _TENSORS)
        if blake3(self._index).update(self._tables).digest() != self.header.hashes[0]:
            raise HashMismatchError(f"{where}: index or tables are damaged")

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Part:
        """Map a part file."""
        if not Path(path).is_file() and Path(path).exists():
            raise HeaderError(f"{path} is no regular file")
        with Path(path).open("rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                raise TruncatedError(f"{path} is empty")
            return cls(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)), str(path))

    def _tensor(self, safe: SafeHeader, name: str) -> memoryview:
        entry = safe.entries.get(name)
        if entry is None or entry.dtype != "U8" or entry.shape != (entry.stop - entry.start,):
            raise HeaderError(f"{self.where}: tensor {name!r} is missing or not one row of U8")
        return self._data[entry.start : entry.stop]

    def bind(self, layout: Layout) -> BoundPart:
        """Lay the part over its layout: boxes and blocks become known.

        Raises:
            LayoutMismatchError: The layout is another one than the part's.
            FormatError: Boxes, index or list of touched boxes break their format.
        """
        return BoundPart(self, layout, self._index, self._tables, self._payload)


class BoundPart:
    """A part laid over its layout, ready to decode."""

    def __init__(
        self, part: Part, layout: Layout, index: memoryview, tables: memoryview, payload: memoryview
    ) -> None:
        header = part.header
        if layout.id != header.layout_id:
            if header.layout:
                header.layout.require_same(layout, "the state")
            raise LayoutMismatchError(
                f"{part.where} is for layout {header.layout_id.hex()[:16]}…, "
                f"the state has {layout.id.hex()[:16]}…"
            )
        self.header, self.where, self._payload = header, part.where, payload
        self.boxes = BoxMap(
            layout,
            parse_boxes(header.boxes, layout),
            header.block_log2,
            limit=min(len(index), MAX_BLOCKS),  # every block has a byte in the index at least
        )
        self.modes, self._extents = self._read_index(index, len(payload))
        for touched in header.touched:
            if touched.box >= len(self.boxes.boxes):
                raise FormatError(f"{self.where}: a touched box does not exist")
            if not 1 <= touched.changes <= self.boxes.boxes[touched.box].size:
                raise FormatError(f"{self.where}: a touched box has {touched.changes} changes")
        groups = -(-len(self.boxes.blocks) // GROUP)
        if len(header.hashes) != 1 + groups:
            raise FormatError(f"{self.where}: {len(header.hashes) - 1} hashes for {groups} groups")
        self.decoder = codecs.decoder(header.codec, self.boxes, tables)

    def _read_index(
        self, index: memoryview, payload: int
    ) -> tuple[list[int], list[tuple[int, int]]]:
        modes, extents = [], []
        position = start = 0
        for block in self.boxes.blocks:
            number, position = read_varint(index, position)
            mode, size = number % 4, number // 4
            most = 16 * block.size + 4096
            wrong = (
                mode > DENSE
                or (mode == UNCHANGED and size)
                or (mode == SPARSE and not 0 < size <= most)
                or (mode == DENSE and size != block.size * block.dtype.width)
            )
            if wrong:
                raise FormatError(f"{self.where}: a block of mode {mode} has {size} bytes")
            modes.append(mode)
            extents.append((start, start + size))
            start += size
        if position != len(index) or start != payload:
            raise FormatError(f"{self.where}: index and payload do not end together")
        return modes, extents

    def groups(self) -> Iterator[range]:
        """The groups, as ranges of blocks."""
        n = len(self.boxes.blocks)
        for first in range(0, n, GROUP):
            yield range(first, min(first + GROUP, n))

    def check_group(self, group: range) -> None:
        """Raise HashMismatchError unless the group's payload has its hash."""
        start, stop = self._extents[group[0]][0], self._extents[group[-1]][1]
        if blake3(self._payload[start:stop]).digest() != self.header.hashes[1 + group[0] // GROUP]:
            raise HashMismatchError(f"{self.where}: blocks {group[0]} to {group[-1]} are damaged")

    def payload(self, i: int) -> memoryview:
        """The bytes of a block."""
        return self._payload[slice(*self._extents[i])]

    def read(self, i: int, base: Lanes) -> Changes | Lanes:
        """The changes of a block that has any, or all its new lanes if it is dense.

        Raises:
            FormatError: The block breaks its format.
        """
        block, data = self.boxes.blocks[i], self.payload(i)
        if self.modes[i] == DENSE:
            return np.frombuffer(data, block.dtype.lane)
        return self.decoder.read(block, data, base)
