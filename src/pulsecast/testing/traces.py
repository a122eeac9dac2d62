"""Traces: recorded weight updates of real training runs, one safetensors file per run.

| tensor in the file | dtype | meaning |
|---|---|---|
| `base/NAME` | I16, the tensor's shape | BF16 bits before the first step |
| `stepSS/idx/NAME` | I32, strictly ascending | flat positions whose bits change in step SS |
| `stepSS/val/NAME` | I16 | the new BF16 bits at those positions |

Steps are numbered from 00 without holes; applied in order they give all states of the run.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..dtypes import by_name
from ..errors import FormatError, LayoutError
from ..patch.layout import Layout, TensorSpec
from ..patch.safefile import read_header
from ..patch.state import State

_STEP = re.compile(r"step(\d+)/(idx|val)/(.+)", re.DOTALL)
_TYPES: dict[str, np.dtype[Any]] = {"I16": np.dtype("<u2"), "I32": np.dtype("<i4")}

_Array = npt.NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class Trace:
    """The states of a recorded run: a base and the changes of each step.

    Iterating gives a pair (old state, new state) per step; the arrays are the caller's to keep,
    the new state of one step is the old state of the next.
    """

    name: str
    base: State
    changes: tuple[tuple[tuple[_Array, _Array], ...], ...]
    """Per step and tensor in layout order: positions and new bits."""

    @classmethod
    def open(cls, path: str | PathLike[str]) -> Trace:
        """Reads a trace file.

        Raises:
            FormatError: The file is no safetensors file, or not in the trace format.
        """
        path = Path(path)
        tensors = _read_safetensors(path)
        bf16 = by_name("BF16")
        names = sorted(name.removeprefix("base/") for name in tensors if name.startswith("base/"))
        if not names:
            raise FormatError(f"no tensor 'base/…' in {path}")
        layout = Layout([TensorSpec(n, bf16, tensors[f"base/{n}"].shape) for n in names])
        base = State(layout, [_lanes(tensors, f"base/{t.name}").ravel() for t in layout.tensors])
        steps = {int(m[1]) for m in map(_STEP.fullmatch, tensors) if m}
        if steps != set(range(len(steps))):
            raise FormatError(f"steps are not numbered 0, 1, 2 … in {path}: {sorted(steps)}")
        changes = tuple(
            tuple(_changes(tensors, f"step{step:02d}", spec) for spec in layout.tensors)
            for step in sorted(steps)
        )
        return cls(path.name.removesuffix(".safetensors"), base, changes)

    @property
    def layout(self) -> Layout:
        """The tensors of the run."""
        return self.base.layout

    @property
    def names(self) -> list[str]:
        """The names of the tensors, in layout order."""
        return [spec.name for spec in self.layout.tensors]

    @property
    def weights(self) -> int:
        """Number of weights of a state."""
        return self.layout.weights

    def __len__(self) -> int:
        return len(self.changes)

    def __iter__(self) -> Iterator[tuple[State, State]]:
        old = self.base
        for step in self.changes:
            arrays = []
            for number, (places, values) in enumerate(step):
                fresh = old.arrays[number].copy()
                fresh[places] = values
                arrays.append(fresh)
            new = State(self.layout, arrays)
            yield old, new
            old = new


def save_trace(path: str | PathLike[str], states: Sequence[State]) -> None:
    """Writes the states of a run, a base and one for each step, as a trace file.

    Raises:
        LayoutError: A state has another layout or other tensors than BF16.
    """
    layout = states[0].layout
    for spec in layout.tensors:
        if spec.dtype.name != "BF16":
            raise LayoutError(f"traces hold BF16 only, {spec.name} is {spec.dtype.name}")
    tensors: dict[str, _Array] = {}
    for number, spec in enumerate(layout.tensors):
        tensors[f"base/{spec.name}"] = states[0].arrays[number].reshape(spec.shape)
    for step, (old, new) in enumerate(pairwise(states)):
        layout.require_same(new.layout)
        for number, spec in enumerate(layout.tensors):
            after = new.arrays[number]
            places = np.flatnonzero(old.arrays[number] != after)
            tensors[f"step{step:02d}/idx/{spec.name}"] = places.astype("<i4")
            tensors[f"step{step:02d}/val/{spec.name}"] = after[places]
    _write_safetensors(Path(path), tensors)


def _lanes(tensors: dict[str, _Array], name: str) -> npt.NDArray[np.uint16]:
    array = tensors.get(name)
    if array is None or array.dtype != _TYPES["I16"]:
        raise FormatError(f"tensor {name!r} is missing or not I16")
    return array.view(np.uint16)


def _changes(
    tensors: dict[str, _Array], step: str, spec: TensorSpec
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint16]]:
    where = f"{step}/idx/{spec.name}"
    places = tensors.get(where)
    if places is None or places.dtype != _TYPES["I32"] or places.ndim != 1:
        raise FormatError(f"tensor {where!r} is missing or not a list of I32")
    flat = places.astype(np.int64)
    if flat.size and not (flat[0] >= 0 and flat[-1] < spec.size and (np.diff(flat) > 0).all()):
        raise FormatError(f"positions do not ascend or lie outside of the tensor in {where!r}")
    values = _lanes(tensors, f"{step}/val/{spec.name}")
    if values.shape != flat.shape:
        raise FormatError(f"{flat.size} positions but values of shape {values.shape} in {where!r}")
    return flat, values


def _read_safetensors(path: Path) -> dict[str, _Array]:
    data = path.read_bytes()
    tensors = {}
    for name, entry in read_header(data).entries.items():
        dtype = _TYPES.get(entry.dtype)
        if dtype is None or dtype.itemsize * prod(entry.shape) != entry.stop - entry.start:
            raise FormatError(
                f"tensor {name!r} is {entry.dtype} or does not have its bytes: {path}"
            )
        flat = np.frombuffer(data, dtype, prod(entry.shape), entry.start)
        tensors[name] = flat.reshape(entry.shape)
    return tensors


def _write_safetensors(path: Path, tensors: dict[str, _Array]) -> None:
    codes = {np.dtype("<u2"): "I16", np.dtype("<i4"): "I32"}
    header, offset = {}, 0
    for name, array in tensors.items():
        stop = offset + array.nbytes
        shape = list(array.shape)
        header[name] = {
            "dtype": codes[array.dtype],
            "shape": shape,
            "data_offsets": [offset, stop],
        }
        offset = stop
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for array in tensors.values():
            file.write(array.tobytes())
