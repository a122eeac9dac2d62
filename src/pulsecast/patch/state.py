"""States: the bits of all tensors of a layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..dtypes import Lanes, by_name, of
from ..errors import ArrayError
from ..kernels import lanes
from .layout import Layout, TensorSpec


class State:
    """Tensors as flat lanes, in layout order, without a copy: a lane written is a weight written.

    Args:
        layout: What the tensors are.
        arrays: One array of lanes per tensor, in layout order.

    Raises:
        ArrayError: An array does not fit to its tensor.
    """

    def __init__(self, layout: Layout, arrays: Sequence[Lanes]) -> None:
        if len(arrays) != len(layout.tensors):
            raise ArrayError(f"{len(layout.tensors)} tensors, {len(arrays)} arrays")
        for tensor, array in zip(layout.tensors, arrays, strict=True):
            if array.shape != (tensor.size,) or array.dtype != tensor.dtype.lane:
                raise ArrayError(f"{tensor}: got {array.shape} lanes of {array.dtype}")
            if not array.flags.c_contiguous:
                raise ArrayError(f"{tensor}: the lanes are not contiguous")
        self.layout = layout
        self.arrays: tuple[Lanes, ...] = tuple(arrays)

    @classmethod
    def of(cls, tensors: Mapping[str, Any], dtypes: Mapping[str, str] | str | None = None) -> State:
        """The state of named numpy arrays, memory maps or torch CPU tensors.

        Args:
            tensors: Contiguous arrays by checkpoint name.
            dtypes: What the bits are where the array does not tell, by name or one for all: numpy
                has no bf16, so its bits often come as uint16.

        Raises:
            ArrayError: An array is not contiguous, not on the CPU, or has no lanes.
        """
        specs, arrays = [], []
        for name, array in tensors.items():
            told = dtypes if isinstance(dtypes, str) else (dtypes or {}).get(name)
            dtype = by_name(told) if told else of(array)
            try:
                flat = lanes(array)
            except ArrayError as error:
                raise ArrayError(f"tensor {name!r}: {error}") from error
            if flat.dtype != dtype.lane:
                raise ArrayError(f"tensor {name!r} of {array.dtype} is no {dtype.name}")
            specs.append(TensorSpec(name, dtype, tuple(array.shape)))
            arrays.append(flat)
        layout = Layout(specs)
        by_tensor = {spec.name: array for spec, array in zip(specs, arrays, strict=True)}
        return cls(layout, [by_tensor[spec.name] for spec in layout.tensors])

    def lanes(self, name: str) -> Lanes:
        """The lanes of a tensor by name."""
        return self.arrays[self.layout.index(name)]

    def copy(self) -> State:
        """A state with memory of its own."""
        return State(self.layout, [array.copy() for array in self.arrays])
