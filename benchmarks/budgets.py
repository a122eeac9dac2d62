"""The promises that `--check` holds the measurements against."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .report import Record

OVER_PULSE = 3.6
OVER_RIVALS = 2.0
OVER_LIMIT = 1.08
# Times of memcpy on one core at 1 % density.
KERNELS = {"diff": 2.0, "weightwise-encode": 14.0, "weightwise-decode+apply": 9.0, "digest": 6.0}
ENCODE_SPEEDUP = 1.6
HEADLINE_BYTES = 256 * 10**6
HEADLINE_DENSITY = 0.01
# Below this a patch is mostly its tables, and says nothing about a codec.
MIN_CHANGES = 10_000

_OURS = ("weightwise", "raw", "pulse")
_JUDGED = (
    "weightwise",
    "limit",
    "int32",
    "gap16",
    "pulse-v3.1",
    "xor-zstd",
    "gap16-xor-zstd",
    "arc_v2",
    "arc_v3",
)


def missed_by_codecs(records: Sequence[Record]) -> Iterator[str]:
    """One line for every promise on sizes and exactness that the records break."""
    for record in records:
        if not record["exact"]:
            yield f"{record['trace']}: {record['codec']} does not give back the exact bits"
    for trace in dict.fromkeys(record["trace"] for record in records):
        by_codec = {r["codec"]: r for r in records if r["trace"] == trace}
        if too_small(records, trace):
            continue
        yield from (f"{trace}: {name} was not measured" for name in _JUDGED if name not in by_codec)
        ours = by_codec.get("weightwise")
        if ours is None:
            continue
        bits = ours["bits_per_change"]
        for name, record in by_codec.items():
            ratio = record["bits_per_change"] / bits
            if name == "limit":
                if 1 / ratio > OVER_LIMIT:
                    yield f"{trace}: weightwise is {1 / ratio:.3f} limits, not {OVER_LIMIT}"
            elif name not in _OURS:
                needed = OVER_PULSE if name == "pulse-v3.1" else OVER_RIVALS
                if ratio < needed:
                    yield f"{trace}: {name} is {ratio:.2f} times weightwise, not {needed}"


def too_small(records: Sequence[Record], trace: str) -> bool:
    """Whether the patches of a trace have too few changes to judge sizes by."""
    return all(r["changes"] < MIN_CHANGES for r in records if r["trace"] == trace)


def missed_by_kernels(records: Sequence[Record]) -> Iterator[str]:
    """One line for every promise on speed that the records break."""
    judged = [
        r for r in records if r["density"] == HEADLINE_DENSITY and r["bytes"] >= HEADLINE_BYTES
    ]
    if not judged:
        yield f"no measurement of {HEADLINE_BYTES // 10**6} MB or more at 1 % density"
    times = {(r["kernel"], r["weights"], r["threads"]): r for r in judged}
    for (kernel, weights, threads), record in times.items():
        budget = KERNELS.get(kernel)
        if threads == 1 and budget is not None and record["times_memcpy"] > budget:
            yield f"{kernel}, {weights} weights: {record['times_memcpy']:.2f} memcpys, not {budget}"
        two = times.get(("weightwise-encode", weights, 2))
        if kernel == "weightwise-encode" and threads == 1 and two is not None:
            speedup = record["ns_per_weight"] / two["ns_per_weight"]
            if speedup < ENCODE_SPEEDUP:
                yield f"{kernel}, {weights} weights: 2 threads {speedup:.2f}x, not {ENCODE_SPEEDUP}"
