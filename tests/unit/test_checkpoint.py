"""Checkpoints: what is opened, what is refused, and copies that appear whole or not at all."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest

from pulsecast.errors import (
    BusyError,
    CheckpointError,
    FormatError,
    HeaderError,
    LayoutError,
    PulsecastError,
)
from pulsecast.weights import Checkpoint, fresh
from tests.checkpoint_files import file_bytes, make_tensors, weights_of, write_folder

SHARD = "model-00001-of-00002.safetensors"


@pytest.mark.parametrize("pad", range(8))
def test_a_file_opens_as_its_bits_at_any_alignment(tmp_path: Path, pad: int) -> None:
    tensors = make_tensors()
    path = tmp_path / "model.safetensors"
    path.write_bytes(file_bytes(tensors, pad=pad))
    with Checkpoint.open(path) as checkpoint:
        layout = checkpoint.state.layout
        assert [spec.name for spec in layout.tensors] == sorted(tensors)
        for i, spec in enumerate(layout.tensors):
            dtype, shape, data = tensors[spec.name]
            assert (spec.dtype.name, spec.shape) == (dtype, shape)
            assert checkpoint.state.arrays[i].tobytes() == data
        assert checkpoint.files == (path,)
        assert checkpoint.nbytes == path.stat().st_size


@pytest.mark.parametrize("index", [True, False])
def test_a_folder_has_the_layout_of_the_same_tensors_in_one_file(
    tmp_path: Path, index: bool
) -> None:
    tensors = make_tensors()
    folder = write_folder(tmp_path / "folder", tensors, index=index)
    single = tmp_path / "single.safetensors"
    single.write_bytes(file_bytes(tensors))
    with Checkpoint.open(folder) as many, Checkpoint.open(single) as one:
        assert many.state.layout.id == one.state.layout.id
        for i in range(len(tensors)):
            assert np.array_equal(many.state.arrays[i], one.state.arrays[i])


def test_model_safetensors_is_the_checkpoint_of_a_folder_without_index(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(file_bytes(make_tensors()))
    (tmp_path / "adapter.safetensors").write_bytes(file_bytes(make_tensors(3)))
    with Checkpoint.open(tmp_path) as checkpoint:
        assert [file.name for file in checkpoint.files] == ["model.safetensors"]


def test_writing_to_a_writable_state_changes_the_file(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(file_bytes({"w": ("BF16", (4,), bytes(8))}, pad=1))
    with Checkpoint.open(path, writable=True) as checkpoint:
        checkpoint.state.arrays[0][2] = 0xABCD
        checkpoint.flush()
    assert path.read_bytes().endswith(b"\x00\x00\x00\x00\xcd\xab\x00\x00")
    with Checkpoint.open(path) as checkpoint, pytest.raises(ValueError, match="read-only"):
        checkpoint.state.arrays[0][2] = 1


@pytest.mark.parametrize(
    "name",
    [
        "../out.safetensors",
        "/etc/out.safetensors",
        "sub/out.safetensors",
        "..\\out.safetensors",
        "c:out.safetensors",
        ".hidden.safetensors",
        "model.bin",
        "..",
        "",
        "a\x00.safetensors",
        "a\n.safetensors",
        7,
        None,
        ["x.safetensors"],
    ],
)
def test_an_index_cannot_name_a_file_outside_the_folder(tmp_path: Path, name: object) -> None:
    folder = write_folder(tmp_path / "a" / "b", make_tensors())
    outside = file_bytes({"w": ("U8", (1,), b"x")})
    (tmp_path / "a" / "out.safetensors").write_bytes(outside)
    index = folder / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["w"] = name
    index.write_text(json.dumps(content))
    with pytest.raises(HeaderError, match="not the name of a"):
        Checkpoint.open(folder)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"weight_map": []}',
        '{"weight_map": {}}',
        "{" * 100_000,
        '{"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}}',
        "\ud800".encode("utf-8", "surrogatepass").decode("latin-1"),
    ],
)
def test_a_malformed_index_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text, encoding="latin-1")
    with pytest.raises(HeaderError, match="the index"):
        Checkpoint.open(tmp_path)


def _edit_index(folder: Path, **changes: str | None) -> None:
    index = folder / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    for tensor, shard in changes.items():
        if shard is None:
            del content["weight_map"][tensor.replace("__", ".")]
        else:
            content["weight_map"][tensor.replace("__", ".")] = shard
    index.write_text(json.dumps(content))


def test_index_and_shards_must_agree(tmp_path: Path) -> None:
    tensors = make_tensors()
    _edit_index(write_folder(tmp_path / "missing", tensors), ghost=SHARD)
    with pytest.raises(LayoutError, match="'ghost'"):
        Checkpoint.open(tmp_path / "missing")
    _edit_index(write_folder(tmp_path / "extra", tensors), model__step=None)
    with pytest.raises(LayoutError, match=r"'model\.step'"):
        Checkpoint.open(tmp_path / "extra")
    _edit_index(
        write_folder(tmp_path / "moved", tensors),
        model__embed__weight="model-00002-of-00002.safetensors",
    )
    with pytest.raises(LayoutError, match="does not put"):
        Checkpoint.open(tmp_path / "moved")
    _edit_index(write_folder(tmp_path / "gone", tensors), ghost="gone.safetensors")
    with pytest.raises(FileNotFoundError):
        Checkpoint.open(tmp_path / "gone")


def test_a_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.safetensors").write_bytes(file_bytes({"w": ("U8", (1,), b"x")}))
    with pytest.raises(LayoutError, match="two files"):
        Checkpoint.open(tmp_path)


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Checkpoint.open(tmp_path / "nothing")
    with pytest.raises(CheckpointError, match="not a checkpoint"):
        Checkpoint.open(tmp_path)
    os.mkfifo(tmp_path / "pipe.safetensors")
    with pytest.raises(CheckpointError, match="not a regular file"):
        Checkpoint.open(tmp_path / "pipe.safetensors")
    for name in ("a", "b"):
        (tmp_path / f"{name}.safetensors.index.json").write_text("{}")
    with pytest.raises(CheckpointError, match="more than one"):
        Checkpoint.open(tmp_path)


def test_a_patch_is_not_taken_for_a_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "p.safetensors"
    path.write_bytes(
        file_bytes({"index": ("U8", (1,), b"x")}, metadata={"format": "pulsecast-patch-1"})
    )
    with pytest.raises(CheckpointError, match="is a patch"):
        Checkpoint.open(path)


def _lie(**entry: object) -> bytes:
    text = json.dumps(
        {"w": {"dtype": "BF16", "shape": [4], "data_offsets": [0, 8]} | entry}
    ).encode()
    return len(text).to_bytes(8, "little") + text + bytes(8)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x01",
        b"\xff" * 8,
        (1 << 63).to_bytes(8, "little") + b"{}",
        _lie()[:-1],
        _lie() + b"\x00",
        _lie(data_offsets=[0, 1 << 62]),
        _lie(data_offsets=[8, 0]),
        _lie(data_offsets=[-8, 0]),
        _lie(data_offsets=[0, 6]),
        _lie(shape=[1 << 62, 1 << 62]),
        _lie(shape=[-4]),
        _lie(shape=[4.0]),
        _lie(dtype="BF17"),
        _lie(dtype=None),
        file_bytes({"w": ("U8", (8,), bytes(8))}).replace(b"[0, 8]", b"[1, 8]"),
    ],
)
def test_a_header_that_lies_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(content)
    with pytest.raises((FormatError, LayoutError)) as caught:
        Checkpoint.open(path)
    assert isinstance(caught.value, PulsecastError)
    assert str(path) in str(caught.value)


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", make_tensors())
    (folder / SHARD).rename(tmp_path / "elsewhere")
    (folder / SHARD).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match="leads out of the folder"):
        Checkpoint.open(folder)


def test_a_hugging_face_cache_is_read_but_not_changed_in_place(tmp_path: Path) -> None:
    tensors = make_tensors()
    repo = tmp_path / "models--a--b"
    folder = write_folder(repo / "snapshots" / "1234", tensors)
    (repo / "blobs").mkdir()
    for file in list(folder.iterdir()):
        file.rename(repo / "blobs" / f"hash-of-{file.name}")
        file.symlink_to(Path("../../blobs") / f"hash-of-{file.name}")
    with Checkpoint.open(folder) as checkpoint:
        assert len(checkpoint.state.layout.tensors) == len(tensors)
        with checkpoint.copy_to(tmp_path / "out"):
            pass
    assert not any(file.is_symlink() for file in (tmp_path / "out").iterdir())
    assert (tmp_path / "out" / "config.json").read_text() == '{"model_type": "test"}'
    for path in (folder, folder / SHARD):
        with pytest.raises(CheckpointError, match="is a link"):
            Checkpoint.open(path, writable=True)


def test_a_copy_takes_all_that_belongs_to_it_and_no_stale_weights(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", make_tensors())
    (folder / "templates").mkdir()
    (folder / "templates" / "chat.jinja").write_text("hello")
    for stale in (
        "pytorch_model.bin",
        "consolidated.safetensors",
        "pytorch_model.bin.index.json",
        ".hidden",
    ):
        (folder / stale).write_text("base weights")
    with Checkpoint.open(folder) as checkpoint, checkpoint.copy_to(tmp_path / "out") as copy:
        copy.state.arrays[0][0] ^= 1
        assert not (tmp_path / "out").exists()
    out = tmp_path / "out"
    assert sorted(str(p.relative_to(out)) for p in out.rglob("*") if p.is_file()) == [
        "config.json",
        SHARD,
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
        "templates/chat.jinja",
    ]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m", "out"]
    (folder / "consolidated.safetensors").unlink()
    before, after = weights_of(folder), weights_of(out)
    differing = [name for name in before if before[name] != after[name]]
    assert differing == [SHARD]
    assert sum(a != b for a, b in zip(before[SHARD], after[SHARD], strict=True)) == 1


@pytest.mark.parametrize("as_folder", [True, False])
def test_a_failed_copy_leaves_nothing(tmp_path: Path, as_folder: bool) -> None:
    path = write_folder(tmp_path / "m", make_tensors())
    with Checkpoint.open(path if as_folder else path / SHARD) as checkpoint:
        with pytest.raises(KeyboardInterrupt), checkpoint.copy_to(tmp_path / "out"):
            raise KeyboardInterrupt
        assert [p.name for p in tmp_path.iterdir()] == ["m"]


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    path = write_folder(tmp_path / "m", make_tensors())
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with Checkpoint.open(path) as checkpoint:
        for name in ("m", "empty", "file", "link"):
            with pytest.raises(FileExistsError), checkpoint.copy_to(tmp_path / name):
                pass
    # Also what appears while the copy is being made.
    with (
        Checkpoint.open(path) as checkpoint,
        pytest.raises(FileExistsError),
        checkpoint.copy_to(tmp_path / "late"),
    ):
        (tmp_path / "late").mkdir()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["empty", "file", "late", "link", "m"]


def test_a_copy_without_space_is_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_folder(tmp_path / "m", make_tensors())
    monkeypatch.setattr(
        fresh.shutil, "disk_usage", lambda _: fresh.shutil._ntuple_diskusage(10, 9, 1)
    )
    with (
        Checkpoint.open(path) as checkpoint,
        pytest.raises(OSError, match="needed") as caught,
        checkpoint.copy_to(tmp_path / "out"),
    ):
        pass
    assert caught.value.errno == errno.ENOSPC
    assert [p.name for p in tmp_path.iterdir()] == ["m"]


@pytest.mark.parametrize("code", [errno.EXDEV, errno.ENOSYS, 0])
def test_copies_are_exact_where_the_kernel_cannot_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def cannot(*args: object) -> int:
        if code:
            raise OSError(code, "cannot")
        return 0

    monkeypatch.setattr(os, "copy_file_range", cannot, raising=False)
    content = os.urandom(5_000_001)
    (tmp_path / "a").write_bytes(content)
    steps: list[int] = []
    fresh.copy_file(tmp_path / "a", tmp_path / "b", steps.append)
    assert (tmp_path / "b").read_bytes() == content
    assert sum(steps) == len(content)


def test_readers_share_and_a_writer_is_alone(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", make_tensors())
    with Checkpoint.open(folder), Checkpoint.open(folder / SHARD):
        for path in (folder, folder / SHARD):
            with pytest.raises(BusyError, match="uses"):
                Checkpoint.open(path, writable=True)
    with Checkpoint.open(folder, writable=True):
        for path in (folder, folder / SHARD):
            with pytest.raises(BusyError, match="is changing"):
                Checkpoint.open(path)
    with Checkpoint.open(folder, writable=True) as checkpoint:
        kept = checkpoint.state.arrays[0]
    with Checkpoint.open(folder, writable=True):  # an array that somebody keeps keeps no lock
        assert len(kept)
