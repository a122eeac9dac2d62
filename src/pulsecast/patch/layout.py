"""Layouts: which tensors a model has (spec section 1)."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from blake3 import blake3

from ..dtypes import DType, by_name
from ..errors import (
    HeaderError,
    LayoutError,
    LayoutMismatchError,
    LimitError,
)

MAX_TENSORS = 1 << 20
MAX_NAME_BYTES = 1024
MAX_DIMENSIONS = 16
MAX_ELEMENTS = 1 << 48
_DOMAIN = b"pulsecast layout 1\0"
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name, dtype and shape of one tensor."""

    name: str
    dtype: DType
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        try:
            length = len(self.name.encode())
        except UnicodeEncodeError:
            raise LayoutError(f"tensor name {self.name!r} is not valid Unicode") from None
        if not 1 <= length <= MAX_NAME_BYTES or _CONTROL.search(self.name):
            raise LayoutError(
                f"tensor name {self.name[:80]!r} is empty, longer than {MAX_NAME_BYTES} bytes "
                "or holds control characters"
            )
        if len(self.shape) > MAX_DIMENSIONS or min(self.shape, default=0) < 0:
            raise LimitError(f"tensor {self.name!r} has the shape {self.shape}")
        if self.size > MAX_ELEMENTS:
            raise LimitError(f"tensor {self.name!r} declares {self.size} elements")

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Number of bytes."""
        return self.size * self.dtype.width

    def __str__(self) -> str:
        return f"{self.name} {self.dtype.name}{list(self.shape)}"


def layout_hash(canonical: bytes) -> bytes:
    """The layout id of canonical JSON."""
    return blake3(_DOMAIN + canonical).digest()


def _tensor(name: object, dtype: object, shape: list[object]) -> TensorSpec:
    if not isinstance(name, str) or not isinstance(dtype, str) or not isinstance(shape, list):
        raise HeaderError("a tensor is not [name, dtype, shape]")
    sizes = [size for size in shape if type(size) is int]
    if len(sizes) != len(shape):
        raise HeaderError(f"the shape of tensor {name[:80]!r} is not made of integers")
    return TensorSpec(name, by_name(dtype), tuple(sizes))


class Layout:
    """The tensors of a model, sorted by name; two layouts are the same if their ids are.

    Args:
        tensors: In any order.

    Raises:
        LayoutError: Two tensors have the same name.
    """

    def __init__(self, tensors: Iterable[TensorSpec]) -> None:
        self.tensors: tuple[TensorSpec, ...] = tuple(
            sorted(tensors, key=lambda tensor: tensor.name.encode())
        )
        if len(self.tensors) > MAX_TENSORS:
            raise LimitError(
                f"a layout has {len(self.tensors)} tensors, at most {MAX_TENSORS} allowed"
            )
        self._index = {tensor.name: i for i, tensor in enumerate(self.tensors)}
        if len(self._index) != len(self.tensors):
            twice = [
                a.name
                for a, b in zip(self.tensors, self.tensors[1:], strict=False)
                if a.name == b.name
            ]
            raise LayoutError(f"tensor {twice[0]!r} appears twice")

    @cached_property
    def id(self) -> bytes:
        """The layout id: 32 bytes."""
        return layout_hash(self.to_json())

    @property
    def weights(self) -> int:
        """Number of elements of all tensors."""
        return sum(tensor.size for tensor in self.tensors)

    @property
    def nbytes(self) -> int:
        """Number of bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors)

    def index(self, name: str) -> int:
        """Number of a tensor in layout order.

        Raises:
            LayoutError: No such tensor.
        """
        try:
            return self._index[name]
        except KeyError:
            raise LayoutError(f"the layout has no tensor {name!r}") from None

    def to_json(self) -> bytes:
        """The canonical JSON of spec section 1."""
        rows = [[t.name, t.dtype.name, list(t.shape)] for t in self.tensors]
        return json.dumps(rows, separators=(",", ":"), ensure_ascii=False).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Layout:
        """Read the canonical JSON.

        Raises:
            HeaderError: It is no list of names, dtypes and shapes.
        """
        try:
            tensors = [_tensor(*row) for row in json.loads(data.decode())]
        except (HeaderError, LayoutError):
            raise
        except (ValueError, TypeError, RecursionError) as error:
            raise HeaderError(
                f"a layout is not a JSON list of [name, dtype, shape]: {error}"
            ) from error
        layout = cls(tensors)
        if layout.to_json() != data:
            raise HeaderError("a layout is not in its canonical form")
        return layout

    def require_same(self, other: Layout, what: str = "the other state") -> None:
        """Raise LayoutMismatchError, naming what differs, unless the layouts are the same."""
        if self.id == other.id:
            return
        mine, theirs = set(self.tensors), set(other.tensors)
        missing = [str(t) for t in self.tensors if t not in theirs]
        extra = [str(t) for t in other.tensors if t not in mine]
        parts = []
        for label, found in (("missing or different", missing), ("not expected", extra)):
            if found:
                more = f" and {len(found) - 4} more" if len(found) > 4 else ""
                parts.append(f"{label}: {', '.join(found[:4])}{more}")
        raise LayoutMismatchError(f"{what} has other tensors; {'; '.join(parts)}")
