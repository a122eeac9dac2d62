"""The command line: what it prints, what it writes, how it ends."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from pulsecast.cli import app
from pulsecast.patch.boxes import BoxMap
from pulsecast.patch.encode import encode
from pulsecast.weights import Checkpoint
from tests.checkpoint_files import change, file_bytes, make_tensors, weights_of, write_folder

CODECS = ["raw", "pulse", "weightwise"]


def pulsecast(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def process(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pulsecast.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    tensors = make_tensors()
    old = write_folder(tmp_path / "old", tensors)
    new = write_folder(tmp_path / "new", change(tensors))
    return old, new


@pytest.fixture
def patch(pair: tuple[Path, Path], tmp_path: Path) -> Path:
    made = pulsecast("diff", *pair, "-o", tmp_path / "step.patch")
    assert made.exit_code == 0, made.output
    return tmp_path / "step.patch"


def require_error(result: Result, code: int, words: str) -> None:
    assert result.exit_code == code, result.output
    assert re.search(words, result.stderr), result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert result.stdout == ""


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("how", ["copy", "in place"])
def test_diff_and_apply_are_exact(
    pair: tuple[Path, Path], tmp_path: Path, codec: str, how: str
) -> None:
    old, new = pair
    target = weights_of(new)
    patch = tmp_path / "step.patch"
    assert pulsecast("diff", old, new, "-o", patch, "--codec", codec).exit_code == 0
    out = old if how == "in place" else tmp_path / "out"
    where = ["--in-place"] if how == "in place" else ["-o", out]
    applied = pulsecast("apply", old, patch, *where)
    assert applied.exit_code == 0, applied.output
    assert weights_of(out) == target
    assert not list(tmp_path.rglob(".*"))


def test_a_folder_and_a_file_of_the_same_tensors_share_patches(
    pair: tuple[Path, Path], patch: Path, tmp_path: Path
) -> None:
    single = tmp_path / "single.safetensors"
    single.write_bytes(file_bytes(make_tensors(), pad=3))
    assert pulsecast("apply", single, patch, "-o", tmp_path / "out.safetensors").exit_code == 0
    assert (tmp_path / "out.safetensors").read_bytes() == file_bytes(change(make_tensors()), pad=3)


def test_json_is_one_object(pair: tuple[Path, Path], tmp_path: Path) -> None:
    old, new = pair
    patch, out = tmp_path / "p", tmp_path / "out"
    diffed = json.loads(pulsecast("diff", old, new, "-o", patch, "--json").stdout)
    assert diffed["bytes"] == patch.stat().st_size
    assert 0 < diffed["changes"] < diffed["weights"]
    applied = json.loads(pulsecast("apply", old, patch, "-o", out, "--json").stdout)
    assert applied["changes"] == diffed["changes"]
    assert applied["target"] == diffed["target"]
    verified = json.loads(pulsecast("verify", out, "--json").stdout)
    assert verified["root"] == diffed["target"]
    assert verified["weights"] == diffed["weights"]
    inspected = json.loads(pulsecast("inspect", patch, "--json").stdout)
    assert inspected["changes"] == diffed["changes"]
    doctor = json.loads(pulsecast("doctor", "--json").stdout)
    assert doctor["backend"] in ("native", "reference")


def test_verify_tells_base_target_and_neither(
    pair: tuple[Path, Path], patch: Path, tmp_path: Path
) -> None:
    old, new = pair
    other = write_folder(tmp_path / "other", make_tensors(5))
    for state, role, code in ((old, ["base"], 0), (new, ["target"], 0), (other, [], 1)):
        result = pulsecast("verify", state, patch, "--json")
        assert result.exit_code == code
        assert json.loads(result.stdout)["is"] == role
    assert "neither base nor target" in pulsecast("verify", other, patch).stdout


def test_verify_compares_a_root(pair: tuple[Path, Path]) -> None:
    old, new = pair
    root = json.loads(pulsecast("verify", old, "--json").stdout)["root"]
    assert pulsecast("verify", old, "--root", root).exit_code == 0
    assert pulsecast("verify", old, "--root", root.upper()).exit_code == 0
    assert pulsecast("verify", new, "--root", root).exit_code == 1
    assert pulsecast("verify", new, "--root", root[:-1]).exit_code == 2


def test_states_that_do_not_match_end_with_1(
    pair: tuple[Path, Path], patch: Path, tmp_path: Path
) -> None:
    old, new = pair
    out = tmp_path / "out"
    require_error(pulsecast("apply", new, patch, "-o", out), 1, "needs base")
    other = tmp_path / "other.safetensors"
    other.write_bytes(file_bytes({"w": ("BF16", (2,), b"abcd")}))
    require_error(pulsecast("apply", other, patch, "-o", out), 1, "model.embed.weight|tensor")
    require_error(pulsecast("apply", other, patch, "--in-place"), 1, "model.embed.weight|tensor")
    require_error(pulsecast("diff", old, other, "-o", out), 1, "model.embed.weight|tensor")
    assert not out.exists()


def test_applying_again_in_place_changes_nothing(pair: tuple[Path, Path], patch: Path) -> None:
    old, new = pair
    for already in (False, True):
        result = pulsecast("apply", old, patch, "--in-place", "--json")
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout)["already"] is already
        assert weights_of(old) == weights_of(new)


def test_wrong_usage_ends_with_2(pair: tuple[Path, Path], patch: Path, tmp_path: Path) -> None:
    old, new = pair
    for arguments in (
        ["apply", old, patch],
        ["apply", old, patch, "--in-place", "-o", tmp_path / "out"],
        ["apply", old],
        ["diff", old, new],
        ["diff", old, new, "-o", tmp_path / "x", "--codec", "zip"],
        ["diff", old, new, "-o", tmp_path / "x", "--threads", "0"],
        ["verify", old, patch, "--root", "0" * 64],
        ["frobnicate"],
    ):
        assert pulsecast(*arguments).exit_code == 2, arguments


def test_damaged_files_end_with_3(pair: tuple[Path, Path], patch: Path, tmp_path: Path) -> None:
    old, _ = pair
    content = patch.read_bytes()
    bad = tmp_path / "bad.patch"
    before = weights_of(old)
    for damaged in (
        b"",
        content[:-1],
        content[:100],
        content[:-9] + bytes([content[-9] ^ 1]) + content[-8:],
    ):
        bad.write_bytes(damaged)
        require_error(pulsecast("apply", old, bad, "-o", tmp_path / "out"), 3, ".")
        require_error(pulsecast("apply", old, bad, "--in-place"), 3, ".")
        assert pulsecast("inspect", bad).exit_code == 3
    assert weights_of(old) == before
    assert not (tmp_path / "out").exists()
    (old / "model-00001-of-00002.safetensors").write_bytes(b"\xff" * 50)
    require_error(pulsecast("verify", old), 3, "model-00001-of-00002")


def test_a_patch_is_not_a_checkpoint_nor_the_other_way_round(
    pair: tuple[Path, Path], patch: Path
) -> None:
    old, _ = pair
    require_error(pulsecast("verify", patch), 3, "is a patch")
    shard = old / "model-00001-of-00002.safetensors"
    require_error(pulsecast("inspect", shard), 3, ".")


def test_what_cannot_be_read_or_written_ends_with_4(
    pair: tuple[Path, Path], patch: Path, tmp_path: Path
) -> None:
    old, new = pair
    require_error(pulsecast("verify", tmp_path / "nothing"), 4, "nothing: check the name")
    require_error(pulsecast("inspect", tmp_path / "nothing"), 4, "nothing: check the name")
    require_error(pulsecast("diff", old, new, "-o", tmp_path / "no" / "p"), 4, "no")


def test_outputs_are_not_overwritten(pair: tuple[Path, Path], patch: Path) -> None:
    old, new = pair
    before = patch.read_bytes(), weights_of(new)
    require_error(pulsecast("diff", old, new, "-o", patch), 4, "exists already")
    require_error(pulsecast("apply", old, patch, "-o", new), 4, "exists already")
    assert (patch.read_bytes(), weights_of(new)) == before


def test_a_checkpoint_in_use_ends_with_5(pair: tuple[Path, Path], patch: Path) -> None:
    old, _ = pair
    with Checkpoint.open(old):
        require_error(pulsecast("apply", old, patch, "--in-place"), 5, "another process uses")
        assert pulsecast("verify", old).exit_code == 0
    with Checkpoint.open(old, writable=True):
        require_error(pulsecast("verify", old), 5, "another process is changing")


@pytest.mark.parametrize("codec", CODECS)
def test_inspect_counts_the_changes(pair: tuple[Path, Path], tmp_path: Path, codec: str) -> None:
    old, new = pair
    patch = tmp_path / "p"
    pulsecast("diff", old, new, "-o", patch, "--codec", codec)
    found = json.loads(pulsecast("inspect", patch, "--json").stdout)
    assert found["codecs"] == [codec]
    before, after = make_tensors(), change(make_tensors())
    sizes = {"BF16": 2, "F32": 4, "F8_E4M3": 1, "I64": 8}
    for tensor in found["tensors"]:
        dtype, _, data = before[tensor["name"]]
        width = sizes[dtype]
        other = after[tensor["name"]][2]
        count = sum(data[i : i + width] != other[i : i + width] for i in range(0, len(data), width))
        assert tensor["changes"] == count
    with_base = json.loads(pulsecast("inspect", patch, "--base", old, "--json").stdout)
    counted = sum(entry["changes"] for entry in with_base["ulp"])
    assert counted == found["changes"] == sum(t["changes"] for t in found["tensors"])
    if codec == "weightwise" and found["blocks"]["dense"] == 0:
        assert found["ulp"] == with_base["ulp"]
    text = pulsecast("inspect", patch, "--base", old).stdout
    assert "model.embed.weight" in text
    wrong = pulsecast("inspect", patch, "--base", new)
    require_error(wrong, 1, "needs base")


def test_doctor_says_whether_the_core_is_native() -> None:
    told = process("doctor").stdout
    assert "native core:" in told
    without = subprocess.run(
        [sys.executable, "-m", "pulsecast.cli", "doctor"],
        env={**os.environ, "PULSECAST_DISABLE_NATIVE": "1"}, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert "native core: NO" in without.stdout
    assert "PULSECAST_DISABLE_NATIVE" in without.stdout


def test_help_is_quick_and_loads_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from pulsecast.cli import app\n"
        "try: app(['--help'])\n"
        "finally: print(sorted(sys.modules.keys() & {'torch', 'triton', 'transformers'}))"
    )
    quickest = 9.0  # the machine may be busy: the best of a few counts
    for _ in range(6):
        began = time.monotonic()
        ended = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False
        )
        quickest = min(quickest, time.monotonic() - began)
    assert ended.stdout.rstrip().endswith("[]")
    assert "Exit codes" in ended.stdout
    assert quickest < 0.5


def test_errors_are_one_line_in_a_real_process(tmp_path: Path) -> None:
    ended = process("verify", tmp_path / "nothing")
    assert ended.returncode == 4
    assert ended.stdout == ""
    assert (
        ended.stderr
        == f"pulsecast: No such file or directory, {tmp_path / 'nothing'}: check the name\n"
    )


def test_termination_removes_what_was_begun(pair: tuple[Path, Path], tmp_path: Path) -> None:
    old, new = pair
    code = (
        "import os, signal\n"
        "from pulsecast.patch import encode\n"
        "def stopped(*args, **kwargs):\n"
        "    args[2].write_bytes(b'half')\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "encode.encode = stopped\n"
        "import sys; sys.argv[0] = 'pulsecast'\n"
        "from pulsecast.cli import main\n"
        "main()"
    )
    command = [sys.executable, "-c", code, "diff", str(old), str(new), "-o", str(tmp_path / "p")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 143, ended.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["new", "old"]


@pytest.mark.parametrize("command", ["diff", "apply", "verify", "inspect", "doctor"])
def test_every_command_documents_its_exit_codes(command: str) -> None:
    told = pulsecast(command, "--help").stdout
    assert "Exit codes" in told
    assert "--json" in told


def test_bars_go_to_a_terminal_on_stderr_only(pair: tuple[Path, Path], tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "pulsecast.cli", "diff", *pair, "-o", tmp_path / "p", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs) as child:
        os.close(theirs)
        assert child.stdout is not None
        told = child.stdout.read()
        shown = os.read(ours, 100_000)
    os.close(ours)
    assert child.returncode == 0
    assert json.loads(told)["changes"] > 0
    assert b"comparing" in shown
    assert process("diff", *pair, "-o", tmp_path / "q").stderr == ""


def test_a_patch_of_several_parts(pair: tuple[Path, Path], tmp_path: Path) -> None:
    old, new = pair
    parts = [tmp_path / "0.patch", tmp_path / "1.patch"]
    with Checkpoint.open(old) as base, Checkpoint.open(new) as target:
        whole = BoxMap(base.state.layout, None, 20).boxes
        for i, part in enumerate(parts):
            encode(base.state, target.state, part, boxes=whole[i::2], part=(i, 2), codec="raw")
    require_error(pulsecast("apply", old, parts[0], "-o", tmp_path / "out"), 3, "2 parts")
    assert pulsecast("apply", old, *parts, "-o", tmp_path / "out").exit_code == 0
    assert weights_of(tmp_path / "out") == weights_of(new)
    # These carry no layout: without the base only the headers can be shown.
    assert json.loads(pulsecast("inspect", *parts, "--json").stdout)["weights"] is None
    assert pulsecast("inspect", *parts).exit_code == 0
    with_base = json.loads(pulsecast("inspect", *parts, "--base", old, "--json").stdout)
    assert sum(tensor["changes"] for tensor in with_base["tensors"]) == with_base["changes"]


def test_a_bug_is_not_taken_for_a_mismatch(pair: tuple[Path, Path]) -> None:
    code = (
        "from pulsecast.patch import digest\n"
        "digest.state_root = None\n"
        "from pulsecast.cli import main\n"
        "main()"
    )
    command = [sys.executable, "-c", code, "verify", str(pair[0])]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 70
    assert "TypeError" in ended.stderr
