"""State roots: digests that a patch updates in O(changes) (spec section 2)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from .. import kernels
from .layout import Layout
from .parallel import Workers
from .state import State

Sums = npt.NDArray[np.uint64]
Progress = Callable[[int], None]
"""Called with the number of weights done since the last call."""

_DOMAIN = b"pulsecast state 1\0"
_RUN = 1 << 22


def tensor_sums(
    state: State, *, threads: int | None = None, progress: Progress | None = None
) -> Sums:
    """The sum of every tensor, in layout order, from one pass over all weights."""

    def runs() -> Iterator[tuple[int, int]]:
        for tensor, array in enumerate(state.arrays):
            for start in range(0, len(array), _RUN):
                yield tensor, start

    def work(run: tuple[int, int]) -> tuple[int, int, int]:
        tensor, start = run
        piece = state.arrays[tensor][start : start + _RUN]
        return tensor, kernels.digest(piece, start), len(piece)

    sums = [0] * len(state.arrays)
    with Workers(threads) as workers:
        for tensor, total, weights in workers.map(work, runs()):
            sums[tensor] += total
            if progress:
                progress(weights)
    return np.array([s % (1 << 64) for s in sums], np.uint64)


def root(layout: Layout, sums: Sums) -> bytes:
    """The state root of tensors with these sums: 32 bytes."""
    return blake3(_DOMAIN + layout.id + sums.astype("<u8").tobytes()).digest()


def state_root(
    state: State, *, threads: int | None = None, progress: Progress | None = None
) -> bytes:
    """The state root of a state: 32 bytes."""
    return root(state.layout, tensor_sums(state, threads=threads, progress=progress))
