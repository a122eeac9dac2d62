"""`python -m benchmarks codec`: how small each codec writes real updates, and how fast.

Every step of a trace is one patch. It is encoded, decoded into a copy of the old state, and the
result is compared bit by bit with the new state by numpy. Bits per change are the mean over the
steps. For ours they count the file without its JSON header, above 100 kB with it; `ratio_to_full`
follows the same rule, `file_bytes` is the whole file.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

import numpy as np

from pulsecast.patch.state import State
from pulsecast.testing import Trace

from .fireworks import arc_codecs
from .limit import limit
from .ours import OURS
from .report import Record, progress
from .rivals import RIVALS, Codec

EXCERPT = Path(__file__).parent / "data"
COLUMNS = {
    "codec": "",
    "density": ".3%",
    "bits_per_change": ".2f",
    "ratio_to_full": ".1f",
    "encode_ns_per_weight": ".2f",
    "decode_ns_per_weight": ".2f",
    "exact": "",
    "n": "d",
}
CAPTION = "mean over n steps, times are medians; every decode compared bit by bit"


@dataclass(frozen=True, slots=True)
class Sample:
    """One step with one codec."""

    changes: int
    bits: float
    file_bytes: float
    encode_s: float | None
    decode_s: float | None
    exact: bool


def run(directory: Path, *, codecs: Sequence[str], steps: int | None, threads: int) -> list[Record]:
    """Records of every codec on every trace file in a directory.

    Args:
        directory: Holds `*.safetensors` in the trace format.
        codecs: Names to measure; all of them if empty.
        steps: At most so many steps of each trace.
        threads: Threads of our codecs.

    Raises:
        FileNotFoundError: There is no trace.
    """
    paths = sorted(directory.glob("*.safetensors"))
    if not paths:
        raise FileNotFoundError(f"no *.safetensors in {directory}")
    candidates = all_codecs(threads)
    wanted = [c for c in candidates if not codecs or c.name in codecs]
    records = []
    for path in paths:
        trace = Trace.open(path)
        records += _trace(trace, wanted, steps, with_limit=not codecs or "limit" in codecs)
    return records


def all_codecs(threads: int) -> list[Codec]:
    """Ours, the rivals, and the arc codecs if they are installed."""
    codecs: list[Codec] = [*(make(threads) for make in OURS), *(make() for make in RIVALS)]
    try:
        return codecs + arc_codecs()
    except ImportError as error:
        progress(
            f"arc_v2 and arc_v3 are left out: {error}; pip install fireworks-delta-compression"
        )
        return codecs


def _trace(
    trace: Trace, codecs: Sequence[Codec], steps: int | None, *, with_limit: bool
) -> list[Record]:
    samples: dict[str, list[Sample]] = {codec.name: [] for codec in codecs}
    bounds = []
    for number, (old, new) in enumerate(trace):
        if number == steps:
            break
        bound = limit(old, new)
        if not bound.changes:
            continue
        bounds.append(Sample(bound.changes, bound.bits, bound.bits / 8, None, None, bound.exact))
        for codec in codecs:
            if not samples[codec.name]:
                measure(codec, old, new, bound.changes)  # warms caches, allocators and thread pools
            samples[codec.name].append(measure(codec, old, new, bound.changes))
        progress(f"{trace.name}: step {number} of {len(trace)} done")
    if with_limit:
        samples["limit"] = bounds
    return [_record(trace, name, found) for name, found in samples.items() if found]


def measure(codec: Codec, old: State, new: State, changes: int) -> Sample:
    """Encodes, decodes and compares one patch."""
    codec.prepare(old)
    start = time.perf_counter()
    blobs = codec.encode(old, new)
    encode_s = time.perf_counter() - start
    copy = old.copy()
    start = time.perf_counter()
    result = codec.decode(blobs, copy)
    decode_s = time.perf_counter() - start
    exact = all(map(np.array_equal, result.arrays, new.arrays))
    size = codec.counted_bytes(blobs)
    return Sample(changes, 8 * size, sum(map(len, blobs)), encode_s, decode_s, exact)


def _record(trace: Trace, name: str, samples: Sequence[Sample]) -> Record:
    full_bits = 8 * trace.layout.nbytes
    return {
        "trace": trace.name,
        "codec": name,
        "density": fmean(s.changes for s in samples) / trace.weights,
        "bits_per_change": fmean(s.bits / s.changes for s in samples),
        "ratio_to_full": full_bits / fmean(s.bits for s in samples),
        "encode_ns_per_weight": _time([s.encode_s for s in samples], trace.weights),
        "decode_ns_per_weight": _time([s.decode_s for s in samples], trace.weights),
        "exact": all(s.exact for s in samples),
        "n": len(samples),
        "changes": round(fmean(s.changes for s in samples)),
        "weights": trace.weights,
        "file_bytes": round(fmean(s.file_bytes for s in samples)),
    }


def _time(seconds: Sequence[float | None], weights: int) -> float | None:
    known = [s for s in seconds if s is not None]
    return median(known) * 1e9 / weights if known else None
