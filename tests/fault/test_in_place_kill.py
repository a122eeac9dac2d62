"""An apply in place that is killed: the next opening has exactly the base or exactly the target."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from pulsecast.cli import app
from tests.checkpoint_files import change, file_bytes, make_tensors, weights_of, write_folder

# The command itself, in a process that kills itself at a chosen moment. Nothing in the package
# knows of it.
CHILD = """
import os, signal, sys
moment, count = sys.argv[1], int(sys.argv[2])
from pulsecast.weights import fresh, journal, journal_file, mapped

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def before(owner, name):
    old = getattr(owner, name)
    left = [count]
    def replaced(*args, **kwargs):
        left[0] -= 1
        if left[0] < 0:
            die()
        return old(*args, **kwargs)
    setattr(owner, name, replaced)

def half_scattered(self):
    for number, change in enumerate(entries(self)):
        if number == count:
            lanes = self._checkpoint.state.arrays[change.tensor]
            half = (len(change.old) + 1) // 2
            lanes[change.flat()[:half]] = change.new[:half]
            die()
        yield change

journal_file.RECORD_MAX = 64   # more records, more moments to die
entries = journal.Journal.entries
if moment == "record":
    before(journal.Journal, "record")
elif moment == "finish":
    before(journal_file.JournalWriter, "finish")
elif moment == "rename":
    before(journal, "sync_path")
elif moment == "scatter":
    journal.Journal.entries = half_scattered
elif moment == "flush":
    before(mapped.MappedShards, "flush")
elif moment == "remove":
    before(journal.Journal, "_remove")
elif moment == "removed":
    before(journal, "sync_path")
from pulsecast.cli import app
app(sys.argv[3:])
"""


def pulsecast(*arguments: object) -> Result:
    """What comes before and after a kill, in this process: that is quicker."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(params=["folder", "file"])
def case(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Path, dict, dict]:
    """Checkpoint, patch, and the weight files of base and target."""
    tensors = make_tensors(rows=256)
    states = []
    for name, content in (("base", tensors), ("target", change(tensors, 0.05))):
        path = tmp_path / name
        if request.param == "folder":
            write_folder(path, content)
        else:
            path = path / "model.safetensors"
            path.parent.mkdir()
            path.write_bytes(file_bytes(content, pad=5))
        states.append(path)
    patch = tmp_path / "step.patch"
    made = pulsecast("diff", *states, "-o", patch, "--codec", "raw")
    assert made.exit_code == 0, made.stderr
    return states[0], patch, weights_of(states[0]), weights_of(states[1])


def require_whole(case: tuple[Path, Path, dict, dict], roles: set[str]) -> str:
    """Opens the checkpoint as a user would; it must be one of the states, with no journal left."""
    path, patch, base, target = case
    verified = pulsecast("verify", path, patch, "--json")
    assert verified.exit_code == 0, verified.stderr
    (role,) = json.loads(verified.stdout)["is"]
    assert role in roles
    assert weights_of(path) == {"base": base, "target": target}[role]
    folder = path if path.is_dir() else path.parent
    assert not [p.name for p in folder.iterdir() if "journal" in p.name]
    return str(role)


@pytest.mark.parametrize(
    ("moment", "count", "role"),
    [
        ("record", 0, "base"),
        ("record", 2, "base"),
        ("finish", 0, "base"),
        ("rename", 0, "base"),
        ("scatter", 0, "base"),
        ("scatter", 1, "base"),
        ("scatter", 5, "base"),
        ("scatter", 20, "base"),
        ("flush", 0, "base"),
        ("remove", 0, "base"),
        ("removed", 1, "target"),
    ],
)
def test_killed_at_a_moment(
    case: tuple[Path, Path, dict, dict], moment: str, count: int, role: str
) -> None:
    path, patch, base, _ = case
    arguments = ["apply", str(path), str(patch), "--in-place"]
    child = subprocess.run(
        [sys.executable, "-c", CHILD, moment, str(count), *arguments],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert child.returncode == -signal.SIGKILL, child.stderr
    if moment == "scatter":
        assert weights_of(path) != base, "killed too early to show anything"
    require_whole(case, {role})
    # And it can be done again, to the end.
    if role == "base":
        again = pulsecast(*arguments)
        assert again.exit_code == 0, again.stderr
        require_whole(case, {"target"})


def test_killed_twice_while_rolling_back(case: tuple[Path, Path, dict, dict]) -> None:
    path, patch, *_ = case
    for moment, count, command in (
        ("scatter", 5, ["apply", path, patch, "--in-place"]),
        ("flush", 0, ["verify", path]),
        ("flush", 0, ["verify", path]),
    ):
        child = subprocess.run(
            [sys.executable, "-c", CHILD, moment, str(count), *map(str, command)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert child.returncode == -signal.SIGKILL, child.stderr
    require_whole(case, {"base"})


def test_killed_at_any_time(tmp_path: Path) -> None:
    """Real kills at random times of an unchanged process."""
    rng = random.Random(7)
    tensors = {f"w{i}": ("BF16", (1 << 20,), rng.randbytes(2 << 20)) for i in range(6)}
    target = change(tensors, 0.05)
    path = write_folder(tmp_path / "base", tensors)
    goal = write_folder(tmp_path / "target", target)
    patch = tmp_path / "step.patch"
    assert pulsecast("diff", path, goal, "-o", patch, "--codec", "raw").exit_code == 0
    case = (path, patch, weights_of(path), weights_of(goal))
    reverse = tmp_path / "back.patch"
    assert pulsecast("diff", goal, path, "-o", reverse, "--codec", "raw").exit_code == 0
    command = [sys.executable, "-m", "pulsecast.cli", "apply", str(path), str(patch), "--in-place"]
    began = time.monotonic()
    assert subprocess.run(command, check=False, capture_output=True).returncode == 0
    whole = time.monotonic() - began
    role = require_whole(case, {"target"})
    for _ in range(12):
        if role == "target":
            assert pulsecast("apply", path, reverse, "--in-place").exit_code == 0
        with subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as child:
            time.sleep(whole * rng.uniform(0.2, 1.0))
            child.kill()
        role = require_whole(case, {"base", "target"})


@pytest.mark.parametrize("in_place", [True, False])
def test_no_room_leaves_the_base(
    case: tuple[Path, Path, dict, dict], tmp_path: Path, in_place: bool
) -> None:
    path, patch, base, _ = case
    out = tmp_path / "out.safetensors"
    how = ["--in-place"] if in_place else ["-o", str(out)]
    limited = subprocess.run(
        [sys.executable, "-m", "pulsecast.cli", "apply", str(path), str(patch), *how],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000)),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert limited.returncode == 4, limited.stderr
    assert "limited" in limited.stderr
    assert len(limited.stderr.splitlines()) == 1
    assert weights_of(path) == base
    assert not [p for p in tmp_path.rglob("*") if "journal" in p.name or "partial" in p.name]
    assert not out.exists()
    require_whole(case, {"base"})


@pytest.mark.skipif(not os.access("/dev/full", os.W_OK), reason="needs /dev/full")
def test_a_full_disk_while_printing_is_an_error_too(case: tuple[Path, Path, dict, dict]) -> None:
    path, patch, *_ = case
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "pulsecast.cli", "verify", str(path), str(patch)]
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert ended.returncode == 4
    assert "Traceback" not in ended.stderr
