"""The command line: one file per command."""

from pulsecast.cli.app import app, main

__all__ = ["app", "main"]
