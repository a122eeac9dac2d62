"""The ``pulsecast`` command and its subcommands.

Only typer is imported here and in the commands' modules; what is heavy (numpy, the native core) is
imported inside the commands, so that ``pulsecast --help`` is quick.
"""

from __future__ import annotations

import signal
import sys
import traceback
from typing import Annotated, NoReturn

import typer

from pulsecast.cli.apply import apply
from pulsecast.cli.diff import diff
from pulsecast.cli.doctor import doctor
from pulsecast.cli.inspect import inspect
from pulsecast.cli.report import ExitCode
from pulsecast.cli.verify import verify

_EXIT_CODES = (
    "Exit codes: 0 done; 1 the states or the patch do not match; 2 wrong usage; 3 a damaged or "
    "hostile file; 4 a file cannot be read or written (not found, no space); 5 another process "
    "holds the checkpoint."
)

app = typer.Typer(
    name="pulsecast",
    help="Lossless patches between model checkpoints: only the bits that changed.",
    epilog=_EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (diff, apply, verify, inspect, doctor):
    app.command(epilog=_EXIT_CODES)(command)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"pulsecast {version('pulsecast')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    pass


def _terminate(signum: int, frame: object) -> NoReturn:
    # As an exception, so that unfinished files are removed on the way out.
    sys.exit(128 + signum)


def main() -> None:
    """Run the command line; the entry point of the ``pulsecast`` script."""
    signal.signal(signal.SIGTERM, _terminate)
    try:
        app(prog_name="pulsecast")
    except Exception:  # noqa: BLE001 - a bug; Python's own exit code 1 would mean "does not match"
        traceback.print_exc()
        sys.exit(ExitCode.BUG)
