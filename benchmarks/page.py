"""Writes the tables of docs/performance.md from the recorded results beside this file.

A table stands between ``<!-- table NAME -->`` and ``<!-- end -->`` and comes from
``results/NAME.json``, which is what ``--json`` printed on some machine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
_TABLE = re.compile(r"(<!-- table (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)

Record = dict[str, Any]


def _rows(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def codec_table(records: Sequence[Record]) -> str:
    """Sizes per trace, smallest patches first; times of the last trace."""
    traces = list(dict.fromkeys(record["trace"] for record in records))
    cells = {(record["trace"], record["codec"]): record for record in records}
    codecs = sorted(
        {r["codec"] for r in records}, key=lambda c: cells[traces[0], c]["bits_per_change"]
    )
    head = ["codec"]
    for trace in traces:
        density = cells[trace, codecs[0]]["density"]
        head += [f"{trace} ({density:.2%} changed): bits per change", "times smaller than full"]
    head += ["encode ns per weight", "decode + apply"]
    rows = []
    for codec in codecs:
        row = [f"`{codec}`"]
        for trace in traces:
            record = cells[trace, codec]
            row += [_number(record["bits_per_change"], 2), _number(record["ratio_to_full"], 0)]
        last = cells[traces[-1], codec]
        row += [_number(last[f"{way}_ns_per_weight"], 2) for way in ("encode", "decode")]
        rows.append(row)
    return _rows(head, rows)


def kernels_table(records: Sequence[Record]) -> str:
    """Times of memcpy, one column per size and density."""
    columns = list(dict.fromkeys((record["weights"], record["density"]) for record in records))
    order = list(dict.fromkeys(record["kernel"] for record in records))
    pairs = {(record["threads"], record["kernel"]) for record in records}
    kernels = sorted(pairs, key=lambda pair: (pair[0], order.index(pair[1])))
    cells = {(r["threads"], r["kernel"], r["weights"], r["density"]): r for r in records}
    head = ["kernel", "threads"] + [f"{w >> 20}M, {density:.1%}" for w, density in columns]
    rows = []
    for threads, kernel in kernels:
        found = [cells.get((threads, kernel, *column)) for column in columns]
        times = [_number(record["times_memcpy"] if record else None, 2) for record in found]
        rows.append([f"`{kernel}`", str(threads), *times])
    return _rows(head, rows)


def rendered(text: str) -> str:
    """The page with all its tables made anew."""

    def table(match: re.Match[str]) -> str:
        records = json.loads((RESULTS / f"{match[2]}.json").read_text(encoding="utf-8"))
        make = codec_table if "codec" in records[0] else kernels_table
        versions = ", ".join(f"{name} {v}" for name, v in records[0]["versions"].items())
        source = f"{records[0]['machine']}; {versions}"
        return f"{match[1]}\n{make(records)}\n{source}\n\n{match[3]}"

    return _TABLE.sub(table, text)


def main() -> None:
    """Rewrite the page in place."""
    PAGE.write_text(rendered(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
