"""Small checkpoints for tests, written byte by byte: no code under test takes part."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

SIZES = {"BF16": 2, "F32": 4, "F8_E4M3": 1, "I64": 8, "BOOL": 1, "U8": 1}

Tensor = tuple[str, tuple[int, ...], bytes]


def make_tensors(seed: int = 0, rows: int = 96) -> dict[str, Tensor]:
    """Tensors of mixed dtypes and shapes, a scalar and an empty one too."""
    rng = np.random.default_rng(seed)
    shapes: dict[str, tuple[str, tuple[int, ...]]] = {
        "model.embed.weight": ("BF16", (rows, 64)),
        "model.layers.0.proj.weight": ("BF16", (64, 64)),
        "model.layers.0.norm.weight": ("F32", (67,)),
        "model.layers.1.proj.weight": ("F8_E4M3", (33, 5)),
        "model.step": ("I64", ()),
        "model.empty": ("BF16", (0, 4)),
    }
    return {
        name: (dtype, shape, rng.bytes(SIZES[dtype] * int(np.prod(shape))))
        for name, (dtype, shape) in shapes.items()
    }


def change(
    tensors: Mapping[str, Tensor], density: float = 0.02, seed: int = 1
) -> dict[str, Tensor]:
    """The tensors with some bytes changed by one."""
    rng = np.random.default_rng(seed)
    changed: dict[str, Tensor] = {}
    for name, (dtype, shape, data) in tensors.items():
        octets = np.frombuffer(data, np.uint8).copy()
        octets[rng.random(len(octets)) < density] += 1
        changed[name] = (dtype, shape, octets.tobytes())
    return changed


def file_bytes(
    tensors: Mapping[str, Tensor], *, pad: int = 0, metadata: dict[str, str] | None = None
) -> bytes:
    """A safetensors file; ``pad`` spaces after the header move the weights off their alignment."""
    header: dict[str, object] = {"__metadata__": metadata} if metadata else {}
    at = 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode() + b" " * pad
    return len(text).to_bytes(8, "little") + text + b"".join(t[2] for t in tensors.values())


def write_folder(folder: Path, tensors: Mapping[str, Tensor], *, index: bool = True) -> Path:
    """A sharded checkpoint in two files, with a config."""
    folder.mkdir(parents=True, exist_ok=True)
    names = list(tensors)
    weight_map = {}
    for i, part in enumerate((names[::2], names[1::2])):
        file = f"model-{i + 1:05}-of-00002.safetensors"
        (folder / file).write_bytes(file_bytes({n: tensors[n] for n in part}, pad=i))
        weight_map.update(dict.fromkeys(part, file))
    if index:
        (folder / "model.safetensors.index.json").write_text(
            json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map})
        )
    (folder / "config.json").write_text('{"model_type": "test"}')
    return folder


def weights_of(path: Path) -> dict[str, bytes]:
    """The bytes of every safetensors file of a checkpoint, by name."""
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    return {file.name: file.read_bytes() for file in files}
