"""lanes: any contiguous CPU array as flat bit patterns, sharing its memory."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import numpy as np
import pytest

from pulsecast.errors import ArrayError
from pulsecast.kernels import lanes


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u8", "?"])
def test_numpy_arrays_are_seen_as_their_bits(dtype: str) -> None:
    array = np.arange(24).reshape(2, 3, 4).astype(dtype)
    flat = lanes(array)
    assert flat.dtype == np.dtype(f"<u{array.itemsize}")
    assert flat.tobytes() == array.tobytes()
    assert np.shares_memory(flat, array)
    flat[5] = 1
    assert array.reshape(-1).view(flat.dtype)[5] == 1


def test_nan_payloads_and_signed_zeros_survive() -> None:
    bits = np.array([0x7FC00001, 0xFFC12345, 0x7F800001, 0x80000000, 0, 1], "<u4")
    assert lanes(bits.view("<f4")).tolist() == bits.tolist()


def test_scalars_and_empty_arrays() -> None:
    assert lanes(np.array(1.0, np.float32)).tolist() == [0x3F800000]
    assert lanes(np.zeros((3, 0, 2), np.float16)).shape == (0,)


def test_ml_dtypes() -> None:
    ml = pytest.importorskip("ml_dtypes")
    array = np.array([1.0, -0.0], ml.bfloat16)
    assert lanes(array).tolist() == [0x3F80, 0x8000]


def test_memory_maps_are_not_copied(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(bytes(range(64)))
    mapped = np.memmap(path, "<u2", "r+", offset=8, shape=(4, 5))
    flat = lanes(mapped, writable=True)
    flat[0] = 0xBEEF
    mapped.flush()
    assert path.read_bytes()[8:10] == b"\xef\xbe"


def test_a_read_only_map_may_be_read_and_not_written(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(bytes(64))
    mapped = np.memmap(path, "<u2", "r")
    assert len(lanes(mapped)) == 32
    with pytest.raises(ArrayError, match="read-only"):
        lanes(mapped, writable=True)


def test_unaligned_arrays_are_taken() -> None:
    array = np.frombuffer(bytes(range(33)), "<u4", 8, 1)
    assert not array.flags.aligned
    assert lanes(array).tobytes() == bytes(range(1, 33))


def test_read_only_arrays_are_refused_for_writing() -> None:
    array = np.zeros(4, np.float32)
    array.flags.writeable = False
    assert len(lanes(array)) == 4
    with pytest.raises(ArrayError, match="read-only"):
        lanes(array, writable=True)


@pytest.mark.parametrize(
    "array",
    [np.zeros(8)[::2], np.zeros((4, 4)).T, np.zeros((4, 4))[:, :2], np.zeros(4)[::-1]],
    ids=["step", "transposed", "columns", "reversed"],
)
def test_arrays_with_gaps_are_refused(array: np.ndarray) -> None:
    with pytest.raises(ArrayError, match="not contiguous"):
        lanes(array)


def test_big_endian_arrays_are_refused() -> None:
    with pytest.raises(ArrayError, match="big-endian"):
        lanes(np.zeros(4, ">f4"))
    assert len(lanes(np.zeros(4, ">u1"))) == 4  # a byte has no order


@pytest.mark.parametrize(
    "array",
    [
        np.zeros(2, np.complex128),
        np.array([None, 1], object),
        np.zeros(2, [("a", "u2"), ("b", "u2")]),
        np.zeros(2, "S3"),
        [1.0, 2.0],
        b"1234",
        None,
    ],
    ids=["complex128", "object", "fields", "S3", "list", "bytes", "None"],
)
def test_what_has_no_lanes_is_refused(array: object) -> None:
    with pytest.raises(ArrayError, match=r"lanes|expected"):
        lanes(array)


@pytest.mark.parametrize("dtype", ["U1", "S4", "M8[s]", "m8[s]"])
def test_what_is_no_plain_number_is_refused(dtype: str) -> None:
    with pytest.raises(ArrayError):
        lanes(np.zeros(2, dtype))


def test_the_view_keeps_a_numpy_array_alive() -> None:
    class Owner(np.ndarray):
        pass

    array = np.arange(1000, dtype=np.uint16).view(Owner)
    gone = weakref.ref(array)
    flat = lanes(array)
    del array
    gc.collect()
    assert flat.tolist() == list(range(1000))
    del flat
    gc.collect()
    assert gone() is None


class TestTorch:
    @pytest.fixture
    def torch(self):
        return pytest.importorskip("torch")

    def test_bf16_and_fp8_are_seen_as_their_bits(self, torch) -> None:
        bf16 = torch.tensor([1.0, -0.0, float("inf")], dtype=torch.bfloat16)
        assert lanes(bf16).tolist() == [0x3F80, 0x8000, 0x7F80]
        assert lanes(torch.tensor([1.0], dtype=torch.float8_e4m3fn)).tolist() == [0x38]
        assert lanes(torch.tensor([1.0], dtype=torch.float8_e5m2)).tolist() == [0x3C]
        assert lanes(torch.tensor(7)).tolist() == [7]
        assert lanes(torch.tensor([True, False])).tolist() == [1, 0]

    def test_memory_is_shared_both_ways(self, torch) -> None:
        tensor = torch.zeros((3, 5), dtype=torch.bfloat16)
        flat = lanes(tensor, writable=True)
        flat[7] = 0x3F80
        assert tensor[1, 2] == 1
        tensor[0, 0] = -2.0
        assert flat[0] == 0xC000

    def test_a_contiguous_slice_starts_where_it_starts(self, torch) -> None:
        tensor = torch.arange(12, dtype=torch.int16).reshape(4, 3)
        assert lanes(tensor[1:3]).tolist() == [3, 4, 5, 6, 7, 8]

    def test_parameters_that_require_gradients_are_taken(self, torch) -> None:
        parameter = torch.nn.Parameter(torch.ones(3))
        assert lanes(parameter).tolist() == [0x3F800000] * 3

    def test_empty_tensors(self, torch) -> None:
        assert lanes(torch.zeros((0, 3), dtype=torch.bfloat16)).dtype == np.dtype("<u2")

    def test_what_cannot_be_seen_is_refused(self, torch) -> None:
        with pytest.raises(ArrayError, match="not contiguous"):
            lanes(torch.zeros(4, 4).T)
        with pytest.raises(ArrayError, match="meta"):
            lanes(torch.zeros(4, device="meta"))
        with pytest.raises(ArrayError, match="complex128"):
            lanes(torch.zeros(4, dtype=torch.complex128))

    def test_the_view_keeps_the_tensor_alive(self, torch) -> None:
        tensor = torch.arange(100_000, dtype=torch.int32)
        gone = weakref.ref(tensor)
        flat = lanes(tensor)
        inner = flat[50_000:]
        del tensor, flat
        gc.collect()
        other = torch.full((100_000,), -1, dtype=torch.int32)  # would take freed memory
        assert gone() is not None
        assert inner.tolist() == list(range(50_000, 100_000))
        del inner, other
        gc.collect()
        assert gone() is None


def test_a_tensor_whose_storage_was_freed_is_refused() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.ones(1000)
    tensor.untyped_storage().resize_(0)
    with pytest.raises(ArrayError, match="no memory"):
        lanes(tensor)


def test_a_tensor_with_less_storage_than_elements_is_refused() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.ones(1000)
    tensor.untyped_storage().resize_(400)
    with pytest.raises(ArrayError, match="no memory"):
        lanes(tensor)


def test_a_distributed_tensor_is_refused() -> None:
    torch = pytest.importorskip("torch")

    class Distributed(torch.Tensor):
        def to_local(self) -> object:
            return self

    with pytest.raises(ArrayError, match="to_local"):
        lanes(torch.ones(3).as_subclass(Distributed))
