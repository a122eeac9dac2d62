"""Part files are safetensors files, for the safetensors package too."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from pulsecast.errors import FormatError, HeaderError, LimitError, TruncatedError
from pulsecast.patch.codecs import CODECS
from pulsecast.patch.encode import encode
from pulsecast.patch.part import Part
from pulsecast.patch.safefile import MAX_HEADER, read_header, write_header
from tests.states import mixed_pair


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("embed", [False, True])
def test_the_safetensors_package_opens_our_parts(codec: str, embed: bool, tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors")
    old, new = mixed_pair()
    path = tmp_path / "part"
    encode(old, new, path, codec=codec, embed_layout=embed)
    ours = read_header(path.read_bytes())
    with safetensors.safe_open(path, "np") as file:
        assert set(file.keys()) == {"index", "tables", "payload"}
        assert file.metadata() == ours.metadata
        for name in file.keys():  # noqa: SIM118 (not a dict)
            array = file.get_tensor(name)
            entry = ours.entries[name]
            assert array.dtype == np.uint8
            assert array.tobytes() == path.read_bytes()[entry.start : entry.stop]


def test_we_open_what_the_safetensors_package_wrote() -> None:
    numpy = pytest.importorskip("safetensors.numpy")
    tensors = {
        "b": np.arange(6, dtype=np.float32).reshape(2, 3),
        "a": np.arange(5, dtype=np.uint8),
        "scalar": np.array(3, np.int64),
        "none": np.empty((0, 2), np.float16),
    }
    data = numpy.save(tensors, {"key": "värde"})
    header = read_header(data)
    assert header.metadata == {"key": "värde"}
    assert set(header.entries) == set(tensors)
    for name, entry in header.entries.items():
        assert data[entry.start : entry.stop] == tensors[name].tobytes()
        assert entry.shape == tensors[name].shape


def test_a_part_rewritten_by_the_safetensors_package_is_the_same_patch(tmp_path: Path) -> None:
    """Its writer puts the tensors into an order of its own."""
    numpy = pytest.importorskip("safetensors.numpy")
    old, new = mixed_pair()
    path = tmp_path / "part"
    encode(old, new, path)
    metadata = read_header(path.read_bytes()).metadata
    again = numpy.save(numpy.load(path.read_bytes()), metadata)
    assert Part(again).header == Part(path.read_bytes()).header
    Part(again).bind(old.layout)


def test_headers_round_trip_and_are_aligned() -> None:
    for sizes in ({}, {"x": 0}, {"b": 3, "a": 0, "c": 5}):
        head = write_header(sizes, {"k": "v", "a": 'quote"\n'})
        assert len(head) % 8 == 0
        read = read_header(head + bytes(sum(sizes.values())))
        assert read.metadata == {"k": "v", "a": 'quote"\n'}
        assert {name: e.stop - e.start for name, e in read.entries.items()} == sizes
        assert read.data_start == len(head)


def test_a_prefix_is_enough_when_the_size_is_known() -> None:
    head = write_header({"x": 1000}, {})
    assert read_header(head, len(head) + 1000).entries["x"].shape == (1000,)
    with pytest.raises(TruncatedError):
        read_header(head, len(head) + 999)
    with pytest.raises(HeaderError):
        read_header(head, len(head) + 1001)


def file(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def tensor(start: object, stop: object, **other: object) -> dict[str, object]:
    return {"dtype": "U8", "shape": [4], "data_offsets": [start, stop], **other}


@pytest.mark.parametrize(
    "data",
    [
        file(b""),
        file(b"{"),
        file(b"[]"),
        file(b"null"),
        file(b"\xff\xfe"),
        file(b'{"a":1}'),
        file(b'{"a":[]}'),
        file(b'{"a":"dtype"}'),
        file({"a": {}}),
        file({"a": {"dtype": "U8", "shape": [4]}}, bytes(4)),
        file({"a": tensor(0, 4, dtype=7)}, bytes(4)),
        file({"a": tensor(0, 4, shape=4)}, bytes(4)),
        file({"a": tensor(0, 4, shape="4")}, bytes(4)),
        file({"a": tensor(0, 4, shape=[4.0])}, bytes(4)),
        file({"a": tensor(0, 4, shape=[True])}, bytes(4)),
        file({"a": tensor(0, 4, shape=[-4])}, bytes(4)),
        file({"a": tensor(0, 4, data_offsets=[0])}, bytes(4)),
        file({"a": tensor(0, 4, data_offsets=[0, 4, 8])}, bytes(4)),
        file({"a": tensor(0, 4, data_offsets=None)}, bytes(4)),
        file({"a": tensor(-4, 0)}, bytes(4)),
        file({"a": tensor(0, "4")}, bytes(4)),
        file({"a": tensor(4, 0)}, bytes(4)),
        file({"a": tensor(0, 1 << 63)}, bytes(4)),
        file({"a": tensor(0, 1 << 64)}, bytes(4)),
        file({"a": tensor(1, 5)}, bytes(5)),
        file({"a": tensor(0, 4), "b": tensor(0, 4)}, bytes(4)),
        file({"a": tensor(0, 4), "b": tensor(3, 7)}, bytes(7)),
        file({"a": tensor(0, 4), "b": tensor(5, 9)}, bytes(9)),
        file({"a": tensor(0, 4)}, bytes(5)),
        file({}, bytes(1)),
        file({"__metadata__": []}),
        file({"__metadata__": {"a": 1}}),
        file({"__metadata__": {"a": {}}}),
        file(b'{"a":' * 100_000),
        file(b'{"__metadata__":{},"__metadata__":{}}'),
        file(b'{"__metadata__":{"a":"1","a":"2"}}'),
        file(b'{"a":{"dtype":"U8","dtype":"U8","shape":[0],"data_offsets":[0,0]}}'),
        file(b'{"a":{"dtype":"U8","shape":[NaN],"data_offsets":[0,0]}}'),
        file(b'{"a":{"dtype":"U8","shape":[' + b"9" * 5000 + b'],"data_offsets":[0,0]}}'),
    ],
    ids=range(39),
)
def test_broken_headers_are_refused(data: bytes) -> None:
    with pytest.raises(HeaderError):
        read_header(data)


def test_truncated_files_are_told() -> None:
    whole = file({"a": tensor(0, 4)}, bytes(4))
    for length in range(len(whole)):
        with pytest.raises(TruncatedError):
            read_header(whole[:length])


def test_declared_lengths_are_checked_before_memory_is_taken() -> None:
    for length in (MAX_HEADER + 1, 2**63, 2**64 - 1):
        with pytest.raises(LimitError):
            read_header(length.to_bytes(8, "little") + b"{}")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-8-sig"])
def test_only_utf8_is_json_of_safetensors(encoding: str) -> None:
    with pytest.raises(FormatError):
        read_header(file("{}".encode(encoding)))
