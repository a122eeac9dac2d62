"""The arrows of the architecture, read from the imports of every module.

cli, adapters → pulsecast (the public names) → publisher, subscriber, link, loco, study
→ weights, chain → patch → kernels → dtypes → errors
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "pulsecast"

# A room may import itself and rooms on lower floors. "pulsecast" is __init__.py, the public names.
FLOOR = {
    "errors": 0,
    "dtypes": 1,
    "kernels": 2,
    "patch": 3,
    "weights": 4,
    "chain": 4,
    "testing": 4,  # shipped test tools: patch and below, and nobody imports them
    "publisher": 5,
    "subscriber": 5,
    "link": 5,
    "loco": 5,
    "study": 5,
    "pulsecast": 6,
    "cli": 7,
    "adapters": 7,
}
# The core knows no framework: beside the standard library these rooms import only what is listed.
ALLOWED = {
    "errors": set(),
    "dtypes": {"numpy"},
    "kernels": {"numpy"},
    "patch": {"numpy", "zstandard", "blake3"},
    "chain": {"numpy", "zstandard", "blake3", "obstore", "cryptography"},
}
FRAMEWORK_MODULES = {"kernels/gpu.py"}
MODULES = sorted(SOURCE.rglob("*.py"))


def room_of(parts: tuple[str, ...]) -> str:
    """The room of a module below pulsecast, `()` and names of no room being the package itself."""
    return parts[0] if parts and parts[0] in FLOOR else "pulsecast"


def own_parts(path: Path) -> tuple[str, ...]:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


def imports(path: Path, text: str) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Every import of a module, also inside functions, as (line, absolute dotted parts)."""
    inside = ("pulsecast", *own_parts(path))
    package = inside if path.name == "__init__.py" else inside[:-1]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, tuple(alias.name.split("."))
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = (*above, *(node.module.split(".") if node.module else ()))
            for alias in node.names:
                yield node.lineno, (*base, alias.name)


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_point_down(path: Path) -> None:
    own = own_parts(path)
    room = room_of(own)
    assert not own or own[0] in FLOOR, f"{own[0]} is no room of the design: give it a floor here"
    for line, target in imports(path, path.read_text(encoding="utf-8")):
        where = f"{path.relative_to(SOURCE)}:{line} imports {'.'.join(target)}"
        if target[0] == "pulsecast":
            other = room_of(target[1:])
            assert other == room or FLOOR[other] < FLOOR[room], f"{where}: the arrow points up"
            assert other == room or other != "testing", f"{where}: test tools are for users only"
        elif room in ALLOWED and str(path.relative_to(SOURCE)) not in FRAMEWORK_MODULES:
            known = target[0] in sys.stdlib_module_names or target[0] in ALLOWED[room]
            assert known, f"{where}: not allowed in {room}"


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_modules_hold_one_idea(path: Path) -> None:
    assert path.stem not in {"utils", "util", "common", "helpers", "misc"}
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 600, "split it"


def test_the_reader_of_imports_sees_every_form() -> None:
    text = (
        "import torch.nn\n"
        "from . import layout\n"
        "from ..errors import FormatError\n"
        "def f():\n"
        "    from pulsecast import cli\n"
    )
    assert [target for _, target in imports(SOURCE / "patch" / "example.py", text)] == [
        ("torch", "nn"),
        ("pulsecast", "patch", "layout"),
        ("pulsecast", "errors", "FormatError"),
        ("pulsecast", "cli"),
    ]


@pytest.mark.parametrize("statement", ["import pulsecast", "import pulsecast.cli"])
def test_import_is_quick_and_without_frameworks(statement: str) -> None:
    code = (
        "import sys, time; start = time.perf_counter()\n"
        f"{statement}\n"
        "heavy = {'torch', 'triton', 'transformers', 'safetensors'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "print(time.perf_counter() - start)"
    )
    run = [sys.executable, "-c", code]
    best = min(float(subprocess.run(run, capture_output=True, check=True).stdout) for _ in range(3))
    assert best < 0.5, f"{statement} takes {best:.2f} s"
