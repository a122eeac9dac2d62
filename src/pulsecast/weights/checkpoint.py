"""Checkpoints on disk: opened as a state, recovered if need be, copied whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pulsecast.errors import CheckpointError
from pulsecast.weights.fresh import copy_file, fresh, require_space
from pulsecast.weights.journal import recover, require_settled
from pulsecast.weights.mapped import MappedShards
from pulsecast.weights.shards import find_shards

if TYPE_CHECKING:
    from typing_extensions import Self


class Checkpoint(MappedShards):
    """A safetensors file or a Hugging Face checkpoint folder, open as a state.

    ```python
    with Checkpoint.open("model/") as checkpoint:
        print(state_root(checkpoint.state).hex())
    ```
    """

    @classmethod
    def open(cls, path: str | Path, *, writable: bool = False) -> Self:
        """Open a checkpoint; an apply in place that was cut short is rolled back first.

        Args:
            path: A safetensors file, or a folder with an index, with ``model.safetensors`` or with
                shards.
            writable: Whether writing to the state changes the files. The lock is then exclusive.

        Raises:
            BusyError: Another process is changing it, or uses it while it should be changed.
            CheckpointError: The files do not form a checkpoint.
            FormatError: A file is malformed.
            JournalError: An apply in place was cut short and cannot be rolled back.
            LayoutError: Tensors are missing or there twice.
            OSError: A file is missing or cannot be read.
        """
        path = Path(path)
        if writable and path.is_symlink() and not path.is_dir():
            raise CheckpointError(
                f"{path} is a link, and nothing is changed in place behind a link: name the file"
            )
        shards = find_shards(path)
        recover(shards)
        checkpoint = cls(shards, writable=writable)
        try:
            require_settled(shards)
        except BaseException:
            checkpoint.close()
            raise
        return checkpoint

    @property
    def path(self) -> Path:
        """The file or folder."""
        return self.shards.path

    @property
    def files(self) -> tuple[Path, ...]:
        """The safetensors files, in order."""
        return self.shards.files

    @property
    def nbytes(self) -> int:
        """Size of the safetensors files together."""
        return sum(self.sizes.values())

    @contextmanager
    def copy_to(
        self, out: str | Path, *, progress: Callable[[int], None] | None = None
    ) -> Iterator[MappedShards]:
        """Give a writable copy that appears as ``out`` when the block ends, not after an error.

        A folder is copied with its config, tokenizer and other files, without hidden files and
        without other copies of the weights (``pytorch_model.bin``), which would not fit the new
        ones.

        Args:
            out: New file or folder.
            progress: Called with the number of bytes copied since the last call.

        Raises:
            FileExistsError: ``out`` exists.
            OSError: No space, or a file cannot be read or written.
        """
        with fresh(Path(out)) as draft:
            require_space(draft.parent, self.nbytes)
            if self.shards.is_folder:
                draft.mkdir()
                for relative in (*map(Path, self.shards.names), *self.shards.companions()):
                    (draft / relative).parent.mkdir(parents=True, exist_ok=True)
                    copy_file(self.shards.folder / relative, draft / relative, progress)
            else:
                copy_file(self.path, draft, progress)
            with MappedShards(find_shards(draft), writable=True) as copy:
                if copy.state.layout.id != self.state.layout.id:
                    raise CheckpointError(f"the copy of {self.path} has other tensors than it had")
                yield copy
                copy.flush()
