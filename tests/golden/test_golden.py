"""Golden patches, written by scripts/make-golden: every release must decode them to the same bits.

The bytes of a patch are not compared with what the encoder writes today: encoders may improve.
"""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from pulsecast.dtypes import Lanes, by_name
from pulsecast.patch.decode import open_patch
from pulsecast.patch.digest import state_root
from pulsecast.patch.layout import Layout, TensorSpec
from pulsecast.patch.state import State
from pulsecast.patch.transaction import apply
from tests.states import same_bits

HERE = Path(__file__).parent
EXPECTED = json.loads((HERE / "expected.json").read_text())


def lanes_of(tensor: dict) -> tuple[Lanes, Lanes]:
    """The base and the target of a tensor, as expected.json says."""
    dtype = by_name(tensor["dtype"]).lane
    if tensor["base"] == "pattern":
        numbers = np.arange(tensor["shape"][0], dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        before = (numbers >> np.uint64(56)).astype(np.uint8)
    else:
        before = np.frombuffer(base64.b64decode(tensor["base"]), dtype)
    after = before.copy()
    places = np.frombuffer(base64.b64decode(tensor["places"]), "<u4")
    after[places] = np.frombuffer(base64.b64decode(tensor["target"]), dtype)
    return before.copy(), after


def states_of(case: dict) -> tuple[State, State]:
    layout = Layout(
        [TensorSpec(t["name"], by_name(t["dtype"]), tuple(t["shape"])) for t in case["tensors"]]
    )
    assert [t.name for t in layout.tensors] == [t["name"] for t in case["tensors"]]
    lanes = [lanes_of(t) for t in case["tensors"]]
    return State(layout, [a for a, _ in lanes]), State(layout, [b for _, b in lanes])


def test_no_file_is_missing_or_new() -> None:
    listed = {file for case in EXPECTED.values() for file in case["files"]}
    assert {str(p.relative_to(HERE)) for p in HERE.glob("v*/*")} == listed


@pytest.mark.parametrize("name", EXPECTED)
def test_the_files_are_the_published_ones(name: str) -> None:
    for file, digest in EXPECTED[name]["files"].items():
        assert hashlib.sha256((HERE / file).read_bytes()).hexdigest() == digest


@pytest.mark.parametrize("name", EXPECTED)
def test_decoding_gives_the_frozen_bits(name: str, backend: str) -> None:
    case = EXPECTED[name]
    old, new = states_of(case)
    assert old.layout.id.hex() == case["layout"]
    assert state_root(old).hex() == case["base"]
    assert state_root(new).hex() == case["target"]
    patch = open_patch(*(HERE / file for file in case["files"]))
    assert patch.base.hex() == case["base"]
    assert patch.target.hex() == case["target"]
    assert patch.codecs == [case["codec"]]
    places = (base64.b64decode(t["places"]) for t in case["tensors"])
    assert patch.changes == sum(len(p) // 4 for p in places)
    report = apply(patch, old)
    assert same_bits(old, new)
    assert report.target.hex() == case["target"]
