"""A state over memory-mapped safetensors files, held under a lock.

The weights are never copied: the state's arrays are views of the maps, at whatever offset the
header gives. Readers share the files' locks, a writer has them alone, so nobody sees weights that
are being changed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pulsecast import dtypes
from pulsecast.errors import BusyError, CheckpointError, FormatError, HeaderError, LayoutError
from pulsecast.patch.layout import Layout, TensorSpec
from pulsecast.patch.safefile import SafeHeader, read_header
from pulsecast.patch.state import State
from pulsecast.weights.shards import Shards

if TYPE_CHECKING:
    from typing_extensions import Self

# What lies on a file system without locks (some of FUSE and NFS) can be read, not changed.
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}


class _Mapped(NamedTuple):
    path: Path
    fd: int
    map: mmap.mmap


@contextmanager
def _located(path: Path) -> Iterator[None]:
    """Add to an error where it was found."""
    try:
        yield
    except (FormatError, LayoutError) as error:
        raise type(error)(f"{error}, in {path}") from error


class MappedShards:
    """The state of a checkpoint's files, mapped and locked until closed.

    Attributes:
        shards: The files.
        state: Their weights, as views of the maps. Not to be used after `close`.
        writable: Whether writing to the state changes the files.
    """

    def __init__(self, shards: Shards, *, writable: bool = False) -> None:
        """Lock, map and validate the files.

        Raises:
            BusyError: Another process changes the files, or uses them while they should be changed.
            CheckpointError: The files do not form a checkpoint, or a writable one is a link.
            FormatError: A file is no valid safetensors file.
        """
        self.shards = shards
        self.writable = writable
        self._files: list[_Mapped] = []
        try:
            headers = [self._map(file) for file in shards.files]
            self.state = self._build(headers)
        except BaseException:
            self._release()
            raise

    @property
    def sizes(self) -> dict[str, int]:
        """Size of every file by its name."""
        return {file.path.name: len(file.map) for file in self._files}

    def flush(self) -> None:
        """Return when all that was written to the state is on disk."""
        for file in self._files:
            file.map.flush()

    def close(self) -> None:
        """Give up the maps and the lock. What was written stays, flushed or not."""
        if self._files:
            del self.state
            self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _release(self) -> None:
        # A map lives as long as an array over it, and keeps the file open; the lock has to go now.
        for file in self._files:
            with contextlib.suppress(OSError):
                fcntl.flock(file.fd, fcntl.LOCK_UN)
            os.close(file.fd)
        self._files.clear()

    def _map(self, path: Path) -> SafeHeader:
        flags = os.O_RDONLY
        access = mmap.ACCESS_READ
        if self.writable:
            # A file behind a link has other users, as in the Hugging Face cache.
            flags, access = os.O_RDWR | os.O_NOFOLLOW, mmap.ACCESS_WRITE
        try:
            fd = os.open(path, flags | os.O_CLOEXEC)
        except OSError as error:
            if self.writable and error.errno == errno.ELOOP:
                raise CheckpointError(
                    f"{path} is a link, and nothing is changed in place behind a link: use -o"
                ) from error
            raise
        try:
            self._lock(fd, path)
            if os.fstat(fd).st_size == 0:  # cannot be mapped
                raise FormatError(f"the file is empty, in {path}")
            mapped = _Mapped(path, fd, mmap.mmap(fd, 0, access=access))
        except BaseException:
            os.close(fd)
            raise
        self._files.append(mapped)
        with _located(path):
            return read_header(memoryview(mapped.map))

    def _lock(self, fd: int, path: Path) -> None:
        try:
            fcntl.flock(fd, (fcntl.LOCK_EX if self.writable else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except BlockingIOError as error:
            who = "uses" if self.writable else "is changing"
            raise BusyError(f"another process {who} {path}: try again when it has ended") from error
        except OSError as error:
            if self.writable or error.errno not in _NO_LOCKS:
                raise

    def _build(self, headers: list[SafeHeader]) -> State:
        specs: list[TensorSpec] = []
        arrays: dict[str, dtypes.Lanes] = {}
        for file, header in zip(self._files, headers, strict=True):
            if header.metadata.get("format", "").startswith("pulsecast-patch-"):
                raise CheckpointError(f"{file.path} is a patch, not a checkpoint")
            for name, entry in header.entries.items():
                if name in arrays:
                    raise LayoutError(f"tensor {name!r} is in two files, again in {file.path}")
                wanted = self.shards.weight_map.get(name, file.path.name)
                if wanted != file.path.name or (
                    self.shards.index and name not in self.shards.weight_map
                ):
                    raise LayoutError(f"the index does not put tensor {name!r} into {file.path}")
                with _located(file.path):
                    spec = TensorSpec(name, dtypes.by_name(entry.dtype), entry.shape)
                    if entry.stop - entry.start != spec.nbytes:
                        raise HeaderError(f"{spec} takes {entry.stop - entry.start} bytes")
                specs.append(spec)
                arrays[name] = np.frombuffer(
                    file.map, dtype=spec.dtype.lane, count=spec.size, offset=entry.start
                )
        missing = sorted(self.shards.weight_map.keys() - arrays.keys())
        if missing:
            where = self.shards.folder / self.shards.weight_map[missing[0]]
            raise LayoutError(
                f"{len(missing)} tensors of the index are not in their files: "
                f"{missing[0]!r} is not in {where}"
            )
        layout = Layout(specs)
        return State(layout, [arrays[spec.name] for spec in layout.tensors])
