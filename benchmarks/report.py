"""Records as JSON or as tables, with the machine they were measured on."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

Record = dict[str, Any]
_WIDTH = 120
_BUSY = 0.5
_PACKAGES = ("pulsecast", "numpy", "zstandard", "torch", "fireworks-delta-compression")


def progress(text: str) -> None:
    """A line to stderr: stdout belongs to the results."""
    print(text, file=sys.stderr, flush=True)


def warn_if_busy() -> None:
    """Says so when other work on the machine will spoil the times."""
    load = os.getloadavg()[0]
    if load > _BUSY:
        progress(f"the machine is busy (load {load:.1f}): times will be too long")


def environment() -> Record:
    """What a number depends on besides the code: machine, versions, commit."""
    return {"machine": _machine(), "versions": _versions(), "commit": _commit()}


def print_json(records: Sequence[Record]) -> None:
    """Prints a list of records, each with its environment, and nothing else."""
    shared = environment()
    print(json.dumps([{**record, **shared} for record in records], indent=1))


def print_tables(
    records: Sequence[Record], *, by: str, columns: Mapping[str, str], caption: str
) -> None:
    """Prints one table for each value of the field `by`.

    Args:
        records: What was measured.
        by: The field that splits the records; its value is the title.
        columns: Field to format, in order; an empty format is for text.
        caption: What the numbers mean.
    """
    console = Console()
    console.width = max(console.width, _WIDTH)  # a pipe has no width, and names must stay whole
    where = environment()
    for title in dict.fromkeys(record[by] for record in records):
        table = Table(title=str(title), caption=caption)
        for field, form in columns.items():
            table.add_column(field.replace("_", " "), justify="right" if form else "left")
        for record in records:
            if record[by] == title:
                table.add_row(*(_cell(record.get(field), form) for field, form in columns.items()))
        console.print(table)
    versions = ", ".join(f"{name} {version}" for name, version in where["versions"].items())
    console.print(f"{where['machine']}; {versions}; commit {where['commit']}", soft_wrap=True)


def _cell(value: Any, form: str) -> str:
    if value is None:
        return "–"
    return format(value, form) if form else str(value)


def _machine() -> str:
    return (
        f"{_cpu()}, {len(os.sched_getaffinity(0))} cores, {platform.system()} {platform.machine()}"
    )


def _cpu() -> str:
    try:
        lines = subprocess.run(
            ["lscpu"], capture_output=True, text=True, check=True, env={**os.environ, "LC_ALL": "C"}
        ).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        return platform.processor() or "unknown CPU"
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("Model name:")]
    return names[0] if names else "unknown CPU"


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def _commit() -> str:
    try:
        return subprocess.run(
            ["git", "describe", "--always", "--dirty", "--exclude=*"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
