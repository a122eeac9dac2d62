"""Layouts: spec section 1."""

from __future__ import annotations

import json

import pytest

from pulsecast.dtypes import by_name
from pulsecast.errors import HeaderError, LayoutError, LayoutMismatchError, LimitError
from pulsecast.patch.layout import Layout, TensorSpec

BF16 = by_name("BF16")


def spec(name: str, *shape: int, dtype: str = "BF16") -> TensorSpec:
    return TensorSpec(name, by_name(dtype), shape)


def test_the_id_is_the_specs() -> None:
    # BLAKE3 of b"pulsecast layout 1\0" and the JSON below, computed without this package.
    layout = Layout(
        [spec("é", dtype="I64"), spec("a.weight", 2, 3), spec("z", 0, 4, dtype="F8_E4M3")]
    )
    text = '[["a.weight","BF16",[2,3]],["z","F8_E4M3",[0,4]],["é","I64",[]]]'
    assert layout.to_json() == text.encode()
    assert layout.id.hex() == "e4f93bf73524b168cf578bd7f443e56b4bbf994fecbb92503a9b37772fb522fc"


def test_order_is_that_of_utf8_bytes() -> None:
    names = ["b", "a", "B", "a.10", "a.2", "\U0001f600", "\uffee", "é", "z"]
    layout = Layout([spec(n, 1) for n in names])
    assert [t.name for t in layout.tensors] == sorted(names, key=str.encode)
    assert layout.id == Layout([spec(n, 1) for n in reversed(names)]).id
    for i, tensor in enumerate(layout.tensors):
        assert layout.index(tensor.name) == i


def test_json_round_trip() -> None:
    layout = Layout([spec("a", 2, 3), spec('quote"\\/', dtype="F64"), spec("ü", 0)])
    again = Layout.from_json(layout.to_json())
    assert again.id == layout.id
    assert again.tensors == layout.tensors
    assert Layout.from_json(b"[]").tensors == ()


def test_sizes() -> None:
    layout = Layout([spec("a", 2, 3), spec("b", dtype="F64"), spec("c", 7, 0)])
    assert [t.size for t in layout.tensors] == [6, 1, 0]
    assert layout.weights == 7
    assert layout.nbytes == 20


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (spec("a", 2, 3), spec("a", 3, 2)),
        (spec("a", 6), spec("a", 6, 1)),
        (spec("a", 6), spec("b", 6)),
        (spec("a", 6), spec("a", 6, dtype="F16")),
    ],
)
def test_every_difference_changes_the_id_and_is_named(one: TensorSpec, other: TensorSpec) -> None:
    a, b = Layout([one]), Layout([other])
    assert a.id != b.id
    with pytest.raises(LayoutMismatchError) as caught:
        a.require_same(b, "the patch")
    assert str(one) in str(caught.value)
    assert str(other) in str(caught.value)
    a.require_same(Layout([one]))


def test_long_lists_of_differences_are_cut() -> None:
    with pytest.raises(LayoutMismatchError, match="and 96 more"):
        Layout([spec(f"t{i}", 1) for i in range(100)]).require_same(Layout([]))


def test_an_unknown_tensor_is_told() -> None:
    with pytest.raises(LayoutError, match="no tensor 'x'"):
        Layout([]).index("x")


@pytest.mark.parametrize(
    "name", ["", "a\nb", "a\0", "\x7f", "\x1b[31m", "\x85", "a" * 1025, "é" * 513, "\ud800"]
)
def test_bad_names_are_refused(name: str) -> None:
    with pytest.raises(LayoutError):
        spec(name, 1)


def test_the_longest_name_and_unicode_are_taken() -> None:
    assert spec("a" * 1024, 1).name
    assert spec("模型.层", 1).name
    assert spec("with space", 1).name


def test_twice_the_same_name_is_refused() -> None:
    with pytest.raises(LayoutError, match="twice"):
        Layout([spec("a", 1), spec("a", 2)])


@pytest.mark.parametrize(
    "shape", [(1,) * 17, (-1,), (2, -2), (1 << 49,), (1 << 25, 1 << 24), (1 << 62, 1 << 62)]
)
def test_shapes_above_the_limits_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(LimitError):
        TensorSpec("a", BF16, shape)


def test_shapes_at_the_limits_are_taken() -> None:
    assert TensorSpec("a", BF16, (1,) * 16).size == 1
    assert TensorSpec("a", BF16, (1 << 48,)).size == 1 << 48


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "null",
        "7",
        '"a"',
        "[7]",
        "[[]]",
        '[["a"]]',
        '[["a","BF16"]]',
        '[["a","BF16",7]]',
        '[["a","BF16",["1"]]]',
        '[["a","BF16",[1.0]]]',
        '[["a","BF16",[true]]]',
        '[["a","BF16",[NaN]]]',
        '[["a","BF16",[Infinity]]]',
        '[["a","BF16",[1e999]]]',
        '[["a","BF16",[-1]]]',
        '[["a","BF16",[1]],7]',
        '[["a","BF17",[1]]]',
        '[["a",["BF16"],[1]]]',
        '[[7,"BF16",[1]]]',
        '[["a","BF16",[1],0]]',
        '[ ["a","BF16",[1]]]',
        '[["b","BF16",[1]],["a","BF16",[1]]]',
        '[["a","BF16",[1]],["a","BF16",[1]]]',
        '[["\\u0061","BF16",[1]]]',
        '[["a\\nb","BF16",[1]]]',
        '[["\\ud800","BF16",[1]]]',
        "[" * 100_000,
        '[["a","BF16",[' + "1" * 5000 + "]]]",
    ],
    ids=lambda text: text[:32],
)
def test_anything_but_canonical_json_is_refused(text: str) -> None:
    with pytest.raises((HeaderError, LayoutError)):
        Layout.from_json(text.encode("utf-8", "surrogatepass"))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-8-sig", "latin-1"])
def test_other_encodings_are_refused(encoding: str) -> None:
    text = json.dumps([["é", "BF16", [1]]], ensure_ascii=False, separators=(",", ":"))
    with pytest.raises(HeaderError):
        Layout.from_json(text.encode(encoding))
