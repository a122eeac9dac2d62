"""How others write the difference of two states, each as small as its own rules allow.

Names, hashes and version numbers are counted only where the rival's format cannot do without them
(PULSE's header, arc's envelopes): every doubt is decided in the rival's favour. All encoders start
from the two states and all decoders end with the new one, so diff and scatter are in the times.
"""

from __future__ import annotations

import json
import struct
from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import zstandard

from pulsecast.dtypes import Lanes
from pulsecast.patch.layout import TensorSpec
from pulsecast.patch.state import State

Blobs = Sequence[bytes]
_Places = npt.NDArray[np.int64]
_Gaps = npt.NDArray[np.uint16]
_WALK = 0xFFFF


class Codec(ABC):
    """A way to write a patch, under comparison.

    Attributes:
        name: Its name in the records.
    """

    name: str

    def prepare(self, old: State) -> None:  # noqa: B027 - most codecs know nothing in advance
        """Takes in what a sender knows before the new state exists. Not timed."""

    @abstractmethod
    def encode(self, old: State, new: State) -> Blobs:
        """The patch from `old` to `new`."""

    @abstractmethod
    def decode(self, blobs: Blobs, state: State) -> State:
        """The new state. `state` is the old one and may be written into."""

    def counted_bytes(self, blobs: Blobs) -> int:
        """The size that bits per change are computed from."""
        return sum(map(len, blobs))


class Int32(Codec):
    """Int32 positions and values, no compression: vLLM, verl."""

    name = "int32"

    def encode(self, old: State, new: State) -> Blobs:
        blobs = []
        for i in range(len(old.layout.tensors)):
            places = np.flatnonzero(old.arrays[i] != new.arrays[i])
            blobs.append(places.astype("<i4").tobytes() + new.arrays[i][places].tobytes())
        return blobs

    def decode(self, blobs: Blobs, state: State) -> State:
        for i, blob in enumerate(blobs):
            lanes = state.arrays[i]
            count = len(blob) // (4 + lanes.itemsize)
            places = np.frombuffer(blob, "<i4", count)
            lanes[places] = np.frombuffer(blob, lanes.dtype, offset=4 * count)
        return state


class Gap16(Codec):
    """u16 gaps and new bits, no compression: TRL.

    The tensors are strung together, so that there is one list of gaps and no count per tensor.
    """

    name = "gap16"

    def encode(self, old: State, new: State) -> Blobs:
        start, places, values = 0, [], []
        for i, spec in enumerate(old.layout.tensors):
            here = np.flatnonzero(old.arrays[i] != new.arrays[i])
            places.append(here + start)
            values.append(self._value(old.arrays[i][here], new.arrays[i][here]).tobytes())
            start += spec.size
        gaps = _gaps(np.concatenate(places))
        return [b"".join([struct.pack("<Q", gaps.size), gaps.tobytes(), *values])]

    def decode(self, blobs: Blobs, state: State) -> State:
        (count,) = struct.unpack_from("<Q", blobs[0])
        places = _places(np.frombuffer(blobs[0], "<u2", count, offset=8))
        offset, start = 8 + 2 * count, 0
        for i, spec in enumerate(state.layout.tensors):
            first, last = np.searchsorted(places, [start, start + spec.size])
            here = places[first:last] - start
            values = np.frombuffer(blobs[0], state.arrays[i].dtype, here.size, offset)
            state.arrays[i][here] = self._value(state.arrays[i][here], values)
            offset, start = offset + values.nbytes, start + spec.size
        return state

    def _value(self, old: Lanes, new: Lanes) -> Lanes:
        return new


class Gap16XorZstd(Gap16):
    """u16 gaps and XORs, zstd-1: NeMo-RL. One frame per patch; one per tensor is 3-5 % larger."""

    name = "gap16-xor-zstd"

    def encode(self, old: State, new: State) -> Blobs:
        return [zstandard.ZstdCompressor(level=1).compress(super().encode(old, new)[0])]

    def decode(self, blobs: Blobs, state: State) -> State:
        return super().decode([zstandard.ZstdDecompressor().decompress(blobs[0])], state)

    def _value(self, old: Lanes, new: Lanes) -> Lanes:
        return old ^ new


class XorZstd(Codec):
    """The dense XOR of each changed tensor, zstd-1: slime, SkyRL, stitch."""

    name = "xor-zstd"

    def encode(self, old: State, new: State) -> Blobs:
        compressor = zstandard.ZstdCompressor(level=1)
        blobs = []
        for i in range(len(old.layout.tensors)):
            flips = old.arrays[i] ^ new.arrays[i]
            blobs.append(compressor.compress(flips.data) if flips.any() else b"")
        return blobs

    def decode(self, blobs: Blobs, state: State) -> State:
        decompressor = zstandard.ZstdDecompressor()
        for i, blob in enumerate(blobs):
            if blob:
                flips = np.frombuffer(decompressor.decompress(blob), state.arrays[i].dtype)
                np.bitwise_xor(state.arrays[i], flips, out=state.arrays[i])
        return state


class PulseV31(Codec):
    """Row and column gaps in narrow types and new bits, zstd-1: PULSE's `sparse_codec_v3.1`."""

    name = "pulse-v3.1"

    def encode(self, old: State, new: State) -> Blobs:
        tensors, body, offset = [], [], 0
        for i, spec in enumerate(old.layout.tensors):
            places = np.flatnonzero(old.arrays[i] != new.arrays[i])
            if not places.size:
                continue
            rows, cols = _row_and_column_gaps(places, spec)
            values = new.arrays[i][places]
            sizes = rows.nbytes, cols.nbytes, values.nbytes
            tensors.append(
                {
                    "name": spec.name,
                    "shape": list(spec.shape),
                    "num_nonzero": len(places),
                    "value_dtype": f"int{8 * spec.dtype.width}",
                    "row_dtype": rows.dtype.name,
                    "col_dtype": cols.dtype.name,
                    "indices_offset": offset,
                    "indices_size": sizes[0] + sizes[1],
                    "rows_size": sizes[0],
                    "cols_size": sizes[1],
                    "values_offset": offset + sizes[0] + sizes[1],
                    "values_size": sizes[2],
                }
            )
            body += [rows.tobytes(), cols.tobytes(), values.tobytes()]
            offset += sum(sizes)
        header = json.dumps({"version": 31, "tensors": tensors}, separators=(",", ":")).encode()
        raw = b"".join([struct.pack("<I", len(header)), header, *body])
        return [zstandard.ZstdCompressor(level=1).compress(raw)]

    def decode(self, blobs: Blobs, state: State) -> State:
        raw = zstandard.ZstdDecompressor().decompress(blobs[0])
        (length,) = struct.unpack_from("<I", raw)
        header, body = json.loads(raw[4 : 4 + length]), memoryview(raw)[4 + length :]
        number = {spec.name: i for i, spec in enumerate(state.layout.tensors)}
        for entry in header["tensors"]:
            i, count, offset = number[entry["name"]], entry["num_nonzero"], entry["indices_offset"]
            rows = np.frombuffer(body, entry["row_dtype"], count, offset)
            cols = np.frombuffer(body, entry["col_dtype"], count, offset + entry["rows_size"])
            places = _from_row_and_column_gaps(rows, cols, state.layout.tensors[i])
            state.arrays[i][places] = np.frombuffer(
                body, state.arrays[i].dtype, count, entry["values_offset"]
            )
        return state


RIVALS: tuple[type[Codec], ...] = (Int32, Gap16, PulseV31, XorZstd, Gap16XorZstd)
"""The re-implemented rivals; the real arc codecs are in `benchmarks.fireworks`."""


def _gaps(places: _Places) -> _Gaps:
    """Unchanged weights before each change; 0xFFFF walks 65535 weights on without a change."""
    walks, rest = np.divmod(np.diff(places, prepend=-1) - 1, _WALK)
    at = np.cumsum(walks + 1) - 1
    gaps = np.full(at[-1] + 1 if at.size else 0, _WALK, "<u2")
    gaps[at] = rest
    return gaps


def _places(gaps: _Gaps) -> _Places:
    is_change = np.asarray(gaps != _WALK)
    places: _Places = (np.cumsum(gaps.astype(np.int64) + is_change) - 1)[is_change]
    return places


def _columns(spec: TensorSpec) -> int:
    return spec.size // spec.shape[0] if len(spec.shape) > 1 else 1


def _row_and_column_gaps(
    places: _Places, spec: TensorSpec
) -> tuple[npt.NDArray[np.generic], npt.NDArray[np.generic]]:
    row, column = np.divmod(places, _columns(spec))
    rows = np.diff(row, prepend=0)
    starts_row = rows > 0
    starts_row[0] = True
    cols = np.where(starts_row, column, np.diff(column, prepend=0))
    return _narrowest(rows, "uint8", "uint16", "int32"), _narrowest(cols, "uint16", "int32")


def _from_row_and_column_gaps(
    rows: npt.NDArray[np.generic], cols: npt.NDArray[np.generic], spec: TensorSpec
) -> _Places:
    # Columns run on within a row and start anew, absolutely, at each row's first change.
    starts_row = rows > np.zeros(1, rows.dtype)
    starts_row[0] = True
    starts = np.flatnonzero(starts_row)
    gaps = cols.astype(np.int64)
    total = np.cumsum(gaps)
    before = total[starts] - gaps[starts]
    column = total - np.repeat(before, np.diff(starts, append=len(gaps)))
    place: _Places = np.cumsum(rows, dtype=np.int64) * _columns(spec) + column
    return place


def _narrowest(values: _Places, *types: str) -> npt.NDArray[np.generic]:
    fitting = next((t for t in types if values.max() <= np.iinfo(t).max), None)
    if fitting is None:
        raise OverflowError(f"no type of {types} holds a gap of {values.max()}")
    return values.astype(fitting)
