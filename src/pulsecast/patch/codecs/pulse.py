"""`pulse`: row and column gaps and new bits under zstd-1, as in PULSE v3.1 (spec section 7)."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import zstandard

from ...dtypes import Lanes
from ...errors import FormatError, LimitError, TruncatedError
from ...kernels import Changes, Places
from ...kernels.bits import read_varint, write_varint
from ..boxes import Block, BoxMap, Segment
from .raw import Diff, DiffEncoder, checked

_LEVEL = 1
_ROW_WIDTHS, _COLUMN_WIDTHS = (1, 2, 4), (2, 4, 8)
Gaps = npt.NDArray[np.int64]


def _matrix(boxes: BoxMap, segment: Segment) -> tuple[int, int]:
    """Rows and columns of a segment's box."""
    shape = boxes.boxes[segment.box].shape
    return (shape[0] if shape else 1), math.prod(shape[1:])


def _narrowest(gaps: Gaps, widths: tuple[int, ...]) -> int:
    most = int(gaps.max())
    return next(width for width in widths if most < 1 << (8 * width))


class PulseEncoder(DiffEncoder):
    """Writes spec section 7."""

    def write(self, block: Block, split: Diff) -> bytes:
        """The payload of a sparse block."""
        places = split.changes.places
        counts, widths, rows, columns = bytearray(), bytearray(), [], []
        for segment, start in self._boxes.segments(block):
            first, last = np.searchsorted(places, (start, start + segment.size))
            counts += write_varint(int(last - first))
            if last > first:
                positions = places[first:last] - start + segment.start
                row, column = _gaps(positions, segment.start, _matrix(self._boxes, segment)[1])
                r, c = _narrowest(row, _ROW_WIDTHS), _narrowest(column, _COLUMN_WIDTHS)
                widths.append(r + 16 * c)
                rows.append(row.astype(f"<u{r}").tobytes())
                columns.append(column.astype(f"<u{c}").tobytes())
        content = b"".join([counts, widths, *rows, *columns, split.changes.new.tobytes()])
        return zstandard.ZstdCompressor(level=_LEVEL).compress(content)


def _gaps(positions: Places, start: int, columns: int) -> tuple[Gaps, Gaps]:
    row, column = positions // columns, positions % columns
    row_gaps = np.diff(row, prepend=start // columns)
    column_gaps = np.diff(column, prepend=0)
    starts = row_gaps != 0
    column_gaps[starts] = column[starts]
    column_gaps[:1] = column[:1]
    return row_gaps, column_gaps


def _positions(row_gaps: Gaps, column_gaps: Gaps, start: int, rows: int, columns: int) -> Places:
    row = np.cumsum(row_gaps) + start // columns
    total = np.cumsum(column_gaps)
    starts = np.flatnonzero(row_gaps)
    if not len(starts) or starts[0] != 0:
        starts = np.concatenate([[0], starts])
    before = np.concatenate([[0], total])[starts]  # columns count from 0 again at every row
    column = total - np.repeat(before, np.diff(starts, append=len(total)))
    if int(column.max()) >= columns or int(row.max()) >= rows:
        raise FormatError("a pulse block reaches beyond a row or a box")
    out: Places = row * columns + column
    return out


class PulseDecoder:
    """Reads spec section 7."""

    def __init__(self, boxes: BoxMap, tables: memoryview) -> None:
        if len(tables):
            raise FormatError("a pulse part has no tables")
        self._boxes = boxes

    def read(self, block: Block, data: memoryview, base: Lanes) -> Changes:
        """The changes of a sparse block."""
        content = memoryview(_decompress(data, block))
        counts = []
        position = 0
        for segment in block.segments:
            count, position = read_varint(content, position)
            if count > segment.size:
                raise FormatError(f"a segment of {segment.size} weights declares {count} changes")
            counts.append(count)
        used = [(s, n) for s, n in zip(block.segments, counts, strict=True) if n]
        k = sum(counts)
        widths = [(w % 16, w // 16) for w in content[position : position + len(used)]]
        if len(widths) < len(used) or any(
            r not in _ROW_WIDTHS or c not in _COLUMN_WIDTHS for r, c in widths
        ):
            raise FormatError("a pulse block has no or unknown widths")
        position += len(used)
        sizes = [n for _, n in used]
        row_gaps, position = _streams(content, position, sizes, [r for r, _ in widths])
        column_gaps, position = _streams(content, position, sizes, [c for _, c in widths])
        if len(content) - position != k * block.dtype.width:
            raise TruncatedError(f"a pulse block of {k} changes has {len(content)} bytes")
        found = [np.empty(0, np.int64)]
        gaps = zip(row_gaps, column_gaps, strict=True)
        streams = dict(zip([s for s, _ in used], gaps, strict=True))
        for segment, start in self._boxes.segments(block):
            if segment in streams:
                inside = _positions(
                    *streams[segment], segment.start, *_matrix(self._boxes, segment)
                )
                inside -= segment.start
                if inside[0] < 0 or inside[-1] >= segment.size:
                    raise FormatError("the places of a pulse block lie outside of it")
                found.append(inside + start)
        places = np.concatenate(found)
        return checked(block, places, base, np.frombuffer(content, block.dtype.lane, k, position))


def _decompress(data: memoryview, block: Block) -> bytes:
    most = (16 + block.dtype.width) * block.size + 16 * len(block.segments)
    try:
        size = zstandard.frame_content_size(data)
        if not 0 <= size <= most:
            raise LimitError(f"a pulse block declares {size} bytes, at most {most} allowed")
        # The declared size bounds the output, so a frame cannot grow beyond what was checked.
        content = zstandard.ZstdDecompressor().decompress(
            data, max_output_size=size, allow_extra_data=False
        )
    except zstandard.ZstdError as error:
        raise FormatError(f"a pulse block is no zstd frame: {error}") from error
    return content


def _streams(
    content: memoryview, position: int, counts: list[int], widths: list[int]
) -> tuple[list[Gaps], int]:
    out = []
    for count, width in zip(counts, widths, strict=True):
        if position + count * width > len(content):
            raise TruncatedError("a pulse block ends inside its gaps")
        out.append(np.frombuffer(content, f"<u{width}", count, position).astype(np.int64))
        position += count * width
    return out, position
