"""Forged headers: metadata, sizes, index, touched boxes, embedded layouts."""

from __future__ import annotations

import base64
import json
import time

import pytest
import zstandard
from blake3 import blake3

from pulsecast.errors import (
    FormatError,
    HashMismatchError,
    HeaderError,
    LayoutError,
    LayoutMismatchError,
    LimitError,
    PulsecastError,
    RootMismatchError,
    TruncatedError,
    UnsupportedError,
    WrongBaseError,
)
from pulsecast.patch.decode import Patch
from pulsecast.patch.digest import tensor_sums
from pulsecast.patch.layout import Layout
from pulsecast.patch.part import Part
from pulsecast.patch.state import State
from tests.hostile.forge import Forge, attempt, refusal

KEYS = "format codec layout base target part boxes block touched hashes".split()


def with_metadata(part: bytes, /, **values: str) -> bytes:
    forged = Forge(part)
    forged.metadata.update(values)
    return forged.pack(mend="hashes" not in values)


@pytest.mark.parametrize("key", KEYS)
def test_a_missing_key(key: str, part: bytes, old: State, new: State) -> None:
    forged = Forge(part)
    forged.pack()
    del forged.metadata[key]
    assert isinstance(refusal(forged.pack(mend=False), old, new), FormatError)


def test_unknown_keys_are_ignored(part: bytes, old: State, new: State) -> None:
    assert attempt(with_metadata(part, future="x" * 1000, Format="2"), old, new) is None


@pytest.mark.parametrize("order", [("payload", "tables", "index"), ("tables", "index", "payload")])
def test_tensors_in_any_order(order: tuple[str, ...], part: bytes, old: State, new: State) -> None:
    assert attempt(Forge(part).pack(order=order), old, new) is None


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        ("format", "pulsecast-patch-2", UnsupportedError),
        ("format", "", UnsupportedError),
        ("codec", "lzma", UnsupportedError),
        ("codec", "RAW", FormatError),
        ("codec", "raw\n", FormatError),
        ("layout", "00" * 32, LayoutMismatchError),
        ("layout", "0" * 63, HeaderError),
        ("layout", "AB" * 32, HeaderError),
        ("base", "00" * 32, WrongBaseError),
        ("base", "zz" * 32, HeaderError),
        ("target", "00" * 32, RootMismatchError),
        ("target", "00" * 31, HeaderError),
        ("part", "1/1", HeaderError),
        ("part", "0/0", HeaderError),
        ("part", "0/2", HeaderError),
        ("part", "-1/1", HeaderError),
        ("part", "0", HeaderError),
        ("part", "0/1\n", HeaderError),
        ("part", "٠/١", HeaderError),
        ("part", "0/99999999999999999999", HeaderError),
        ("block", "11", HeaderError),
        ("block", "25", HeaderError),
        ("block", "99", HeaderError),
        ("block", "-1", HeaderError),
        ("block", "016", HeaderError),
        ("block", "٢٠", HeaderError),
        ("block", "9223372036854775808", HeaderError),
        ("touched", "!", HeaderError),
        ("touched", "AA==A", HeaderError),
        ("touched", "é", HeaderError),
        ("hashes", "", HeaderError),
        ("hashes", "00" * 31, HeaderError),
        ("hashes", "00" * 33, HeaderError),
        ("hashes", "00" * 32, HashMismatchError),
        ("boxes", "", HeaderError),
        ("layout_zstd", "!", HeaderError),
        ("layout_zstd", "", HeaderError),
    ],
)
def test_a_malformed_value(
    key: str, value: str, error: type[PulsecastError], part: bytes, old: State, new: State
) -> None:
    assert isinstance(refusal(with_metadata(part, **{key: value}), old, new), error)


def test_block_24_with_tiny_data(part: bytes, old: State, new: State) -> None:
    """Larger blocks than the tensors: the same blocks, the same target."""
    for log2 in range(12, 25):
        assert attempt(with_metadata(part, block=str(log2)), old, new) is None


def test_hashes_of_groups_that_do_not_exist(part: bytes, old: State, new: State) -> None:
    forged = Forge(part)
    forged.pack()
    good = forged.metadata["hashes"]
    for hashes in (good + "00" * 32, good[:64], good * 2):
        assert isinstance(refusal(with_metadata(part, hashes=hashes), old, new), FormatError)


# --- declared sizes -----------------------------------------------------------------------------


@pytest.mark.parametrize("length", [2**63, 2**64 - 1, 2**32, (64 << 20) + 1])
def test_a_header_of_declared_2_to_63_bytes(length: int, any_part: bytes) -> None:
    with pytest.raises(LimitError):
        Part(length.to_bytes(8, "little") + any_part[8:])


def raw_header(part: bytes) -> tuple[dict, bytes]:
    length = int.from_bytes(part[:8], "little")
    return json.loads(part[8 : 8 + length]), part[8 + length :]


def with_header(header: object, data: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


@pytest.mark.parametrize("name", ["index", "tables", "payload"])
@pytest.mark.parametrize(
    "change",
    [
        {"data_offsets": [0, 2**63]},
        {"data_offsets": [2**63, 2**63 + 1]},
        {"data_offsets": [-1, 5]},
        {"data_offsets": [0, 10**30]},
        {"shape": [2**63]},
        {"shape": [2**62]},
        {"shape": []},
        {"shape": [1, 1]},
        {"dtype": "I8"},
        {"dtype": "F32"},
    ],
    ids=str,
)
def test_declared_tensors_of_2_to_63_bytes(change: dict, name: str, any_part: bytes) -> None:
    header, data = raw_header(any_part)
    header[name].update(change)
    with pytest.raises(FormatError):
        Part(with_header(header, data))


@pytest.mark.parametrize("name", ["index", "tables", "payload"])
def test_a_missing_tensor(name: str, any_part: bytes) -> None:
    header, data = raw_header(any_part)
    del header[name]
    with pytest.raises(FormatError):
        Part(with_header(header, data))


def test_deeply_nested_json(any_part: bytes) -> None:
    _, data = raw_header(any_part)
    for text in (b"[" * 10**6, b'{"a":' * 10**6, b'{"a":' * 900 + b"1" + b"}" * 900):
        with pytest.raises(FormatError):
            Part(with_header(text, data))


def test_deeply_nested_boxes(any_part: bytes, old: State, new: State) -> None:
    for text in ("[" * 10**6, "[" * 900 + "]" * 900, "[[0," * 10**5, '[[{"a":' * 10**5):
        assert isinstance(refusal(with_metadata(any_part, boxes=text), old, new), HeaderError)


def test_duplicate_json_keys(any_part: bytes) -> None:
    header, data = raw_header(any_part)
    text = json.dumps(header)
    twice = [
        text.replace('"codec":', '"codec":"raw","codec":', 1),
        text.replace('"index":', '"index":{},"index":', 1),
        text.replace('"dtype":', '"dtype":"U8","dtype":', 1),
        text.replace('{"__metadata__":', '{"__metadata__":{},"__metadata__":', 1),
    ]
    for changed in twice:
        assert changed != text
        with pytest.raises(HeaderError, match="twice"):
            Part(with_header(changed.encode(), data))


# --- index --------------------------------------------------------------------------------------


def varint(number: int) -> bytes:
    out = b""
    while number > 0x7F:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


@pytest.mark.parametrize(
    "entry",
    [
        varint(2**63), varint(2**63 + 1), varint(2**64 - 1), varint(4 * 2**40 + 1), varint(2**64),
        varint(2**70), b"\xff" * 9 + b"\x7f", b"\x80" * 10 + b"\1", b"\x80\x00", b"\x80", b"",
    ],
    ids=["2^63", "2^63+1", "2^64-1", "2^42+1", "2^64", "2^70", "overlong", "eleven bytes",
         "not minimal", "cut", "none"],
)  # fmt: skip
def test_an_index_entry_of_declared_2_to_63_bytes(
    entry: bytes, part: bytes, old: State, new: State
) -> None:
    for place in range(4):
        forged = Forge(part)
        entries = [varint(4 * len(data) + mode) for mode, data in forged.blocks]
        entries[place] = entry
        forged.index = b"".join(entries)
        assert isinstance(refusal(forged.pack(), old, new), FormatError)


def with_block(part: bytes, number: int, mode: int, data: bytes) -> bytes:
    forged = Forge(part)
    forged.blocks[number] = (mode, data)
    return forged.pack()


def test_a_mode_that_does_not_exist(part: bytes, old: State, new: State) -> None:
    data = Forge(part).blocks[0][1]
    assert isinstance(refusal(with_block(part, 0, 3, data), old, new), FormatError)


def test_an_unchanged_block_with_bytes(part: bytes, old: State, new: State) -> None:
    assert isinstance(refusal(with_block(part, 3, 0, b"\0"), old, new), FormatError)


def test_a_sparse_block_without_bytes(part: bytes, old: State, new: State) -> None:
    assert isinstance(refusal(with_block(part, 3, 1, b""), old, new), FormatError)


def test_a_dense_block_of_the_wrong_size(part: bytes, old: State, new: State) -> None:
    for size in (0, 1, 27, 29, 28 * 8):
        assert isinstance(refusal(with_block(part, 1, 2, bytes(size)), old, new), FormatError)


def test_a_dense_block_of_other_bits(part: bytes, old: State, new: State) -> None:
    """Well-formed and wrong: the declared number of changes or the sums refuse it."""
    good = new.arrays[1].tobytes()
    for place in range(28):
        wrong = bytearray(good)
        wrong[place] ^= 0x10
        error = refusal(with_block(part, 1, 2, bytes(wrong)), old, new)
        assert isinstance(error, (FormatError, RootMismatchError))


def test_a_changed_block_declared_unchanged(part: bytes, old: State, new: State) -> None:
    for block in range(3):
        refusal(with_block(part, block, 0, b""), old, new)


def test_a_sparse_block_above_its_limit(part: bytes, old: State, new: State) -> None:
    too_large = 16 * 5 + 4096 + 1
    error = refusal(with_block(part, 3, 1, bytes(too_large)), old, new)
    assert isinstance(error, FormatError)


def test_index_and_blocks_of_other_numbers(part: bytes, old: State, new: State) -> None:
    forged = Forge(part)
    for index in (b"", forged.own_index()[:-1], forged.own_index() + b"\0"):
        forged.index = index
        assert isinstance(refusal(forged.pack(), old, new), FormatError)


def test_payload_that_no_block_owns(part: bytes, old: State, new: State) -> None:
    for payload in (b"".join(data for _, data in Forge(part).blocks), b""):
        forged = Forge(part)
        forged.payload = payload + b"\0" if payload else b""
        assert isinstance(refusal(forged.pack(), old, new), FormatError)


# --- touched ------------------------------------------------------------------------------------


def with_touched(part: bytes, *records: tuple[int, int, int]) -> bytes:
    forged = Forge(part)
    forged.touch(*records)
    return forged.pack()


def test_touched_boxes_are_read_back(part: bytes, old: State, new: State) -> None:
    assert attempt(with_touched(part, *Forge(part).touched()), old, new) is None


@pytest.mark.parametrize("count", [0, 1, 7, 9, 2**32, 2**63, 2**64 - 1])
def test_a_wrong_number_of_changes(count: int, part: bytes, old: State, new: State) -> None:
    (box, changes, total), *others = Forge(part).touched()
    assert changes == 8
    error = refusal(with_touched(part, (box, count, total), *others), old, new)
    assert isinstance(error, FormatError)


def test_a_wrong_sum(part: bytes, old: State, new: State) -> None:
    records = Forge(part).touched()
    for i, (box, changes, total) in enumerate(records):
        wrong = [*records[:i], (box, changes, total ^ 1), *records[i + 1 :]]
        assert isinstance(refusal(with_touched(part, *wrong), old, new), RootMismatchError)


def test_a_touched_box_that_is_not_declared(part: bytes, old: State, new: State) -> None:
    records = Forge(part).touched()
    for i in range(len(records)):
        data = with_touched(part, *records[:i], *records[i + 1 :])
        assert isinstance(refusal(data, old, new), FormatError)


@pytest.mark.parametrize("box", [4, 5, 2**20, 2**32, 2**63, 2**64 - 1])
def test_a_touched_box_that_does_not_exist(box: int, part: bytes, old: State, new: State) -> None:
    data = with_touched(part, *Forge(part).touched(), (box, 1, 0))
    assert isinstance(refusal(data, old, new), FormatError)


@pytest.mark.parametrize("changes", [0, 1, 5, 2**64 - 1])
def test_a_box_declared_touched_in_an_unchanged_block(
    changes: int, part: bytes, old: State, new: State
) -> None:
    data = with_touched(part, *Forge(part).touched(), (3, changes, int(tensor_sums(new)[2])))
    assert isinstance(refusal(data, old, new), FormatError)


def test_touched_boxes_cut_off(part: bytes, old: State, new: State) -> None:
    whole = base64.b64decode(Forge(part).metadata["touched"])
    for length in range(len(whole)):
        text = base64.b64encode(whole[:length]).decode()
        refusal(with_metadata(part, touched=text), old, new)


# --- embedded layouts ---------------------------------------------------------------------------


def with_layout(part: bytes, text: bytes, *, frame: bytes | None = None) -> bytes:
    """A part for, and with, a layout of this JSON, its id computed as the spec says."""
    packed = zstandard.ZstdCompressor().compress(text) if frame is None else frame
    return with_metadata(
        part,
        layout=blake3(b"pulsecast layout 1\0" + text).hexdigest(),
        layout_zstd=base64.b64encode(packed).decode(),
    )


def test_the_forged_layout_is_read(any_part: bytes, layout: Layout) -> None:
    assert Part(with_layout(any_part, layout.to_json())).header.layout is not None


@pytest.mark.parametrize(
    "name", ["a\\nb", "a\\u0000", "\\u001b[31m", "\\u007f", "\\u0085", "\\u2028", "\\ud800", ""]
)
def test_names_with_control_characters(name: str, any_part: bytes) -> None:
    text = json.dumps([["x", "BF16", [1]]]).replace("x", name).replace(" ", "")
    for escaped in (text, json.dumps(json.loads(text), ensure_ascii=False, separators=(",", ":"))):
        with pytest.raises((FormatError, LayoutError)):
            Part(with_layout(any_part, escaped.encode("utf-8", "surrogatepass")))


@pytest.mark.parametrize(
    "shape",
    ["[Infinity]", "[1e999]", "[-Infinity]", "[NaN]", "[9223372036854775808]", "[-1]", "[1.5]",
     "[281474976710657]", "[" + ",".join("1" * 17) + "]", "[4294967296,4294967296]", "{}", "null"],
)  # fmt: skip
def test_shapes_that_no_tensor_has(shape: str, any_part: bytes) -> None:
    with pytest.raises((FormatError, LayoutError)):
        Part(with_layout(any_part, f'[["x","BF16",{shape}]]'.encode()))


def test_an_embedded_layout_of_another_id(any_part: bytes, layout: Layout) -> None:
    frame = zstandard.ZstdCompressor().compress(b"[]")
    with pytest.raises(HashMismatchError):
        Part(with_layout(any_part, layout.to_json(), frame=frame))


def test_a_layout_bomb(any_part: bytes) -> None:
    zeros = zstandard.ZstdCompressor(level=19)
    started = time.process_time()
    for size in (1 << 28, (64 << 20) + 1):
        with pytest.raises(LimitError):
            Part(with_layout(any_part, b"", frame=zeros.compress(bytes(size))))
    inside = zeros.compress(bytes(1 << 20))
    with pytest.raises(FormatError):
        Part(with_layout(any_part, b"", frame=inside))
    assert time.process_time() - started < 5


def unsized(content: bytes) -> bytes:
    """A zstd frame that does not declare its content size."""
    return zstandard.ZstdCompressor(write_content_size=False).compress(content)


def test_layout_frames_that_are_none(any_part: bytes, layout: Layout) -> None:
    good = zstandard.ZstdCompressor().compress(layout.to_json())
    for frame in (
        unsized(layout.to_json()),
        good[:-1],
        good + b"\0",
        good + good,
        b"\x50\x2a\x4d\x18\x04\0\0\0abcd",
        b"not zstd",
    ):
        with pytest.raises(FormatError):
            Part(with_layout(any_part, layout.to_json(), frame=frame))


def test_deeply_nested_layout(any_part: bytes) -> None:
    for text in (b"[" * 10**6, b'[["x","BF16",' + b"[" * 10**5):
        with pytest.raises(FormatError):
            Part(with_layout(any_part, text))


def test_a_huge_embedded_layout_is_refused_before_its_blocks_are_made(any_part: bytes) -> None:
    """Half a million blocks in a file of a kilobyte: the index has a byte at least for each."""
    data = with_metadata(with_layout(any_part, b'[["x","BF16",[8796093022208]]]'), block="24")
    patch = Patch([Part(data)])
    assert patch.layout is not None
    started = time.process_time()
    with pytest.raises(FormatError):
        patch.bind(patch.layout)
    assert time.process_time() - started < 0.5


def test_an_empty_file() -> None:
    for data in (b"", b"\0" * 7, b"\0" * 8):
        with pytest.raises(FormatError):
            Part(data)
    with pytest.raises(TruncatedError):
        Part(b"")


@pytest.mark.parametrize("changes", [0, 1 << 63])
def test_a_count_that_no_box_can_have_is_refused_when_bound(
    changes: int, part: bytes, old: State
) -> None:
    """Before any block is decoded: `inspect` shows these counts as they are."""
    (box, _, total), *others = Forge(part).touched()
    patch = Patch([Part(with_touched(part, (box, changes, total), *others))])
    with pytest.raises(FormatError, match="touched box has"):
        patch.bind(old.layout)
