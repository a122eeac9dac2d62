"""The real `fireworks-delta-compression` from PyPI as rivals `arc_v2` and `arc_v3`.

arc_v3 lets several encoders race and takes the smallest result among those that finish within 1.5
times the time of the first. Its size therefore depends on the load of the machine; here it waits
for all of them, which can only make it smaller. `ARC3_CANDIDATE_WAIT_MULTIPLIER=1.5`
is the default of the package.
"""

from __future__ import annotations

import importlib
import os
import struct
import warnings
from typing import Any

import numpy as np

from pulsecast.patch.state import State

from .rivals import Blobs, Codec

_TORCH_NAMES = {
    "BF16": "bfloat16",
    "F16": "float16",
    "F32": "float32",
    "F64": "float64",
    "I8": "int8",
    "I16": "int16",
    "I32": "int32",
    "I64": "int64",
    "U8": "uint8",
}


def arc_codecs() -> list[Codec]:
    """The codecs of the installed package.

    Raises:
        ImportError: The package or torch is not installed.
    """
    os.environ.setdefault("ARC3_CANDIDATE_WAIT_MULTIPLIER", "1000")
    package = importlib.import_module("fireworks_delta_compression")
    torch = importlib.import_module("torch")
    # Their tensors are only read; torch warns of read-only memory all the same.
    warnings.filterwarnings("ignore", message="The given (NumPy array|buffer) is not writable")
    return [Arc(name, package, torch) for name in ("arc_v2", "arc_v3")]


class Arc(Codec):
    """One format of the package."""

    def __init__(self, name: str, package: Any, torch: Any) -> None:
        self.name = name
        self._package = package
        self._torch = torch

    def encode(self, old: State, new: State) -> Blobs:
        blobs = []
        for src, dst in zip(self._tensors(old), self._tensors(new), strict=True):
            diff, checksum = self._package.delta_compress(
                src=src, dst=dst, compression_format=self.name
            )
            # It cannot decode without the Adler-32; as four bytes that is at its smallest.
            blobs.append(struct.pack("<I", int(checksum)) + diff.numpy().tobytes())
        return blobs

    def decode(self, blobs: Blobs, state: State) -> State:
        arrays = []
        for i, (blob, src) in enumerate(zip(blobs, self._tensors(state), strict=True)):
            diff = self._torch.frombuffer(bytearray(blob[4:]), dtype=self._torch.uint8)
            restored = self._package.delta_decompress(
                src=src,
                compressed_diff=diff,
                checksum=str(struct.unpack_from("<I", blob)[0]),
                compression_format=self.name,
            )
            raw = restored.reshape(-1).view(self._torch.uint8).numpy()
            arrays.append(raw.view(state.arrays[i].dtype))
        return State(state.layout, arrays)

    def _tensors(self, state: State) -> list[Any]:
        tensors = []
        for i, spec in enumerate(state.layout.tensors):
            # numpy has no bf16: the bits go over as bytes.
            raw = self._torch.from_numpy(state.arrays[i].view(np.uint8))
            dtype = getattr(self._torch, _TORCH_NAMES[spec.dtype.name])
            tensors.append(raw.view(dtype).reshape(spec.shape))
        return tensors
