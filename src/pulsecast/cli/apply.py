"""``pulsecast apply``: turns a checkpoint into the one a patch leads to."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pulsecast.cli.report import Json, Threads, print_json, progress_bars, reported

if TYPE_CHECKING:
    from pulsecast.patch.decode import Patch
    from pulsecast.patch.transaction import ApplyReport


@reported
def apply(
    base: Annotated[
        Path, typer.Argument(metavar="BASE", help="Checkpoint to start from: a file or a folder.")
    ],
    patch: Annotated[
        list[Path],
        typer.Argument(metavar="PATCH", help="Patch; all its parts if it has several."),
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="OUT", help="Checkpoint to write; must not exist."),
    ] = None,
    in_place: Annotated[
        bool, typer.Option("--in-place", help="Change BASE itself, under a journal.")
    ] = False,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Apply PATCH to BASE: the result is exactly the patch's target, or nothing is changed."""
    from pulsecast.patch.decode import open_patch

    if in_place == (output is not None):
        raise typer.BadParameter("give either -o OUT or --in-place")
    opened = open_patch(*patch)
    report = (
        _in_place(base, opened, threads) if output is None else _copy(base, opened, output, threads)
    )
    where = base if output is None else output
    if as_json:
        print_json(
            {
                "state": str(where),
                "base": opened.base.hex(),
                "target": opened.target.hex(),
                "changes": report.changes if report else 0,
                "already": report is None,
                "seconds": report.seconds if report else 0.0,
            }
        )
    elif report is None:
        typer.echo(f"{where} is the patch's target already: nothing to do")
    else:
        typer.echo(f"{where}: {report.changes:,} weights written, {report.seconds:.1f} s")
        typer.echo(f"root {opened.target.hex()}, proved")


def _copy(base: Path, patch: Patch, output: Path, threads: int | None) -> ApplyReport:
    from pulsecast.patch.transaction import apply as apply_patch
    from pulsecast.weights import Checkpoint

    with (
        progress_bars() as bar,
        Checkpoint.open(base) as checkpoint,
        checkpoint.copy_to(output, progress=bar("copying", checkpoint.nbytes)) as copy,
    ):
        # No log: until the copy is proved nobody can see it, and on an error it is thrown away.
        advance = bar("applying", copy.state.layout.weights)
        return apply_patch(patch, copy.state, disposable=True, threads=threads, progress=advance)


def _in_place(base: Path, patch: Patch, threads: int | None) -> ApplyReport | None:
    from pulsecast.errors import WrongBaseError
    from pulsecast.patch.transaction import apply as apply_patch
    from pulsecast.weights import Checkpoint, Journal

    with (
        progress_bars() as bar,
        Checkpoint.open(base, writable=True) as checkpoint,
        Journal(checkpoint, base=patch.base, target=patch.target) as journal,
    ):
        advance = bar("applying", checkpoint.state.layout.weights)
        try:
            return apply_patch(
                patch, checkpoint.state, log=journal, threads=threads, progress=advance
            )
        except WrongBaseError as error:
            if error.have == patch.target.hex():
                return None
            raise
