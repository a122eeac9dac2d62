"""``pulsecast verify``: proves which state a checkpoint has."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from pulsecast.cli.report import ExitCode, Json, Threads, print_json, progress_bars, reported


@reported
def verify(
    state: Annotated[Path, typer.Argument(metavar="STATE", help="Checkpoint: a file or a folder.")],
    patch: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="PATCH", help="Patch: is the state its base, its target or neither?"
        ),
    ] = None,
    root: Annotated[
        str | None, typer.Option(metavar="HEX", help="State root that the checkpoint must have.")
    ] = None,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Compute the state root of STATE and compare it with a root or with a patch.

    Ends with 1 if the state has another root, or is neither base nor target of the patch.
    """
    from pulsecast.patch.decode import open_patch
    from pulsecast.patch.digest import state_root
    from pulsecast.weights import Checkpoint

    if patch and root:
        raise typer.BadParameter("give either --root or PATCH")
    if root is not None and not re.fullmatch("[0-9a-fA-F]{64}", root):
        raise typer.BadParameter("a root has 64 hexadecimal digits", param_hint="--root")
    opened = open_patch(*patch) if patch else None
    with progress_bars() as bar, Checkpoint.open(state) as checkpoint:
        layout = checkpoint.state.layout
        found = state_root(
            checkpoint.state, threads=threads, progress=bar("reading", layout.weights)
        )

    result: dict[str, object] = {
        "state": str(state),
        "root": found.hex(),
        "layout": layout.id.hex(),
        "tensors": len(layout.tensors),
        "weights": layout.weights,
    }
    lines = [f"root   {found.hex()}", f"layout {layout.id.hex()}"]
    code = ExitCode.OK
    if root is not None:
        matches = found.hex() == root.lower()
        result["matches"] = matches
        lines.append(
            "the root matches"
            if matches
            else f"the root does not match: {root.lower()} was asked for"
        )
        code = ExitCode.OK if matches else ExitCode.MISMATCH
    if opened is not None:
        roles = [
            name for name, of in (("base", opened.base), ("target", opened.target)) if found == of
        ]
        result["is"] = roles
        lines.append(f"{state} is {' and '.join(roles) or 'neither base nor target'} of the patch")
        code = ExitCode.OK if roles else ExitCode.MISMATCH
    if as_json:
        print_json(result)
    else:
        typer.echo("\n".join(lines))
    raise typer.Exit(code)
