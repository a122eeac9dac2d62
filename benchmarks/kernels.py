"""`python -m benchmarks kernels`: how fast the kernels are, in times of copying the weights.

The unit is one memcpy by one core between two touched buffers of the same weights. All kernels of
one size and density are timed in turns, five rounds, so that a slow moment of the machine hits them
all; the median counts. Weights are N(0, 0.02) in BF16, changes are chosen and sized as Adam's are.
"""

from __future__ import annotations

import ctypes
import importlib
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from pulsecast import kernels
from pulsecast.patch.decode import Patch
from pulsecast.patch.digest import tensor_sums
from pulsecast.patch.encode import encode_bytes
from pulsecast.patch.part import Part
from pulsecast.patch.state import State
from pulsecast.patch.transaction import apply
from pulsecast.testing import adam_pair, perturb

from .report import Record, progress

ROUNDS = 5
DENSITIES = (0.001, 0.01, 0.1)
THREADS = (1, 2)
SIZES = {"1M": 1 << 20, "16M": 1 << 24, "128M": 1 << 27, "1G": 1 << 30}
# Old, new and target, the synthetic states they come from, and at 10 % density places and undo log.
_BYTES_PER_WEIGHT = 12
COLUMNS = {
    "kernel": "",
    "threads": "d",
    "density": ".1%",
    "ns_per_weight": ".3f",
    "times_memcpy": ".2f",
}
CAPTION = f"median of {ROUNDS} rounds; memcpy: one thread, same weights, same run"

_U16 = npt.NDArray[np.uint16]


def run(sizes: Sequence[int], densities: Sequence[float], threads: Sequence[int]) -> list[Record]:
    """Records of every kernel for every size, density and number of threads."""
    records: list[Record] = []
    for weights in sizes:
        if (free := _free_memory()) < _BYTES_PER_WEIGHT * weights:
            progress(f"{weights} weights left out: only {free >> 20} MB of memory are free")
            continue
        base = _base(weights)
        for density in densities:
            progress(f"{weights} weights, {density:.1%} changed")
            records += _group(base, density, threads)
    return records


def _group(base: State, density: float, threads: Sequence[int]) -> Iterator[Record]:
    bench = Bench(base, perturb(base, density, seed=1, like_adam=True))
    calls = {(name, n): call for n in threads for name, call in bench.calls(n)}
    seconds: dict[tuple[str, int], list[float]] = {key: [] for key in calls}
    unit = "memcpy", 1
    for turn in range(ROUNDS + 1):
        for key in calls:
            bench.restore(key[0])
            # The unit is timed beside every call: a slow one would make all kernels look good.
            for timed in (unit, key) if key != unit else (unit,):
                start = time.perf_counter()
                calls[timed]()
                if turn:  # the first one warms up
                    seconds[timed].append(time.perf_counter() - start)
    for (name, n), found in seconds.items():
        yield {
            "kernel": name,
            "threads": n,
            "density": density,
            "weights": bench.old.size,
            "bytes": bench.old.nbytes,
            "ns_per_weight": median(found) * 1e9 / bench.old.size,
            "times_memcpy": median(found) / median(seconds[unit]),
            "min_ns_per_weight": min(found) * 1e9 / bench.old.size,
            "max_ns_per_weight": max(found) * 1e9 / bench.old.size,
            "n": len(found),
        }


class Bench:
    """The buffers of one size and density, and the calls to be timed on them."""

    def __init__(self, base: State, changed: State) -> None:
        self.old = _flat(base)
        self.new = _flat(changed)
        self.target = self.old.copy()
        self._before, self._after = _views(base, self.old), _views(base, self.new)
        self._live = _views(base, self.target)
        self._sums = tensor_sums(self._before)
        self._places, self._values = kernels.diff(self.old, self.new)
        self._patch = self._encode(1)

    def calls(self, threads: int) -> Iterator[tuple[str, Callable[[], object]]]:
        """Names and calls of all kernels, for a number of threads."""
        pieces = [_piece(self.old.size, i, threads) for i in range(threads)]
        marks = [np.searchsorted(self._places, [p.start, p.stop]) for p in pieces]
        runs = [slice(*m) for m in marks]

        def diff(i: int) -> object:
            return kernels.diff(self.old[pieces[i]], self.new[pieces[i]])

        def scatter(i: int) -> object:
            places = shifted[i]
            return kernels.apply(self.target[pieces[i]], places, self._values[runs[i]])

        shifted = [self._places[r] - p.start for r, p in zip(runs, pieces, strict=True)]
        yield (
            "memcpy",
            _spread(lambda i: _memcpy(self.target[pieces[i]], self.old[pieces[i]]), threads),
        )
        yield (
            "read-both",  # memcmp of equal bytes: what a diff cannot fall below
            _spread(lambda i: _memcmp(self.target[pieces[i]], self.old[pieces[i]]), threads),
        )
        yield "diff", _spread(diff, threads)
        yield "apply", _spread(scatter, threads)
        yield (
            "digest",
            _spread(lambda i: kernels.digest(self.old[pieces[i]], pieces[i].start), threads),
        )
        yield "weightwise-encode", lambda: self._encode(threads)
        yield "weightwise-decode+apply", lambda: self._apply(threads)
        if threads == 1:
            yield "diff-numpy", self._diff_numpy
        if (torch := _torch()) is not None:
            yield "diff-torch", lambda: self._diff_torch(torch, threads)

    def restore(self, kernel: str) -> None:
        """Puts the target back to the old state where a kernel starts from it. Not timed."""
        if kernel.endswith("apply") or kernel == "read-both":
            np.copyto(self.target, self.old)

    def _encode(self, threads: int) -> bytes:
        return encode_bytes(self._before, self._after, threads=threads, base_sums=self._sums)

    def _apply(self, threads: int) -> object:
        patch = Patch([Part(self._patch)])
        return apply(patch, self._live, sums=self._sums, threads=threads)

    def _diff_numpy(self) -> object:
        places = np.flatnonzero(self.old != self.new)
        return places, self.new[places]

    def _diff_torch(self, torch: Any, threads: int) -> object:
        torch.set_num_threads(threads)
        # As int16: torch compares no uint16, and would compare bf16 as numbers.
        old, new = (torch.from_numpy(x.view(np.int16)) for x in (self.old, self.new))
        places = (old != new).nonzero().squeeze(1)
        return places, new[places]


def _base(weights: int) -> State:
    side = 1 << (min(weights, SIZES["16M"]).bit_length() - 1) // 2
    matrices = max(1, weights // side**2)
    shapes = {f"layers.{i:03d}.weight": (side, side) for i in range(matrices)}
    return adam_pair(shapes, lr=0, seed=0)[0]


def _flat(state: State) -> _U16:
    return np.concatenate(state.arrays)


def _views(like: State, flat: _U16) -> State:
    ends = np.cumsum([spec.size for spec in like.layout.tensors])
    return State(like.layout, np.split(flat, ends[:-1]))


def _piece(size: int, index: int, pieces: int) -> slice:
    return slice(size * index // pieces, size * (index + 1) // pieces)


def _spread(call: Callable[[int], object], threads: int) -> Callable[[], object]:
    """Runs call(0), call(1) … at once; the threads exist before the clock starts."""
    if threads == 1:
        return lambda: call(0)
    pool = ThreadPoolExecutor(threads)
    list(pool.map(lambda _: time.sleep(0.01), range(threads)))
    return lambda: list(pool.map(call, range(threads)))


def _memcpy(target: _U16, source: _U16) -> None:
    ctypes.memmove(target.ctypes.data, source.ctypes.data, source.nbytes)


_LIBC = ctypes.CDLL(None)
_LIBC.memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]


def _memcmp(left: _U16, right: _U16) -> None:
    if _LIBC.memcmp(left.ctypes.data, right.ctypes.data, left.nbytes) != 0:
        raise RuntimeError("memcmp was to read equal bytes to their end")


def _torch() -> Any | None:
    try:
        return importlib.import_module("torch")
    except ImportError:
        return None


def _free_memory() -> int:
    with Path("/proc/meminfo").open() as lines:
        found = next(line for line in lines if line.startswith("MemAvailable"))
    return int(found.split()[1]) * 1024
