"""``pulsecast doctor``: says what this installation can do, and how to mend what it cannot."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

import typer

from pulsecast.cli.report import Json, print_json, reported

_PACKAGES = ("pulsecast", "numpy", "blake3", "zstandard", "typer", "rich")
_FIX = (
    "to mend it: get a C++17 compiler (Debian: apt install g++, macOS: xcode-select --install),\n"
    "then install pulsecast again:\n"
    "    PULSECAST_REQUIRE_NATIVE=1 pip install --force-reinstall --no-binary pulsecast pulsecast\n"
    "which tells what is missing if the core cannot be built."
)


@reported
def doctor(as_json: Json = False) -> None:
    """Show whether the native core is in use, and the versions that matter for a bug report."""
    from pulsecast import kernels
    from pulsecast.patch.parallel import cores

    status = kernels.status()
    native = status.backend == "native"
    usable = cores()
    versions = {name: _version(name) for name in _PACKAGES}
    if as_json:
        print_json(
            {
                "native": native,
                "backend": status.backend,
                "simd": status.simd,
                "reason": status.reason,
                "library": status.library,
                "cores": usable,
                "python": platform.python_version(),
                "machine": platform.machine(),
                "system": platform.platform(),
                "versions": versions,
            }
        )
        return
    if native:
        typer.echo(f"native core: yes, with {status.simd} ({status.library})")
    else:
        typer.echo("native core: NO, the numpy reference is used: same results, many times slower")
        typer.echo(f"{status.reason}\n{_FIX}")
    typer.echo(f"cores:       {usable} usable by this process")
    typer.echo(f"python:      {platform.python_version()} on {platform.platform()}")
    typer.echo("packages:    " + ", ".join(f"{name} {found}" for name, found in versions.items()))


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
