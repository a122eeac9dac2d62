"""New files and folders that appear complete or not at all."""

from __future__ import annotations

import errno
import functools
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_CHUNK = 64 << 20
# What copy_file_range answers where a file system, or a pair of them, cannot do it.
_CANNOT = {errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EBADF, errno.EPERM}


@contextmanager
def fresh(out: Path) -> Iterator[Path]:
    """Give a temporary sibling of ``out`` to fill as a file or folder, and rename it at the end.

    ``out`` is either complete and on disk, or does not exist: after an error or an interruption the
    sibling is removed; after a kill or a power loss it may stay behind as
    ``.NAME.XXXXXXXX.partial``.

    Raises:
        FileExistsError: ``out`` exists. Nothing is ever overwritten.
        FileNotFoundError: The folder that should hold ``out`` does not exist.
    """
    # Its last component may be a dangling link; resolving it would write somewhere else.
    out = out.parent.resolve(strict=True) / out.name
    _refuse_existing(out)
    draft = out.with_name(f".{out.name}.{secrets.token_hex(4)}.partial")
    try:
        yield draft
        sync_tree(draft)
        _refuse_existing(out)
        draft.rename(out)
    except BaseException as error:
        if draft.is_dir():
            shutil.rmtree(draft)
        else:
            draft.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(out)  # a failed write does not know where
        raise
    sync_path(out.parent)


def _refuse_existing(out: Path) -> None:
    if os.path.lexists(out):
        why = "exists already: remove it or choose another name"
        raise FileExistsError(errno.EEXIST, why, str(out))


def sync_path(path: Path) -> None:
    """Flush a file, or the names in a folder, to disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_tree(path: Path) -> None:
    """Flush a file, or a folder with all it holds, to disk."""
    if path.is_dir():
        for child in path.iterdir():
            sync_tree(child)
    sync_path(path)


def require_space(folder: Path, size: int) -> None:
    """Refuse to start a copy that cannot end well.

    A copy that shares its blocks with the original takes no space until it is written through a
    memory map, and there a full disk is a signal (SIGBUS), not an error.

    Raises:
        OSError: ENOSPC, with fewer than ``size`` bytes free.
    """
    if shutil.disk_usage(folder).free < size:
        raise OSError(errno.ENOSPC, f"no space left: {size:,} bytes are needed", str(folder))


def copy_file(source: Path, target: Path, progress: Callable[[int], None] | None = None) -> None:
    """Copy the content of a file inside the kernel, sharing blocks where the file system can.

    Args:
        source: File to copy; a link is followed.
        target: New file; it must not exist.
        progress: Called with the number of bytes since the last call.
    """
    # Weights that others may not read stay so; the copy must be writable whatever the original is.
    mode = (source.stat().st_mode & 0o777) | 0o200
    with (
        source.open("rb", buffering=0) as reader,
        open(target, "xb", buffering=0, opener=functools.partial(os.open, mode=mode)) as writer,
    ):
        left = os.fstat(reader.fileno()).st_size
        in_kernel = hasattr(os, "copy_file_range")
        while left:
            if in_kernel:
                try:
                    done = os.copy_file_range(reader.fileno(), writer.fileno(), min(left, _CHUNK))
                except OSError as error:
                    if error.errno not in _CANNOT:
                        raise
                    in_kernel = False
                    continue
            else:
                data = reader.read(min(left, _CHUNK >> 4))
                done = len(data)
                while data:
                    data = data[writer.write(data) :]
            if not done and in_kernel:
                in_kernel = False  # some file systems of the network answer 0 instead of an error
            elif not done:
                raise OSError(errno.EIO, "the file became shorter while it was copied", str(source))
            left -= done
            if progress:
                progress(done)
