"""Applying: exactly the target, or unchanged and an error (spec section 10)."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from .. import kernels
from ..dtypes import Lanes
from ..errors import ArrayError, RootMismatchError, WrongBaseError
from . import digest
from .decode import Change, Patch
from .digest import Progress, Sums
from .state import State


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyReport:
    """What an apply did."""

    base: bytes
    target: bytes
    changes: int
    seconds: float
    sums: Sums
    """Sums of the tensors as they are now; the next apply may start from them."""


class ChangeLog(Protocol):
    """Changes with the old bits they replace, kept until the new state is proved."""

    def record(self, change: Change) -> None:
        """Keep a change; the state is still the base."""

    def seal(self) -> None:
        """All changes are known; from here on the state may be written."""

    def entries(self) -> Iterator[Change]:
        """What was recorded, in order."""

    def commit(self) -> None:
        """The target is proved; forget the old bits."""

    def rollback(self, state: State) -> None:
        """Leave the base, whatever was written since `seal`."""


class MemoryLog:
    """A log in memory, of the size of the changes: for states that do not outlive the process."""

    def __init__(self) -> None:
        self._changes: list[Change] = []
        self._sealed = False

    def record(self, change: Change) -> None:
        """Keep a change."""
        self._changes.append(change)

    def seal(self) -> None:
        """From here on the state may be written."""
        self._sealed = True

    def entries(self) -> Iterator[Change]:
        """What was recorded."""
        return iter(self._changes)

    def commit(self) -> None:
        """Forget the old bits."""
        self._changes.clear()

    def rollback(self, state: State) -> None:
        """Write the old bits back."""
        if self._sealed:
            for change in self._changes:
                write(state, change, change.old)
        self._changes.clear()


def write(state: State, change: Change, values: Lanes) -> None:
    """Put values, its old or its new lanes, where a change lies."""
    array = state.arrays[change.tensor][change.start :]
    if change.places is None:
        array[: len(values)] = values
    else:
        kernels.apply(array, change.places, values)


def read(state: State, change: Change) -> Lanes:
    """The lanes where a change lies now, copied."""
    array = state.arrays[change.tensor][change.start :]
    if change.places is None:
        return array[: len(change.new)].copy()
    return kernels.gather(array, change.places)


def apply(
    patch: Patch,
    state: State,
    *,
    tensors: Collection[str] | None = None,
    sums: Sums | None = None,
    log: ChangeLog | None = None,
    disposable: bool = False,
    threads: int | None = None,
    progress: Progress | None = None,
) -> ApplyReport:
    """Turn the patch's base into its target, in place and with proof, or leave it the base.

    Every block is decoded and checked before the first weight is written. Then the changes are
    written, read back, and the sums of what was *read* must give the target's root.

    Args:
        patch: The patch.
        state: Its base; its arrays are written.
        tensors: Names; apply to these tensors only. Their sums are checked instead of the root.
        sums: Sums of the state if they are known (an earlier report's); else one pass over it.
        log: Where old bits are kept; by default in memory.
        disposable: The state is a copy that the caller throws away on any error: it is written
            block by block while decoding, without a log.
        threads: By default all cores this process may use.
        progress: Called with the number of weights done; one pass over all when ``sums`` is None.

    Raises:
        LayoutMismatchError: The state has other tensors than the patch.
        WrongBaseError: The state is not the patch's base.
        FormatError: The patch is damaged.
        RootMismatchError: What was written is not the target. The old bits were restored.
    """
    started = time.perf_counter()
    for part in patch.bind(state.layout):  # what cannot work is refused before the pass over all
        for touched in part.header.touched:
            tensor = part.boxes.boxes[touched.box].tensor
            if not state.arrays[tensor].flags.writeable:
                name = state.layout.tensors[tensor].name
                raise ArrayError(f"tensor {name!r} is read-only: open the checkpoint for writing")
    if sums is None:
        sums = digest.tensor_sums(state, threads=threads, progress=progress)
    have = digest.root(state.layout, sums)
    if have != patch.base:
        raise WrongBaseError(have.hex(), patch.base.hex())
    after = sums.copy()
    changed = 0
    if disposable:
        for block in patch.decode(state, tensors, threads=threads):
            for change in block:
                changed += _advance(state, change, after)
        _prove(patch, state, after, tensors)
    else:
        log = MemoryLog() if log is None else log
        try:
            for block in patch.decode(state, tensors, threads=threads):
                for change in block:
                    log.record(change)
            log.seal()
            for change in log.entries():
                changed += _advance(state, change, after)
            _prove(patch, state, after, tensors)
        except BaseException as error:  # also a KeyboardInterrupt must not leave a mixture
            log.rollback(state)
            if isinstance(error, RootMismatchError):
                raise RootMismatchError(f"{error}; the old bits were restored") from error
            raise
        log.commit()
    return ApplyReport(
        base=patch.base,
        target=patch.target if tensors is None else digest.root(state.layout, after),
        changes=changed,
        seconds=time.perf_counter() - started,
        sums=after,
    )


def _advance(state: State, change: Change, sums: Sums) -> int:
    """Write a change, update the sum from what is read back, and count the weights that changed."""
    if change.places is None:
        write(state, change, change.new)
        now = read(state, change)
        delta = kernels.digest(now, change.start) - kernels.digest(change.old, change.start)
        count = int(np.count_nonzero(change.old != change.new))
    else:
        array = state.arrays[change.tensor][change.start :]
        delta = kernels.write(array, change.places, change.old, change.new, change.start)
        count = len(change.new)
    sums[change.tensor] = (int(sums[change.tensor]) + delta) % (1 << 64)
    return count


def _prove(patch: Patch, state: State, sums: Sums, tensors: Collection[str] | None) -> None:
    """Raise RootMismatchError unless the sums are the target's."""
    wanted = None if tensors is None else {state.layout.index(name) for name in tensors}
    for part in patch.bind(state.layout):
        for touched in part.header.touched:
            box = part.boxes.boxes[touched.box]
            tensor = state.layout.tensors[box.tensor]
            if wanted is not None and box.tensor not in wanted:
                continue
            if box.shape == tensor.shape:
                found = int(sums[box.tensor])
            elif wanted is not None:
                found = part.boxes.sum(state, touched.box)
            else:
                continue  # the sums of smaller boxes are not kept; the root covers them
            if found != touched.sum:
                raise RootMismatchError(f"{tensor.name} does not have its target sum after writing")
    if tensors is None:
        have = digest.root(state.layout, sums)
        if have != patch.target:
            raise RootMismatchError(
                f"the state has root {have.hex()[:16]}… after writing, the target is "
                f"{patch.target.hex()[:16]}…"
            )
