"""``pulsecast diff``: makes a patch from two checkpoints."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from pulsecast.cli.report import Json, Threads, print_json, progress_bars, reported, size_text


class Codec(str, enum.Enum):
    """The codecs a patch can be written with."""

    RAW = "raw"
    PULSE = "pulse"
    WEIGHTWISE = "weightwise"


@reported
def diff(
    old: Annotated[
        Path, typer.Argument(metavar="OLD", help="Checkpoint to start from: a file or a folder.")
    ],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="Checkpoint to arrive at.")],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="PATCH", help="Patch to write; must not exist."),
    ],
    codec: Annotated[Codec, typer.Option(help="How changes are coded.")] = Codec.WEIGHTWISE,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Write what turns OLD into NEW, bit for bit, as a patch."""
    from pulsecast.patch.encode import encode
    from pulsecast.weights import Checkpoint
    from pulsecast.weights.fresh import fresh

    with (
        progress_bars() as bar,
        Checkpoint.open(old) as base,
        Checkpoint.open(new) as target,
        fresh(output) as draft,
    ):
        report = encode(
            base.state,
            target.state,
            draft,
            codec=codec.value,
            threads=threads,
            embed_layout=True,
            progress=bar("comparing", base.state.layout.weights),
        )
    if as_json:
        print_json(
            {
                "patch": str(output),
                "codec": codec.value,
                "bytes": report.file_bytes,
                "header_bytes": report.header_bytes,
                "weights": report.weights,
                "full_bytes": report.full_bytes,
                "changes": report.changes,
                "density": report.density,
                "bits_per_change": report.bits_per_change,
                "blocks": report.blocks,
                "base": report.base.hex(),
                "target": report.target.hex(),
                "seconds": report.seconds,
            }
        )
        return
    typer.echo(
        f"{output}: {size_text(report.file_bytes)}, "
        f"{report.ratio_to_full:.3g} times smaller than the weights\n"
        f"{report.changes:,} of {report.weights:,} weights changed ({report.density:.3%}), "
        f"{report.bits_per_change:.2f} bits per change, {report.seconds:.1f} s\n"
        f"base   {report.base.hex()}\ntarget {report.target.hex()}"
    )
