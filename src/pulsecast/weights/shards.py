"""Which files make up a checkpoint: one safetensors file or a Hugging Face folder.

Nothing here reads a weight. Names that a file gives (those of an index) are never trusted: a shard
is a plain name inside the folder, and a symbolic link is followed only where it cannot lead to a
file of somebody else.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pulsecast.errors import CheckpointError, HeaderError, LimitError
from pulsecast.patch.safefile import no_duplicates

SUFFIX = ".safetensors"
INDEX_SUFFIX = ".safetensors.index.json"
INDEX_MAX_BYTES = 64 << 20
SHARDS_MAX = 1 << 16

# Copies of the weights in other formats: after a patch they would be those of the base.
_OTHER_WEIGHTS = frozenset(
    ".safetensors .bin .pt .pth .ckpt .gguf .ggml .h5 .msgpack .onnx .npz .tflite".split()
)


@dataclass(frozen=True, slots=True)
class Shards:
    """The files of a checkpoint.

    Attributes:
        path: What the user named: a file or a folder.
        folder: Where the shards lie.
        names: Plain file names of the shards, in order.
        index: Plain name of the index file, if there is one.
        weight_map: Tensor name to shard name as the index says; empty without an index.
    """

    path: Path
    folder: Path
    names: tuple[str, ...]
    index: str | None = None
    weight_map: dict[str, str] = field(default_factory=dict)

    @property
    def is_folder(self) -> bool:
        """Whether the checkpoint is a folder, not a single file."""
        return self.path == self.folder

    @property
    def files(self) -> tuple[Path, ...]:
        """Paths of the shards, in order."""
        return tuple(self.folder / name for name in self.names)

    def companions(self) -> Iterator[Path]:
        """Every other file that belongs to the folder, relative to it: index, config, tokenizer.

        Hidden files and other copies of the weights (``pytorch_model.bin``,
        ``consolidated.safetensors`` and their indexes) are left out.
        """
        if self.is_folder:
            yield from self._companions(self.folder)

    def _companions(self, folder: Path) -> Iterator[Path]:
        for path in sorted(folder.iterdir()):
            relative = path.relative_to(self.folder)
            if path.name.startswith("."):
                continue
            if path.is_dir():
                # A link to a folder could lead anywhere, and in a circle.
                if not path.is_symlink():
                    yield from self._companions(path)
            elif path.suffix in _OTHER_WEIGHTS:
                continue
            elif path.name.endswith(".index.json") and str(relative) != self.index:
                continue
            else:
                require_regular(path)
                yield relative


def find_shards(path: Path) -> Shards:
    """Find the files of a checkpoint: a file, or a folder with an index or without.

    Raises:
        FileNotFoundError: There is nothing at this path.
        CheckpointError: The folder holds no checkpoint, more than one, or a link that leads out of
            it.
        HeaderError: The index is malformed or names a file outside the folder.
        LimitError: The index is too large.
    """
    # Links in the way to the checkpoint are the user's own; only what lies inside is suspect.
    path = path.resolve(strict=True)
    if not path.is_dir():
        require_regular(path)
        return Shards(path, path.parent, (path.name,))
    indexes = sorted(p.name for p in path.glob(f"[!.]*{INDEX_SUFFIX}"))
    if f"model{INDEX_SUFFIX}" in indexes:
        indexes = [f"model{INDEX_SUFFIX}"]
    if len(indexes) > 1:
        raise CheckpointError(
            f"{path} holds more than one checkpoint ({', '.join(indexes)}): name one file instead"
        )
    if indexes:
        weight_map = _read_index(path / indexes[0])
        shards = Shards(path, path, tuple(sorted(set(weight_map.values()))), indexes[0], weight_map)
    elif (path / f"model{SUFFIX}").exists():
        shards = Shards(path, path, (f"model{SUFFIX}",))
    else:
        names = tuple(sorted(p.name for p in path.glob(f"[!.]*{SUFFIX}")))
        if not names:
            raise CheckpointError(f"no {SUFFIX} file in {path}: this folder is not a checkpoint")
        shards = Shards(path, path, names)
    for file in shards.files:
        require_regular(file)
    return shards


def require_regular(file: Path) -> None:
    """Refuse what is not a regular file, or a link that leads out of its folder.

    A link may stay inside the folder, or lead to the ``blobs`` of the same repository in a Hugging
    Face cache, where every file of a snapshot is such a link.

    Raises:
        FileNotFoundError: There is no such file.
        CheckpointError: It is a folder, a device or a link that leads elsewhere.
    """
    real = file.resolve(strict=True)
    if not real.is_file():
        raise CheckpointError(f"{file} is not a regular file")
    if not file.is_symlink():
        return
    snapshots = [parent for parent in file.parents if parent.name == "snapshots"]
    if real.parent not in [
        file.parent.resolve(),
        *(s.resolve().parent / "blobs" for s in snapshots),
    ]:
        raise CheckpointError(
            f"{file} is a link that leads out of the folder, to {real}: put the file itself there"
        )


def _read_index(file: Path) -> dict[str, str]:
    require_regular(file)
    if file.stat().st_size > INDEX_MAX_BYTES:
        raise LimitError(f"the index is larger than {INDEX_MAX_BYTES} bytes, in {file}")
    try:
        content = json.loads(file.read_bytes(), object_pairs_hook=no_duplicates)
    except (ValueError, RecursionError) as error:
        raise HeaderError(f"the index is not valid JSON ({error}), in {file}") from error
    weight_map = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise HeaderError(f"the index has no weight_map, in {file}")
    for tensor, name in weight_map.items():
        if not isinstance(name, str) or not _is_plain(name):
            raise HeaderError(
                f"the index puts tensor {tensor!r} into {name!r}, which is not the name of a "
                f"{SUFFIX} file in this folder, in {file}"
            )
    if len(set(weight_map.values())) > SHARDS_MAX:
        raise LimitError(f"the index names more than {SHARDS_MAX} files, in {file}")
    return weight_map


def _is_plain(name: str) -> bool:
    """Whether a name can only mean a visible file in its own folder, on any system."""
    return (
        name.endswith(SUFFIX)
        and not name.startswith(".")
        and len(name.encode("utf-8", "surrogatepass")) <= 255
        and name.isprintable()
        and not any(c in name for c in "/\\:")
    )
