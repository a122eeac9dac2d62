"""Any contiguous CPU array as a flat array of bit patterns, without a copy."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from ..dtypes import LANE_TYPES, Lanes
from ..errors import ArrayError


def lanes(array: Any, *, writable: bool = False) -> Lanes:
    """The lanes of a numpy array, memory map or torch CPU tensor; they share its memory.

    Args:
        array: Contiguous, little-endian, elements of 1, 2, 4 or 8 bytes.
        writable: Refuse memory that may not be written.

    Raises:
        ArrayError: The array is not contiguous, not on the CPU, read-only or not of plain numbers.
    """
    if isinstance(array, np.ndarray):
        flat = _of_numpy(array)
    elif hasattr(array, "data_ptr") and hasattr(array, "is_contiguous"):
        flat = _of_torch(array)
    else:
        raise ArrayError(f"expected a numpy array or a torch tensor, got {type(array).__name__}")
    if writable and not flat.flags.writeable:
        raise ArrayError("the array is read-only: open the file or the array for writing")
    return flat


def _of_numpy(array: np.ndarray[Any, Any]) -> Lanes:
    width = array.dtype.itemsize
    # "V": the bf16 and fp8 of ml_dtypes. Texts, dates and records are no weights.
    if array.dtype.kind not in "biufV" or array.dtype.fields or width not in LANE_TYPES:
        raise ArrayError(f"arrays of dtype {array.dtype} have no lanes of 1, 2, 4 or 8 bytes")
    if array.dtype.byteorder == ">":
        raise ArrayError(
            "the array is big-endian: convert it with .astype(dtype.newbyteorder('<'))"
        )
    if not array.flags.c_contiguous:
        raise ArrayError(
            f"the array of shape {array.shape} is not contiguous: pass np.ascontiguousarray(array)"
        )
    return array.reshape(-1).view(LANE_TYPES[width])


def _of_torch(tensor: Any) -> Lanes:
    # Told by its methods: the core never imports torch, and numpy cannot take a bf16 tensor.
    if tensor.device.type != "cpu":
        raise ArrayError(f"the tensor is on {tensor.device}: pass tensor.cpu()")
    if not tensor.is_contiguous():
        raise ArrayError(
            f"the tensor of shape {tuple(tensor.shape)} is not contiguous: pass tensor.contiguous()"
        )
    width, size = tensor.element_size(), tensor.numel()
    if width not in LANE_TYPES:
        raise ArrayError(f"tensors of dtype {tensor.dtype} have no lanes of 1, 2, 4 or 8 bytes")
    if size == 0:
        return np.empty(0, LANE_TYPES[width])
    if hasattr(tensor, "to_local"):
        raise ArrayError("the tensor is a DTensor: pass tensor.to_local()")
    needed = (tensor.storage_offset() + size) * width
    if tensor.data_ptr() == 0 or tensor.untyped_storage().nbytes() < needed:
        raise ArrayError(
            "the tensor has no memory of its own (fake, or its storage was freed, as FSDP does): "
            "pass it while it is materialised"
        )
    buffer = (ctypes.c_char * (size * width)).from_address(tensor.data_ptr())
    # The array keeps the buffer alive, and the buffer the tensor: its memory must outlive the view.
    buffer.owner = tensor
    return np.frombuffer(buffer, LANE_TYPES[width])
