import json
import struct
from pathlib import Path

import numpy as np
import pytest

from pulsecast.dtypes import by_name
from pulsecast.errors import FormatError, LayoutError
from pulsecast.patch.layout import Layout, TensorSpec
from pulsecast.patch.state import State
from pulsecast.testing import Trace, adam_pair, perturb, save_trace

EXCERPT = Path(__file__).parents[2] / "benchmarks" / "data"


def write(path: Path, tensors: dict[str, tuple[str, list[int], bytes]]) -> Path:
    header, body = {}, b""
    for name, (dtype, shape, data) in tensors.items():
        offsets = [len(body), len(body) + len(data)]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
        body += data
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)
    return path


def tiny() -> dict[str, tuple[str, list[int], bytes]]:
    return {
        "base/w": ("I16", [2, 2], struct.pack("<4h", 10, -11, 12, 13)),
        "step00/idx/w": ("I32", [2], struct.pack("<2i", 1, 3)),
        "step00/val/w": ("I16", [2], struct.pack("<2h", -21, 23)),
        "step01/idx/w": ("I32", [0], b""),
        "step01/val/w": ("I16", [0], b""),
    }


def test_steps_follow_on_each_other(tmp_path: Path) -> None:
    trace = Trace.open(write(tmp_path / "run.safetensors", tiny()))
    assert (trace.name, trace.names, trace.weights, len(trace)) == ("run", ["w"], 4, 2)
    assert trace.layout.tensors[0].shape == (2, 2)
    (a, b), (c, d) = list(trace)
    assert a.arrays[0].view(np.int16).tolist() == [10, -11, 12, 13]
    assert b.arrays[0].view(np.int16).tolist() == [10, -21, 12, 23]
    assert np.array_equal(b.arrays[0], c.arrays[0])
    assert np.array_equal(c.arrays[0], d.arrays[0])


def test_iterating_twice_gives_the_same(tmp_path: Path) -> None:
    trace = Trace.open(write(tmp_path / "run.safetensors", tiny()))
    next(iter(trace))[1].arrays[0][:] = 0
    assert next(iter(trace))[1].arrays[0].view(np.int16).tolist() == [10, -21, 12, 23]


def test_saved_states_come_back(tmp_path: Path) -> None:
    base, _ = adam_pair({"b": (30, 7), "a": (5,)})
    states = [base, perturb(base, 0.2, 1), perturb(base, 0.3, 2)]
    save_trace(tmp_path / "t.safetensors", states)
    pairs = list(Trace.open(tmp_path / "t.safetensors"))
    assert len(pairs) == 2
    for number, (old, new) in enumerate(pairs):
        for i in range(2):
            assert np.array_equal(old.arrays[i], states[number].arrays[i])
            assert np.array_equal(new.arrays[i], states[number + 1].arrays[i])


def test_saving_other_dtypes_is_refused(tmp_path: Path) -> None:
    layout = Layout([TensorSpec("w", by_name("F32"), (1,))])
    with pytest.raises(LayoutError, match="w is F32"):
        save_trace(tmp_path / "t", [State(layout, [np.zeros(1, np.uint32)])])


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        ("step00/idx/w", ("I32", [2], struct.pack("<2i", 3, 1))),
        ("step00/idx/w", ("I32", [2], struct.pack("<2i", 1, 1))),
        ("step00/idx/w", ("I32", [2], struct.pack("<2i", 1, 4))),
        ("step00/idx/w", ("I32", [2], struct.pack("<2i", -1, 1))),
        ("step00/idx/w", ("I32", [1], struct.pack("<i", 1))),
        ("step00/idx/w", ("I16", [2], struct.pack("<2h", 1, 3))),
        ("step00/val/w", ("I32", [2], struct.pack("<2i", 1, 3))),
        ("step07/idx/w", ("I32", [0], b"")),
        ("base/w", ("I16", [3, 2], struct.pack("<4h", 10, -11, 12, 13))),
        ("base/w", ("F8_E5M2", [4], b"abcd")),
    ],
)
def test_broken_traces_are_refused(
    tmp_path: Path, name: str, entry: tuple[str, list[int], bytes]
) -> None:
    with pytest.raises(FormatError):
        Trace.open(write(tmp_path / "t.safetensors", {**tiny(), name: entry}))


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "t.safetensors", tiny())
    data = path.read_bytes()
    for size in range(len(data)):
        path.write_bytes(data[:size])
        with pytest.raises(FormatError):
            Trace.open(path)


@pytest.mark.parametrize(("lr", "density"), [("1e-6", 0.003), ("3e-6", 0.01)])
def test_the_excerpt_has_the_density_of_its_run(lr: str, density: float) -> None:
    trace = Trace.open(EXCERPT / f"grpo-smollm2-lr{lr}.safetensors")
    assert len(trace) == 3
    for old, new in trace:
        count = sum(int((old.arrays[i] != new.arrays[i]).sum()) for i in range(len(trace.names)))
        assert count / trace.weights == pytest.approx(density, rel=0.1)
