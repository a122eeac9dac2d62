"""Encoding: the same bytes on any machine, small, and the exact target again."""

from __future__ import annotations

import io
import shutil
from pathlib import Path

import numpy as np
import pytest

from pulsecast import kernels
from pulsecast.dtypes import by_name
from pulsecast.errors import FormatError, HeaderError, LayoutMismatchError, UnsupportedError
from pulsecast.patch import blockwork, digest
from pulsecast.patch import encode as module
from pulsecast.patch.boxes import Box
from pulsecast.patch.codecs import CODECS
from pulsecast.patch.decode import Patch, open_patch
from pulsecast.patch.encode import encode, encode_bytes
from pulsecast.patch.layout import Layout, TensorSpec
from pulsecast.patch.part import DENSE, SPARSE, UNCHANGED, Part
from pulsecast.patch.state import State
from pulsecast.patch.transaction import apply
from pulsecast.testing import synthetic
from tests.states import (
    MIXED,
    NAMES,
    change_state,
    changed_lanes,
    make_state,
    mixed_pair,
    same_bits,
)

codecs = pytest.mark.parametrize("codec", CODECS)


def require_target(old: State, new: State, *files: bytes) -> Patch:
    """Apply the parts to a copy of old; it must be new, bit for bit."""
    patch = Patch([Part(data) for data in files])
    state = old.copy()
    report = apply(patch, state)
    assert same_bits(state, new)
    assert report.target == patch.target == digest.state_root(new)
    assert report.base == digest.state_root(old)
    assert report.sums.tolist() == digest.tensor_sums(new).tolist()
    return patch


def modes(old: State, data: bytes) -> list[int]:
    return Part(data).bind(old.layout).modes


@codecs
@pytest.mark.parametrize("density", [0.0, 0.01, 0.3, 1.0])
def test_mixed_dtypes(codec: str, density: float, backend: str) -> None:
    old, new = mixed_pair(density)
    patch = require_target(old, new, encode_bytes(old, new, codec=codec))
    differing = sum(int((a != b).sum()) for a, b in zip(old.arrays, new.arrays, strict=True))
    assert patch.changes == differing


@codecs
@pytest.mark.parametrize("dtype", NAMES)
def test_every_dtype_alone(codec: str, dtype: str) -> None:
    old = make_state({"t": (dtype, (77, 13))})
    for density in (0.02, 0.6):
        new = change_state(old, density)
        require_target(old, new, encode_bytes(old, new, codec=codec))
        require_target(new, old, encode_bytes(new, old, codec=codec))


@codecs
def test_the_same_bytes_for_any_number_of_threads_and_both_backends(codec: str) -> None:
    old = make_state({**MIXED, "large": ("BF16", (3, 70_000))})
    new = change_state(old, 0.01)
    found = set()
    for name in ("reference", "native"):
        with kernels.use(name):
            threads = (1,) if name == "reference" else (1, 2, 3, 8)
            found |= {encode_bytes(old, new, codec=codec, threads=n) for n in threads}
    assert len(found) == 1


@codecs
def test_reports_tell_the_truth(codec: str, tmp_path: Path) -> None:
    old, new = mixed_pair()
    seen: list[int] = []
    report = encode(old, new, tmp_path / "p", codec=codec, progress=seen.append)
    data = (tmp_path / "p").read_bytes()
    assert report.file_bytes == len(data)
    assert report.header_bytes == 8 + int.from_bytes(data[:8], "little")
    assert report.weights == old.layout.weights == sum(seen)
    assert report.full_bytes == old.layout.nbytes
    assert report.changes == Part(data).header.changes
    assert report.density == report.changes / report.weights
    assert report.ratio_to_full == report.full_bytes / report.file_bytes
    assert report.bits_per_change == 8 * (len(data) - report.header_bytes) / report.changes
    assert report.codec == codec
    assert report.target_sums.tolist() == digest.tensor_sums(new).tolist()
    found = modes(old, data)
    assert report.blocks == {
        name: found.count(i) for i, name in enumerate(("unchanged", "sparse", "dense"))
    }
    assert data == encode_bytes(old, new, codec=codec)
    assert open_patch(tmp_path / "p").file_bytes == len(data)


@codecs
def test_known_sums_change_nothing(codec: str) -> None:
    old, new = mixed_pair()
    plain = encode_bytes(old, new, codec=codec)
    sums = {"base_sums": digest.tensor_sums(old), "target_sums": digest.tensor_sums(new)}
    assert encode_bytes(old, new, codec=codec, **sums) == plain


@codecs
def test_a_stream_and_a_path_get_the_same_bytes(codec: str, tmp_path: Path) -> None:
    old, new = mixed_pair()
    stream = io.BytesIO(b"before")
    stream.seek(6)
    encode(old, new, stream, codec=codec)
    encode(old, new, tmp_path / "p", codec=codec)
    assert stream.getvalue() == b"before" + (tmp_path / "p").read_bytes()


@codecs
def test_each_block_takes_its_smallest_mode(codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_block_log2", lambda *_: 16)
    old = make_state({"t": ("BF16", (5 * 65536,))})
    rng = np.random.default_rng(3)
    lanes = old.arrays[0].copy()
    lanes[65536 : 2 * 65536] = np.frombuffer(rng.bytes(2 * 65536), "<u2")  # all new: dense
    lanes[3 * 65536 : 4 * 65536] = changed_lanes(
        rng, by_name("BF16"), lanes[3 * 65536 : 4 * 65536], 600
    )
    new = State(old.layout, [lanes])
    data = encode_bytes(old, new, codec=codec)
    assert Part(data).header.block_log2 == 16
    assert modes(old, data) == [UNCHANGED, DENSE, UNCHANGED, SPARSE, UNCHANGED]
    require_target(old, new, data)


@codecs
def test_a_patch_is_never_much_larger_than_the_dense_tensors(codec: str) -> None:
    for dtype in ("BF16", "F8_E4M3", "F32", "F64"):
        old = make_state({"t": (dtype, (150_000,))})
        for density in (0.5, 1.0):
            rng = np.random.default_rng(5)
            lanes = old.arrays[0].copy()
            some = rng.random(len(lanes)) < density
            lanes[some] = np.frombuffer(rng.bytes(old.layout.nbytes), lanes.dtype)[some]
            new = State(old.layout, [lanes])
            data = encode_bytes(old, new, codec=codec)
            assert len(data) - Part(data).header_bytes <= 1.01 * old.layout.nbytes
            require_target(old, new, data)


def test_blocks_grow_when_changes_are_few() -> None:
    old = make_state({"t": ("BF16", (1 << 18,))})
    sizes = [
        Part(encode_bytes(old, change_state(old, density))).header.block_log2
        for density in (0.5, 0.02, 0.0001)
    ]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1]


@codecs
def test_equal_states_make_a_patch_without_blocks_payload(codec: str) -> None:
    old, _ = mixed_pair()
    data = encode_bytes(old, old.copy(), codec=codec)
    patch = require_target(old, old, data)
    assert patch.changes == 0
    assert patch.base == patch.target
    assert set(modes(old, data)) == {UNCHANGED}


@codecs
def test_one_change_in_every_possible_place(codec: str) -> None:
    old = make_state({"a": ("BF16", (5,)), "b": ("BF16", (2, 2)), "c": ("U8", (3,))})
    for tensor, lanes in enumerate(old.arrays):
        for place in range(len(lanes)):
            new = old.copy()
            new.arrays[tensor][place] ^= 1
            require_target(old, new, encode_bytes(old, new, codec=codec))


@codecs
@pytest.mark.parametrize(
    "shapes",
    [
        {},
        {"empty": ("BF16", (0,))},
        {"empty": ("BF16", (0, 3)), "too": ("F32", (4, 0))},
        {"scalar": ("F32", ())},
        {"one": ("F64", (1, 1, 1))},
        {"scalar": ("BF16", ()), "empty": ("BF16", (0,)), "one": ("BF16", (1,))},
        {"deep": ("I16", (1, 2) * 8)},
    ],
    ids=["no tensors", "empty", "two empty", "scalar", "one element", "tiny ones", "16 dimensions"],
)
def test_the_smallest_models(codec: str, shapes: dict, backend: str) -> None:
    old = make_state(shapes)
    for new in (old, change_state(old, 1.0)):
        require_target(old, new, encode_bytes(old, new, codec=codec))
        require_target(old, new, encode_bytes(old, new, codec=codec, embed_layout=True))


@codecs
def test_thousands_of_tiny_tensors(codec: str) -> None:
    kinds = ("BF16", "F32", "I64", "U8")
    shapes = {f"t{i:04}": (kinds[i % 4], (i % 3, i % 7)) for i in range(3000)}
    old = make_state(shapes)
    rng = np.random.default_rng(0)
    new = old.copy()
    for i in rng.choice(3000, 300, replace=False):
        if len(new.arrays[i]):
            new.arrays[i][0] ^= 1
    require_target(old, new, encode_bytes(old, new, codec=codec))


QUARTERS = [Box(0, (r, c), (35, n)) for r in (0, 35) for c, n in ((0, 16), (16, 17))]


@codecs
def test_parts_of_boxes_make_one_patch(codec: str, backend: str) -> None:
    old = make_state({"a": ("BF16", (70, 33)), "b": ("F32", (9, 8, 7)), "c": ("I64", ())})
    new = change_state(old, 0.1)
    groups = [
        [QUARTERS[0], QUARTERS[3], Box(2, (), ())],
        [QUARTERS[1], QUARTERS[2]],
        [Box(1, (0, 0, 0), (9, 3, 7)), Box(1, (0, 3, 0), (4, 5, 7)), Box(1, (4, 3, 0), (5, 5, 7))],
    ]
    files = [
        encode_bytes(old, new, codec=codec, boxes=boxes, part=(i, len(groups)))
        for i, boxes in enumerate(groups)
    ]
    require_target(old, new, *files)
    require_target(old, new, *reversed(files))
    with pytest.raises(HeaderError):
        Patch([Part(files[0]), Part(files[1])])
    with pytest.raises(HeaderError):
        Patch([Part(files[0]), Part(files[1]), Part(files[1])])


def test_parts_may_have_different_codecs() -> None:
    old = make_state({"a": ("BF16", (70, 33))})
    new = change_state(old, 0.1)
    files = [
        encode_bytes(old, new, codec=codec, boxes=boxes, part=(i, 3))
        for i, (codec, boxes) in enumerate(
            zip(CODECS, (QUARTERS[:1], QUARTERS[1:3], QUARTERS[3:]), strict=True)
        )
    ]
    assert require_target(old, new, *files).codecs == sorted(CODECS)


def test_a_part_of_another_patch_is_refused() -> None:
    old = make_state({"a": ("BF16", (70, 33))})
    one, two = change_state(old, 0.1, 1), change_state(old, 0.1, 2)
    first = encode_bytes(old, one, boxes=QUARTERS[:2], part=(0, 2))
    second = encode_bytes(old, two, boxes=QUARTERS[2:], part=(1, 2))
    with pytest.raises(HeaderError, match="another patch"):
        Patch([Part(first), Part(second)])


def test_parts_that_overlap_are_refused() -> None:
    old = make_state({"a": ("BF16", (70, 33))})
    new = change_state(old, 0.1)
    first = encode_bytes(old, new, boxes=QUARTERS[:3], part=(0, 2))
    second = encode_bytes(old, new, boxes=QUARTERS[2:], part=(1, 2))
    with pytest.raises(FormatError, match="overlap"):
        Patch([Part(first), Part(second)]).bind(old.layout)


def test_boxes_that_leave_changes_out_cannot_be_applied_alone() -> None:
    old = make_state({"a": ("BF16", (70, 33))})
    new = change_state(old, 0.5)
    patch = Patch([Part(encode_bytes(old, new, boxes=QUARTERS[:2]))])
    state = old.copy()
    with pytest.raises(Exception, match="restored"):
        apply(patch, state)
    assert same_bits(state, old)


@codecs
def test_chosen_tensors_only(codec: str, backend: str) -> None:
    old, new = mixed_pair(0.2)
    patch = Patch([Part(encode_bytes(old, new, codec=codec))])
    chosen = {"embed", "step", "mask"}
    found = {
        old.layout.tensors[change.tensor].name
        for block in patch.decode(old, chosen)
        for change in block
    }
    assert found == chosen
    state = old.copy()
    report = apply(patch, state, tensors=chosen)
    for tensor, was, now, target in zip(
        old.layout.tensors, old.arrays, state.arrays, new.arrays, strict=True
    ):
        assert now.tobytes() == (target if tensor.name in chosen else was).tobytes()
    assert report.target == digest.state_root(state)
    assert report.sums.tolist() == digest.tensor_sums(state).tolist()


@codecs
def test_decode_writes_nothing(codec: str) -> None:
    old, new = mixed_pair(0.2)
    state = old.copy()
    for array in state.arrays:
        array.flags.writeable = False
    blocks = list(Patch([Part(encode_bytes(old, new, codec=codec))]).decode(state))
    for block in blocks:
        for change in block:
            at = change.flat()
            assert (new.arrays[change.tensor][at] == change.new).all()
            assert (old.arrays[change.tensor][at] == change.old).all()
    assert same_bits(state, old)


def test_the_layout_travels_when_asked() -> None:
    old, new = mixed_pair()
    assert Patch([Part(encode_bytes(old, new))]).layout is None
    carried = Patch([Part(encode_bytes(old, new, embed_layout=True))]).layout
    assert carried is not None
    assert carried.id == old.layout.id
    assert carried.tensors == old.layout.tensors


def test_wrong_arguments_are_refused() -> None:
    old, new = mixed_pair()
    with pytest.raises(UnsupportedError, match="codec 'lzma'"):
        encode_bytes(old, new, codec="lzma")
    with pytest.raises(LayoutMismatchError):
        encode_bytes(old, make_state({"a": ("BF16", (3,))}))
    with pytest.raises(FormatError):
        encode_bytes(old, new, boxes=[Box(0, (0,), (10**9,))])


def test_tables_learnt_from_a_sample_still_code_every_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Blocks outside of the sample may hold tokens and classes that the tables have never seen."""
    monkeypatch.setattr(blockwork, "_SAMPLE_CHANGES", 1)
    monkeypatch.setattr(blockwork, "_SAMPLE_STEP", 1)
    layout = Layout([TensorSpec("t", by_name("BF16"), (4 * 65536,))])
    calm, wild = make_state({"t": ("BF16", (65536,))}), make_state({"t": ("BF16", (65536,))}, 9)
    old_lanes = np.concatenate([calm.arrays[0], *[wild.arrays[0]] * 3])
    rng = np.random.default_rng(0)
    new_lanes = old_lanes.copy()
    new_lanes[:65536:50] += np.uint16(1)
    new_lanes[65536::7] = np.frombuffer(rng.bytes(2 * len(new_lanes[65536::7])), "<u2")
    old, new = State(layout, [old_lanes]), State(layout, [new_lanes])
    for name in ("reference", "native"):
        with kernels.use(name):
            require_target(old, new, encode_bytes(old, new))


@pytest.mark.parametrize("part", [(2, 2), (-1, 2), (0, 0)])
def test_a_part_that_no_reader_would_take_is_refused(part: tuple[int, int]) -> None:
    state = State.of({"w": np.zeros(3, np.uint16)}, "BF16")
    with pytest.raises(HeaderError):
        encode_bytes(state, state, part=part)


def test_a_patch_appears_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = State.of({"w": np.zeros(5000, np.uint16)}, "BF16")
    new = State.of({"w": np.ones(5000, np.uint16)}, "BF16")
    out = tmp_path / "p.patch"
    out.write_bytes(b"before")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "copyfileobj", full)
        with pytest.raises(OSError, match="No space"):
            encode(old, new, out)
    assert out.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [out]
    encode(old, new, out)
    assert Part.open(out).header.changes == 5000


@pytest.mark.parametrize("density", [0.5, 1.0])
def test_incompressible_changes_cost_at_most_one_percent(density: float) -> None:
    old, _ = synthetic.adam_pair({"w": (1024, 1024)}, seed=3)
    new = synthetic.scramble(old, density, 4)
    assert len(encode_bytes(old, new)) <= 1.01 * old.layout.nbytes
