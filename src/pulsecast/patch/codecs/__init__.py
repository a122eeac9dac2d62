"""The codecs: how the changes of one block become bytes and come back.

=============  ==================================================  ======================
codec          bytes per change at 1 % of bf16 weights             needs the base to decode
=============  ==================================================  ======================
`raw`          4, no scan on any device                            no
`pulse`        about 3, the paper's format                         no
`weightwise`   below 1                                             yes
=============  ==================================================  ======================
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from ...dtypes import Lanes
from ...errors import UnsupportedError
from ...kernels import Changes
from ..boxes import Block, BoxMap
from .pulse import PulseDecoder, PulseEncoder
from .raw import RawDecoder, RawEncoder
from .survey import Survey
from .weightwise import WeightwiseDecoder, WeightwiseEncoder

__all__ = ["CODECS", "BlockDecoder", "BlockEncoder", "decoder", "encoder"]


class BlockEncoder(Protocol):
    """Turns two versions of a block into a sparse payload.

    If it `learns`, blocks of a sample are split and observed, in any order and thread, and all
    observations are given to `learn` before the first `write`.
    """

    learns: bool

    def split(self, block: Block, old: Lanes, new: Lanes) -> Any: ...
    def observe(self, block: Block, split: Any) -> Any: ...
    def learn(self, observations: Iterable[Any]) -> None: ...
    def write(self, block: Block, split: Any) -> bytes: ...
    def tables(self) -> bytes: ...


class BlockDecoder(Protocol):
    """Turns a sparse payload into changes; raises FormatError on anything else."""

    def read(self, block: Block, data: memoryview, base: Lanes) -> Changes: ...


_Encoder = Callable[[BoxMap, Mapping[int, Survey]], BlockEncoder]
_Decoder = Callable[[BoxMap, memoryview], BlockDecoder]

CODECS: dict[str, tuple[_Encoder, _Decoder]] = {
    "raw": (RawEncoder, RawDecoder),
    "pulse": (PulseEncoder, PulseDecoder),
    "weightwise": (WeightwiseEncoder, WeightwiseDecoder),
}


def _find(name: str) -> tuple[_Encoder, _Decoder]:
    try:
        return CODECS[name]
    except KeyError:
        raise UnsupportedError(
            f"codec {name[:40]!r} is not known; known are {', '.join(CODECS)}"
        ) from None


def encoder(name: str, boxes: BoxMap, surveys: Mapping[int, Survey]) -> BlockEncoder:
    """An encoder for the blocks of one part; `surveys` holds a sample of each dtype by code."""
    return _find(name)[0](boxes, surveys)


def decoder(name: str, boxes: BoxMap, tables: memoryview) -> BlockDecoder:
    """A decoder for the blocks of one part."""
    return _find(name)[1](boxes, tables)
