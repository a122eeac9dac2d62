"""Our codecs as they are used: a whole patch, applied under an undo log and verified."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from pulsecast.patch.decode import Patch
from pulsecast.patch.digest import tensor_sums
from pulsecast.patch.encode import encode_bytes
from pulsecast.patch.part import Part
from pulsecast.patch.state import State
from pulsecast.patch.transaction import apply

from .rivals import Blobs, Codec

# Above this a patch's JSON header counts as well (a handful of names and hashes until then).
HEADER_FREE_BYTES = 100_000


class Ours(Codec):
    """A codec of this package.

    The digest of the old state is known to both sides from the patch before, so it is not timed;
    hashing, reading back and comparing the root is.
    """

    def __init__(self, name: str, threads: int) -> None:
        self.name = name
        self._threads = threads
        self._sums: npt.NDArray[np.uint64] | None = None

    def prepare(self, old: State) -> None:
        self._sums = tensor_sums(old, threads=self._threads)

    def encode(self, old: State, new: State) -> Blobs:
        # In a chain the layout is written once per run, not with every patch.
        options = {"threads": self._threads, "base_sums": self._sums, "embed_layout": False}
        return [encode_bytes(old, new, codec=self.name, **options)]

    def decode(self, blobs: Blobs, state: State) -> State:
        apply(Patch([Part(blobs[0])]), state, sums=self._sums, threads=self._threads)
        return state

    def counted_bytes(self, blobs: Blobs) -> int:
        size = len(blobs[0])
        return size if size > HEADER_FREE_BYTES else size - Part(blobs[0]).header_bytes


OURS: tuple[Callable[[int], Ours], ...] = tuple(
    functools.partial(Ours, name) for name in ("weightwise", "raw", "pulse")
)
"""Makers of our codecs, given the number of threads."""
