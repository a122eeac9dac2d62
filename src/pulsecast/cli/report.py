"""How commands speak: results on stdout, the rest on stderr, errors as a line and an exit code."""

from __future__ import annotations

import enum
import errno
import functools
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, ParamSpec

import typer

from pulsecast import errors

P = ParamSpec("P")

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Threads = Annotated[
    int | None,
    typer.Option("--threads", min=1, help="Threads to use.", show_default="all cores"),
]
Advance = Callable[[int], None]


class ExitCode(enum.IntEnum):
    """What the shell is told (docs/cli.md)."""

    OK = 0
    MISMATCH = 1
    USAGE = 2
    DAMAGED = 3
    IO = 4
    BUSY = 5
    BUG = 70


def exit_code(error: Exception) -> ExitCode:
    """The exit code for an error that a command ends with."""
    if isinstance(error, errors.WrongBaseError | errors.LayoutMismatchError):
        return ExitCode.MISMATCH
    if isinstance(error, errors.BusyError):
        return ExitCode.BUSY
    if isinstance(error, OSError):
        return ExitCode.IO
    return ExitCode.DAMAGED


def reported(command: Callable[P, None]) -> Callable[P, None]:
    """Turn the errors that a command may meet into one line on stderr and an exit code."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except (errors.PulsecastError, OSError) as error:
            typer.echo(f"pulsecast: {_describe(error)}", err=True)
            raise typer.Exit(exit_code(error)) from error

    return run


def _describe(error: Exception) -> str:
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    hint = {
        errno.ENOENT: ": check the name",
        errno.ENOSPC: ": free some space or write to another disk",
        errno.EFBIG: ": the size of files is limited here (ulimit -f)",
        errno.EACCES: ": run as a user who may do this",
        errno.EROFS: ": write to another disk",
    }.get(error.errno or 0, "")
    where = f", {error.filename}" if error.filename else ""
    return f"{error.strerror}{where}{hint}"


def print_json(content: Mapping[str, object]) -> None:
    """Print one JSON object on stdout."""
    typer.echo(json.dumps(content, indent=2, ensure_ascii=False))


@contextmanager
def progress_bars() -> Iterator[Callable[[str, int], Advance]]:
    """Show bars on stderr if that is a terminal, otherwise nothing.

    Yields:
        A function that adds a bar, given what is being done and the number of steps to come. It
        gives the function to call with the number of steps done since the last call.
    """
    if not sys.stderr.isatty():
        yield lambda what, total: lambda steps: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:

        def add(what: str, total: int) -> Advance:
            return functools.partial(bars.advance, bars.add_task(what, total=total))

        yield add


def size_text(count: float) -> str:
    """A number of bytes in the unit that suits it."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.2f} {unit}"
        count /= 1000
    return f"{count:.2f} TB"
