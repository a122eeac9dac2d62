"""``pulsecast inspect``: shows what a patch changes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pulsecast.cli.report import Json, Threads, print_json, reported, size_text

if TYPE_CHECKING:
    from rich.table import Table

    from pulsecast.cli.anatomy import Anatomy


@reported
def inspect(
    patch: Annotated[
        list[Path],
        typer.Argument(metavar="PATCH", help="Patch; all its parts if it has several."),
    ],
    base: Annotated[
        Path | None,
        typer.Option(
            metavar="STATE", help="The patch's base, for the ULP differences of any codec."
        ),
    ] = None,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Show what PATCH changes: density per tensor, bits per change, modes, ULP differences."""
    from pulsecast.cli.anatomy import dissect
    from pulsecast.patch.decode import open_patch
    from pulsecast.weights import Checkpoint

    opened = open_patch(*patch)
    if base is None:
        anatomy = dissect(opened, threads=threads)
    else:
        with Checkpoint.open(base) as checkpoint:
            anatomy = dissect(opened, base=checkpoint.state, threads=threads)
    if as_json:
        print_json(anatomy.to_json())
        return
    _show(anatomy)


_MOST_ROWS = 200  # more is for --json


def _show(anatomy: Anatomy) -> None:
    from rich.console import Console

    # Into a file or a pipe: wide enough that no name is folded.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    console.print(_summary(anatomy))
    if anatomy.weights is None:
        console.print("the patch carries no layout: give --base to see its tensors")
    else:
        console.print(_tensors(anatomy))
    if anatomy.unchanged_tensors:
        console.print(f"{anatomy.unchanged_tensors} other tensors are unchanged")
    if anatomy.ulp:
        console.print(_ulp(anatomy))
    if anatomy.without_ulp:
        console.print(
            f"{anatomy.without_ulp:,} changes are stored as new bits: "
            "their ULP differences need --base"
        )


def _summary(anatomy: Anatomy) -> Table:
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    modes = ", ".join(f"{count:,} {mode}" for mode, count in anatomy.blocks.items() if count)
    rows = {
        "codec": ", ".join(anatomy.codecs),
        "layout": anatomy.layout,
        "base": anatomy.base,
        "target": anatomy.target,
        "size": f"{size_text(anatomy.file_bytes)}, headers {size_text(anatomy.header_bytes)}",
        "parts": str(anatomy.parts),
        "changes": f"{anatomy.changes:,}",
        "blocks": modes or "none",
    }
    if anatomy.weights is not None and anatomy.full_bytes is not None:
        times = anatomy.full_bytes / anatomy.file_bytes
        rows["changes"] += (
            f" of {anatomy.weights:,} weights, {anatomy.changes / max(1, anatomy.weights):.3%}"
        )
        rows["size"] += f", {times:.3g} times smaller than the weights"
    if anatomy.changes:
        rows["bits per change"] = f"{anatomy.bits_per_change:.2f}"
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def _bar(share: float, width: int = 24) -> str:
    eighths = round(share * width * 8)
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def _tensors(anatomy: Anatomy) -> Table:
    from rich.box import SIMPLE
    from rich.markup import escape
    from rich.table import Table

    shown = anatomy.tensors
    title = f"Changed tensors ({len(shown):,})"
    if len(shown) > _MOST_ROWS:
        shown = sorted(shown, key=lambda tensor: -tensor.changes)[:_MOST_ROWS]
        title = f"The {_MOST_ROWS} of {len(anatomy.tensors):,} changed tensors with most changes"
    table = Table(title=title, title_justify="left", box=SIMPLE)
    table.add_column("tensor", overflow="fold")
    table.add_column("dtype")
    for name in ("shape", "changes", "density"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    top = max((tensor.density for tensor in anatomy.tensors), default=1.0)
    for tensor in shown:
        table.add_row(
            escape(tensor.name),
            tensor.dtype,
            " × ".join(map(str, tensor.shape)),
            f"{tensor.changes:,}",
            f"{tensor.density:.3%}",
            _bar(tensor.density / top, 12),
        )
    return table


def _ulp(anatomy: Anatomy) -> Table:
    from rich.box import SIMPLE
    from rich.table import Table

    table = Table(title="Differences in ULPs", title_justify="left", box=SIMPLE)
    for name in ("ULPs", "changes", "share"):
        table.add_column(name, justify="right")
    table.add_column("")
    total = sum(entry.changes for entry in anatomy.ulp)
    for entry in anatomy.ulp:
        share = entry.changes / total
        span = str(entry.low) if entry.high == entry.low else f"{entry.low} … {entry.high}"
        table.add_row(f"± {span}", f"{entry.changes:,}", f"{share:.2%}", _bar(share))
    return table
