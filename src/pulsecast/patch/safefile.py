"""Headers of safetensors files, read strictly and written for streaming.

Read by hand and not with the safetensors package because checkpoints are mapped without a copy
(numpy has no bf16), parts are written as a stream, and every fault must be a typed error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import HeaderError, LimitError, TruncatedError

MAX_HEADER = 64 << 20
ALIGNMENT = 8


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of a file: dtype name, shape, and where its bytes lie in the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class SafeHeader:
    """What the header of a safetensors file says."""

    entries: dict[str, Entry]
    metadata: dict[str, str]
    data_start: int
    """Bytes of the length and the JSON; the tensors begin here."""


def no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """For `json.loads`: refuse an object that names a key twice, which readers would read apart."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise HeaderError("a JSON object names a key twice")
    return found


def read_header(data: memoryview | bytes, file_size: int | None = None) -> SafeHeader:
    """Read and check the header of a safetensors file.

    Args:
        data: The file, or a prefix that holds the whole header.
        file_size: Size of the file when ``data`` is a prefix.

    Raises:
        TruncatedError: The header or a tensor ends beyond the file.
        LimitError: The header declares more than 64 MiB.
        HeaderError: It is no JSON of tensors that fill the file without holes or overlaps.
    """
    size = len(data) if file_size is None else file_size
    if len(data) < 8:
        raise TruncatedError("a safetensors file has at least 8 bytes")
    length = int.from_bytes(data[:8], "little")
    if length > MAX_HEADER:
        raise LimitError(
            f"a safetensors header declares {length} bytes, at most {MAX_HEADER} allowed"
        )
    if 8 + length > len(data):
        raise TruncatedError("a safetensors header ends beyond the file")
    try:
        text = bytes(data[8 : 8 + length]).decode()
        header = json.loads(text, object_pairs_hook=no_duplicates)
    except (ValueError, RecursionError) as error:
        if isinstance(error, HeaderError):
            raise
        raise HeaderError(f"a safetensors header is no JSON: {error}") from error
    if not isinstance(header, dict):
        raise HeaderError("a safetensors header is no JSON object")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise HeaderError("the metadata of a safetensors header are no strings")
    entries = {name: _entry(name, value, 8 + length) for name, value in header.items()}
    _require_full(entries, 8 + length, size)
    return SafeHeader(entries, metadata, 8 + length)


def _entry(name: str, value: Any, data_start: int) -> Entry:
    try:
        dtype, shape, (start, stop) = value["dtype"], value["shape"], value["data_offsets"]
        numbers = [*shape, start, stop]
    except (TypeError, LookupError, ValueError) as error:
        raise HeaderError(f"tensor {name[:80]!r} has no dtype, shape and data_offsets") from error
    if not isinstance(dtype, str) or not all(type(n) is int and 0 <= n < 1 << 62 for n in numbers):
        raise HeaderError(f"tensor {name[:80]!r} has a malformed dtype, shape or data_offsets")
    return Entry(dtype, tuple(shape), data_start + start, data_start + stop)


def _require_full(entries: Mapping[str, Entry], data_start: int, size: int) -> None:
    position = data_start
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].start, item[1].stop)):
        if entry.start != position or entry.stop < entry.start:
            raise HeaderError(f"tensor {name[:80]!r} leaves a hole or overlaps another")
        position = entry.stop
    if position > size:
        raise TruncatedError(f"the tensors end at byte {position}, the file at {size}")
    if position < size:
        raise HeaderError(f"{size - position} bytes behind the last tensor belong to nothing")


def write_header(sizes: Mapping[str, int], metadata: Mapping[str, str]) -> bytes:
    """The header of a file of one-dimensional U8 tensors that follow in this order."""
    header: dict[str, Any] = {"__metadata__": dict(sorted(metadata.items()))}
    position = 0
    for name, size in sizes.items():
        header[name] = {"dtype": "U8", "shape": [size], "data_offsets": [position, position + size]}
        position += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text
