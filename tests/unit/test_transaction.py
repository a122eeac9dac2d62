"""Applying: exactly the target, or exactly the base and a typed error (spec section 10)."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from pulsecast import kernels
from pulsecast.dtypes import Lanes
from pulsecast.errors import (
    ArrayError,
    HashMismatchError,
    LayoutError,
    LayoutMismatchError,
    RootMismatchError,
    WrongBaseError,
)
from pulsecast.kernels import Places
from pulsecast.patch import digest, encode, transaction
from pulsecast.patch.boxes import Box
from pulsecast.patch.codecs import CODECS
from pulsecast.patch.decode import Change, Patch
from pulsecast.patch.encode import encode_bytes
from pulsecast.patch.part import Part
from pulsecast.patch.state import State
from pulsecast.patch.transaction import MemoryLog, apply
from tests.states import change_state, make_state, mixed_pair, same_bits

pytestmark = pytest.mark.usefixtures("backend")


@pytest.fixture(params=CODECS)
def codec(request: pytest.FixtureRequest) -> str:
    return request.param


def patch_of(old: State, new: State, codec: str = "weightwise", **options: object) -> Patch:
    return Patch([Part(encode_bytes(old, new, codec=codec, **options))])


def test_in_place_and_with_proof(codec: str) -> None:
    old, new = mixed_pair()
    state = old.copy()
    arrays = state.arrays
    report = apply(patch_of(old, new, codec), state)
    assert state.arrays is arrays
    assert same_bits(state, new)
    assert report.base == digest.state_root(old)
    assert report.target == digest.state_root(new)
    assert report.changes == sum(
        int((a != b).sum()) for a, b in zip(old.arrays, new.arrays, strict=True)
    )


@pytest.mark.parametrize("disposable", [False, True])
def test_another_base_is_refused_before_a_write(codec: str, disposable: bool) -> None:
    old, new = mixed_pair()
    patch = patch_of(old, new, codec)
    for wrong in (new.copy(), change_state(old, 0.001, 77)):
        before = wrong.copy()
        with pytest.raises(WrongBaseError) as caught:
            apply(patch, wrong, disposable=disposable)
        assert caught.value.have == digest.state_root(before).hex()
        assert caught.value.need == patch.base.hex()
        assert same_bits(wrong, before)


def test_a_patch_applies_once(codec: str) -> None:
    old, new = mixed_pair()
    patch, state = patch_of(old, new, codec), old.copy()
    apply(patch, state)
    with pytest.raises(WrongBaseError):
        apply(patch, state)
    assert same_bits(state, new)


def test_another_layout_is_refused(codec: str) -> None:
    old, new = mixed_pair()
    other = make_state({"a": ("BF16", (5,))})
    before = other.copy()
    for embed in (False, True):
        with pytest.raises(LayoutMismatchError):
            apply(patch_of(old, new, codec, embed_layout=embed), other)
    assert same_bits(other, before)


def test_a_layout_that_fits_first_does_not_open_the_door_to_another() -> None:
    old, new = mixed_pair()
    patch = patch_of(old, new)
    apply(patch, old.copy())
    with pytest.raises(LayoutMismatchError):
        apply(patch, make_state({"a": ("BF16", (5,))}))
    apply(patch, old.copy())


def test_an_unknown_tensor_is_refused() -> None:
    old, new = mixed_pair()
    state = old.copy()
    with pytest.raises(LayoutError):
        apply(patch_of(old, new), state, tensors=["nobody"])
    assert same_bits(state, old)


def test_a_chain_of_patches_reuses_the_sums(codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    states = [mixed_pair()[0]]
    for step in range(4):
        states.append(change_state(states[-1], 0.05, 10 + step))
    state = states[0].copy()
    sums = digest.tensor_sums(state)
    patches = [patch_of(a, b, codec) for a, b in itertools.pairwise(states)]
    monkeypatch.setattr(digest, "tensor_sums", None)  # a pass over all weights would fail
    for patch, expected in zip(patches, states[1:], strict=True):
        given = sums.copy()
        report = apply(patch, state, sums=sums)
        assert (sums == given).all()  # the caller's sums stay his
        sums = report.sums
        assert same_bits(state, expected)
    monkeypatch.undo()
    assert sums.tolist() == digest.tensor_sums(state).tolist()


def test_wrong_sums_are_a_wrong_base() -> None:
    old, new = mixed_pair()
    sums = digest.tensor_sums(old)
    sums[0] += np.uint64(1)
    state = old.copy()
    with pytest.raises(WrongBaseError):
        apply(patch_of(old, new), state, sums=sums)
    assert same_bits(state, old)


class Faults:
    """Writes that go wrong: counts them all, and lets a fault do those it is told to.

    Sparse changes go through the backend's ``write``, dense ones through `transaction.write`, which
    also puts the old bits back.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fault: Fault, *at: int) -> None:
        self.calls, self.fault, self.at = 0, fault, at
        self._inner, self._write = kernels.backend(), transaction.write
        monkeypatch.setattr(kernels, "_current", self)
        monkeypatch.setattr(transaction, "write", self.write_change)

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def _faulty(self) -> bool:
        self.calls += 1
        return not self.at or self.calls - 1 in self.at

    def write(self, target: Lanes, places: Places, start: int, old: Lanes, new: Lanes) -> int:
        """A sparse change; says what is really there afterwards."""
        if not self._faulty():
            return self._inner.write(target, places, start, old, new)
        self.fault(target, places, new)
        return self._inner.digest_change(places, start, old, target[places])

    def write_change(self, state: State, change: Change, values: Lanes) -> None:
        """A dense change, or a rollback."""
        if values is change.old or change.places is not None or not self._faulty():
            self._write(state, change, values)
        else:
            self.fault(state.arrays[change.tensor], change.flat(), values)


Fault = Callable[[Lanes, Places, Lanes], None]


def lost(target: Lanes, places: Places, values: Lanes) -> None:
    """Nothing arrives."""


def flipped(target: Lanes, places: Places, values: Lanes) -> None:
    """One bit arrives wrong."""
    target[places] = values
    target[places[len(places) // 2]] ^= 1


def swapped(target: Lanes, places: Places, values: Lanes) -> None:
    """The right values arrive at each other's places."""
    target[places] = values[::-1]


def interrupted(error: type[BaseException]) -> Fault:
    """The worst moment: half of a change is written."""

    def fault(target: Lanes, places: Places, values: Lanes) -> None:
        half = len(values) // 2
        target[places[:half]] = values[:half]
        raise error("now")

    return fault


@pytest.mark.parametrize("fault", [lost, flipped, swapped])
@pytest.mark.parametrize("density", [0.05, 1.0])
def test_what_did_not_arrive_is_noticed_and_undone(
    codec: str, fault: Fault, density: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = make_state({"a": ("BF16", (70, 33)), "b": ("F32", (90,))})
    new = change_state(old, density)
    state, patch = old.copy(), patch_of(old, new, codec)
    faults = Faults(monkeypatch, fault, 0)
    with pytest.raises(RootMismatchError, match="restored"):
        apply(patch, state)
    assert same_bits(state, old)
    assert faults.calls == 2


@pytest.mark.parametrize("at", [0, 1, 8])
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
@pytest.mark.parametrize("density", [0.2, 1.0])
def test_an_interrupt_in_the_middle_leaves_the_base(
    codec: str,
    at: int,
    error: type[BaseException],
    density: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old, new = mixed_pair(density)
    state, patch = old.copy(), patch_of(old, new, codec)
    faults = Faults(monkeypatch, interrupted(error), at)
    with pytest.raises(error):
        apply(patch, state)
    assert same_bits(state, old)
    assert faults.calls == at + 1


@pytest.mark.parametrize("moment", ["record", "seal", "entries"])
def test_an_interrupt_in_the_log_leaves_the_base(moment: str) -> None:
    old, new = mixed_pair(0.2)

    class Interrupted(MemoryLog):
        def _now(self, *_: object) -> None:
            raise KeyboardInterrupt

    setattr(Interrupted, moment, Interrupted._now)
    state = old.copy()
    with pytest.raises(KeyboardInterrupt):
        apply(patch_of(old, new), state, log=Interrupted())
    assert same_bits(state, old)


class Stuck(np.ndarray):
    """Memory that takes no writes to its first weight, and says nothing about it."""

    def __setitem__(self, key: object, value: object) -> None:
        kept = self.view(np.ndarray)[0]
        super().__setitem__(key, value)
        self.view(np.ndarray)[0] = kept


def test_memory_that_does_not_take_a_write_is_noticed() -> None:
    old = make_state({"t": ("BF16", (300,))})
    new = change_state(old, 1.0)
    lanes = old.arrays[0].copy()
    stuck = lanes.view(Stuck)
    state = State(old.layout, [stuck])
    with pytest.raises(RootMismatchError, match="t does not have its target sum"):
        apply(patch_of(old, new, "raw"), state)  # dense: a plain assignment
    assert same_bits([lanes], old)


def test_read_only_states_are_refused_and_unchanged(codec: str) -> None:
    old, new = mixed_pair()
    state = old.copy()
    for array in state.arrays:
        array.flags.writeable = False
    with pytest.raises((ArrayError, ValueError)):
        apply(patch_of(old, new, codec), state)
    assert same_bits(state, old)


def damaged(data: bytes) -> bytes:
    """The last byte of the payload flipped: noticed when its group is read."""
    return data[:-1] + bytes([data[-1] ^ 1])


def test_damage_in_the_last_block_is_found_before_the_first_write(
    codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = make_state({"t": ("BF16", (17 * 4096,))})
    new = change_state(old, 0.2)
    monkeypatch.setattr(encode, "_block_log2", lambda *_: 12)
    patch = Patch([Part(damaged(encode_bytes(old, new, codec=codec)))])
    assert len(patch.bind(old.layout)[0].boxes.blocks) == 17  # two groups
    state = old.copy()
    faults = Faults(monkeypatch, lost)
    with pytest.raises(HashMismatchError):
        apply(patch, state)
    assert faults.calls == 0
    assert same_bits(state, old)


def test_disposable_states_are_written_without_a_log(codec: str) -> None:
    for density in (0.05, 1.0):
        old, new = mixed_pair(density)
        state = old.copy()
        report = apply(patch_of(old, new, codec), state, disposable=True)
        assert same_bits(state, new)
        assert report.sums.tolist() == digest.tensor_sums(new).tolist()


def test_disposable_states_are_proved_too(codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = mixed_pair()
    state, patch = old.copy(), patch_of(old, new, codec)
    Faults(monkeypatch, lost, 2)
    with pytest.raises(RootMismatchError):
        apply(patch, state, disposable=True)


@pytest.mark.parametrize("disposable", [False, True])
def test_chosen_tensors_are_proved(disposable: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = mixed_pair()
    state, patch = old.copy(), patch_of(old, new)
    Faults(monkeypatch, lost)
    with pytest.raises(RootMismatchError):
        apply(patch, state, tensors=["embed"], disposable=disposable)
    assert same_bits(state, old)


@pytest.mark.parametrize("disposable", [False, True])
def test_chosen_tensors_of_small_boxes_are_proved(
    disposable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the root, the boxes' own sums are the only proof (spec section 5)."""
    old = make_state({"a": ("BF16", (8, 6)), "b": ("BF16", (9,))})
    new = change_state(old, 0.5)
    boxes = [Box(0, (0, 0), (8, 3)), Box(0, (0, 3), (8, 3)), Box(1, (0,), (4,)), Box(1, (4,), (5,))]
    patch = patch_of(old, new, boxes=boxes)
    state = old.copy()
    apply(patch, state, tensors=["a"], disposable=disposable)
    assert state.arrays[0].tobytes() == new.arrays[0].tobytes()
    Faults(monkeypatch, lost)
    state = old.copy()
    with pytest.raises(RootMismatchError):
        apply(patch, state, tensors=["a"], disposable=disposable)
    assert same_bits(state, old)


def test_progress_is_one_pass_over_the_weights() -> None:
    old, new = mixed_pair()
    seen: list[int] = []
    apply(patch_of(old, new), old.copy(), progress=seen.append)
    assert sum(seen) == old.layout.weights


def test_a_read_only_state_is_refused_before_the_pass_over_it() -> None:
    old = State.of({"w": np.arange(4096, dtype=np.uint16)}, "BF16")
    new = State.of({"w": old.arrays[0] ^ 0x5555}, "BF16")
    old.arrays[0].flags.writeable = False
    seen: list[int] = []
    with pytest.raises(ArrayError, match="read-only"):
        apply(Patch([Part(encode_bytes(old, new))]), old, progress=seen.append)
    assert not seen
