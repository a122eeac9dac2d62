"""Applying: exactly the target, or unchanged and an error (spec section 10)."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from .. import kernels
from ..dtypes import Lanes
from ..errors import RootMismatchError, WrongBaseError
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
    """Changes and the old bits they replace, kept until the new state is proved.

    `apply` calls ``record`` for every change while the state is still the base, then ``seal``; then it
    writes what ``entries`` gives, in any number of calls; then ``commit``, or after an error anywhere
    ``rollback``, which must leave the base.
    """

    def record(self, change: Change, old: Lanes) -> None: ...
    def seal(self) -> None: ...
    def entries(self) -> Iterator[tuple[Change, Lanes]]: ...
    def commit(self) -> None: ...
    def rollback(self, state: State) -> None: ...


class MemoryLog:
    """A log in memory, of the size of the changes: for states that do not outlive the process."""

    def __init__(self) -> None:
        self._entries: list[tuple[Change, Lanes]] = []
        self._sealed = False

    def record(self, change: Change, old: Lanes) -> None:
        """Keep a change and the bits it will replace."""
        self._entries.append((change, old))

    def seal(self) -> None:
        """From here on the state may be written."""
        self._sealed = True

    def entries(self) -> Iterator[tuple[Change, Lanes]]:
        """What was recorded."""
        return iter(self._entries)

    def commit(self) -> None:
        """The target is proved; the old bits are not needed any more."""
        self._entries.clear()

    def rollback(self, state: State) -> None:
        """Write the old bits back."""
        if self._sealed:
            for change, old in self._entries:
                write(state, change, old)
        self._entries.clear()


def write(state: State, change: Change, values: Lanes) -> None:
    """Put values where a change lies."""
    array = state.arrays[change.tensor]
    if change.places is None:
        array[change.start : change.start + len(values)] = values
    else:
        kernels.apply(array, change.places, values)


def read(state: State, change: Change) -> Lanes:
    """The bits where a change lies, copied."""
    array = state.arrays[change.tensor]
    if change.places is None:
        return array[change.start : change.start + len(change.values)].copy()
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
    """Turn the patch's base into its target, in place and with proof; on any error it stays the base.

    Every block is decoded and checked before the first weight is written. Then the changes are
    written, read back, and the sums of what was *read* must give the target's root.

    Args:
        patch: The patch.
        state: Its base; its arrays are written.
        tensors: Apply to these tensors only. Their sums are checked instead of the root.
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
    patch.bind(state.layout)  # a patch that does not fit is refused before the pass over the state
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
                old = read(state, change)
                write(state, change, change.values)
                _add(after, change, old, read(state, change))
                changed += _changed(change, old)
        _prove(patch, state, after, tensors)
    else:
        log = MemoryLog() if log is None else log
        try:
            for block in patch.decode(state, tensors, threads=threads):
                for change in block:
                    old = read(state, change)
                    changed += _changed(change, old)
                    log.record(change, old)
            log.seal()
            for change, old in log.entries():
                write(state, change, change.values)
                _add(after, change, old, read(state, change))
            _prove(patch, state, after, tensors)
        except BaseException:  # also a KeyboardInterrupt must not leave a mixture
            log.rollback(state)
            raise
        log.commit()
    return ApplyReport(
        base=patch.base,
        target=patch.target if tensors is None else digest.root(state.layout, after),
        changes=changed,
        seconds=time.perf_counter() - started,
        sums=after,
    )


def _changed(change: Change, old: Lanes) -> int:
    return len(old) if change.places is not None else int(np.count_nonzero(old != change.values))


def _add(sums: Sums, change: Change, old: Lanes, now: Lanes) -> None:
    if change.places is None:
        delta = kernels.digest(now, change.start) - kernels.digest(old, change.start)
    else:
        delta = kernels.digest_change(change.places, old, now)
    sums[change.tensor] = (int(sums[change.tensor]) + delta) % (1 << 64)


def _prove(patch: Patch, state: State, sums: Sums, tensors: Collection[str] | None) -> None:
    """Raise RootMismatchError unless the sums are the target's."""
    wanted = None if tensors is None else {state.layout.index(name) for name in tensors}
    for part in patch.bind(state.layout):
        for touched in part.header.touched:
            box = part.boxes.boxes[touched.box]
            tensor = state.layout.tensors[box.tensor]
            if box.shape != tensor.shape or (wanted is not None and box.tensor not in wanted):
                continue  # the sum of a smaller box is not kept; the root covers it
            if int(sums[box.tensor]) != touched.sum:
                raise RootMismatchError(
                    f"{tensor.name} does not have its target sum after writing; "
                    "the old bits were restored"
                )
    if tensors is None:
        found = digest.root(state.layout, sums)
        if found != patch.target:
            raise RootMismatchError(
                f"the state has root {found.hex()[:16]}… after writing, the target is "
                f"{patch.target.hex()[:16]}…; the old bits were restored"
            )
