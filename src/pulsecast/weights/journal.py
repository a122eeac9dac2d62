"""The journal of an apply in place: killed at any moment, the next opening has base or target.

    record …   places, old bits and new bits are written to NAME.partial
               a crash here: nothing was changed, the file is thrown away
    seal       the file is flushed, then renamed to NAME: the mark "applying"
    (scatter)  the new bits are written to the checkpoint
               a crash from here on: whoever opens the checkpoint next writes the old bits back
    commit     the checkpoint is flushed, then NAME is removed: the mark "done"

NAME is ``.pulsecast-journal`` inside a folder, ``.FILE.pulsecast-journal`` beside a file. All of
this happens under the exclusive lock of the checkpoint's files (`MappedShards`), recovery too.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import numpy.typing as npt

from pulsecast import kernels
from pulsecast.dtypes import Lanes
from pulsecast.errors import BusyError, JournalError, PulsecastError
from pulsecast.patch.decode import Change
from pulsecast.patch.digest import root, tensor_sums
from pulsecast.patch.state import State
from pulsecast.patch.transaction import read, write
from pulsecast.weights.fresh import sync_path
from pulsecast.weights.journal_file import Identity, JournalReader, JournalWriter
from pulsecast.weights.mapped import MappedShards
from pulsecast.weights.shards import Shards, find_shards

if TYPE_CHECKING:
    from typing_extensions import Self

log = logging.getLogger("pulsecast")

_RESTORE = "restore the checkpoint from a copy, then remove the journal"


def journal_path(owner: Path) -> Path:
    """Where the journal of a checkpoint file or folder lies."""
    if owner.is_dir():
        return owner / ".pulsecast-journal"
    return owner.with_name(f".{owner.name}.pulsecast-journal")


def _draft_path(owner: Path) -> Path:
    journal = journal_path(owner)
    return journal.with_name(f"{journal.name}.partial")


class Journal:
    """The change log of one apply in place, on disk beside the weights it will change.

    Use it as a context manager around the apply. Leaving it before `seal` throws the journal away,
    leaving it between `seal` and `commit` or `rollback` keeps the journal: the next opening of the
    checkpoint rolls back.
    """

    def __init__(self, checkpoint: MappedShards, *, base: bytes, target: bytes) -> None:
        """Start a journal.

        Args:
            checkpoint: Files to change, opened writable.
            base: Their state root now.
            target: Their state root afterwards.
        """
        self._checkpoint = checkpoint
        owner = checkpoint.shards.path
        self._path = journal_path(owner)
        self._draft = _draft_path(owner)
        # Left by a process that was killed: the lock we hold proves that it is gone.
        self._draft.unlink(missing_ok=True)
        # It holds weights: nobody else may read it, whoever may read the checkpoint.
        fd = os.open(self._draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._file: BinaryIO | None = os.fdopen(fd, "wb", buffering=1 << 20)
        self._reader: JournalReader | None = None
        self._writer = JournalWriter(
            self._file,
            Identity(
                layout=checkpoint.state.layout.id.hex(),
                base=base.hex(),
                target=target.hex(),
                files=checkpoint.sizes,
            ),
        )

    def record(self, change: Change) -> None:
        """Keep a change and the bits it will replace."""
        self._writer.write(change)

    def seal(self) -> None:
        """Return when the journal is on disk under its name: the mark "applying"."""
        self._writer.finish()
        self._close_file()
        self._draft.rename(self._path)
        sync_path(self._path.parent)
        self._reader = JournalReader(self._path)

    def entries(self) -> Iterator[Change]:
        """What was recorded, read back from the sealed journal."""
        if self._reader is None:
            raise JournalError(f"the journal is not sealed: {self._path}")
        return self._reader.records(self._checkpoint.state.layout)

    def commit(self) -> None:
        """Flush the changed weights, then remove the journal: the mark "done"."""
        self._checkpoint.flush()
        self._remove()

    def rollback(self, state: State) -> None:
        """Write the old bits back, flush them and remove the journal. A no-op before `seal`."""
        if self._reader is not None:
            for change in self.entries():
                write(state, change, change.old)
            self._checkpoint.flush()
            self._remove()

    def _remove(self) -> None:
        self._path.unlink()
        sync_path(self._path.parent)

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with contextlib.suppress(OSError):  # no space for what is buffered: it is not needed now
            self._close_file()
        self._draft.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(self._path)  # a failed write does not know where


def recover(shards: Shards) -> None:
    """Roll back every apply in place that was cut short and touches these files.

    A folder and the single files in it have journals of their own; either may concern the files in
    question.

    Raises:
        BusyError: Another process holds the files, perhaps still applying.
        JournalError: A journal is damaged, belongs to other files or does not lead back to its
            base. Nothing was written.
        OSError: The files cannot be written.
    """
    for owner in _owners(shards):
        if os.path.lexists(journal_path(owner)):
            _recover(owner)


def require_settled(shards: Shards) -> None:
    """Refuse files that somebody began to change after `recover`; to be called under their lock.

    The lock proves that the writers of unsealed journals are gone, so those are thrown away.

    Raises:
        BusyError: There is a sealed journal.
    """
    for owner in _owners(shards):
        if os.path.lexists(journal_path(owner)):
            raise BusyError(f"another process began to change {owner} and was cut short: try again")
        with contextlib.suppress(PermissionError):  # a reader may leave it to the next writer
            _draft_path(owner).unlink(missing_ok=True)


def _owners(shards: Shards) -> set[Path]:
    """Files and folders whose journals may be about these files."""
    real = [file.resolve() for file in shards.files]
    return {*real, *(file.parent for file in real if _is_shard(file))}


def _is_shard(file: Path) -> bool:
    """Whether a folder with a journal is a checkpoint that the file is part of.

    Other files beside it are not: their locks say nothing about the folder's writer.
    """
    sealed = os.path.lexists(journal_path(file.parent))
    if not sealed and not os.path.lexists(_draft_path(file.parent)):
        return False
    try:
        return file in [shard.resolve() for shard in find_shards(file.parent).files]
    except (PulsecastError, OSError):
        return sealed  # a folder in disorder: let recovery say what is wrong


def _recover(owner: Path) -> None:
    path = journal_path(owner)
    try:
        checkpoint = MappedShards(find_shards(owner), writable=True)
    except OSError as error:
        why = f"an apply in place was cut short and cannot be rolled back ({error.strerror})"
        raise type(error)(error.errno, why, str(owner)) from error
    with checkpoint:
        try:
            journal = JournalReader(path)
        except FileNotFoundError:
            return  # whoever held the lock before us has finished
        identity = journal.identity
        if (
            identity.layout != checkpoint.state.layout.id.hex()
            or identity.files != checkpoint.sizes
        ):
            raise JournalError(f"the journal belongs to other files, in {path}: remove it")
        _require_base(checkpoint.state, journal)
        for change in journal.records(checkpoint.state.layout):
            write(checkpoint.state, change, change.old)
        checkpoint.flush()
        path.unlink()
        sync_path(path.parent)
    log.warning(
        "an apply in place was cut short: %s is rolled back to its base %s…",
        owner,
        identity.base[:16],
    )


def _require_base(state: State, journal: JournalReader) -> None:
    """Prove, before a weight is written, that rolling back gives the base and nothing else."""
    sums = tensor_sums(state)
    for change in journal.records(state.layout):
        now = read(state, change)
        # Bytes, not lanes: a power loss may part the halves of a lane on a page border.
        is_old, is_new = (_octets(now) == _octets(bits) for bits in (change.old, change.new))
        if not np.all(is_old | is_new):
            raise JournalError(
                f"tensor {state.layout.tensors[change.tensor].name!r} was changed after the apply "
                f"was cut short, in {journal.path}: {_RESTORE}"
            )
        delta = kernels.digest_change(change.flat(), now, change.old)
        sums[change.tensor] = (int(sums[change.tensor]) + delta) % (1 << 64)
    if root(state.layout, sums).hex() != journal.identity.base:
        raise JournalError(
            f"the journal does not lead back to its base, in {journal.path}: {_RESTORE}"
        )


def _octets(lanes: Lanes) -> npt.NDArray[np.uint8]:
    return np.ascontiguousarray(lanes).view(np.uint8)
