"""A small patch per codec, with sparse, dense and unchanged blocks."""

from __future__ import annotations

import numpy as np
import pytest

from pulsecast.patch.codecs import CODECS
from pulsecast.patch.encode import encode_bytes
from pulsecast.patch.layout import Layout
from pulsecast.patch.state import State
from tests.states import make_state

SHAPES = {"a": ("BF16", (9, 12)), "b": ("F32", (7,)), "c": ("U8", (5,)), "d": ("I64", (2,))}


def small_pair() -> tuple[State, State]:
    """Four tensors: one sparse, one dense, one unchanged, one that changes in a single bit."""
    old = make_state(SHAPES, 3)
    # Weights as a model has them, so that there are several classes.
    weights = (np.random.default_rng(1).standard_normal(108) * 0.02).astype(np.float32)
    old.arrays[0][:] = (weights.view(np.uint32) >> 16).astype(np.uint16)
    new = old.copy()
    new.arrays[0][[3, 17, 18, 50, 51, 90, 107]] += np.uint16(1)
    new.arrays[0][60] ^= np.uint16(0x8000)
    new.arrays[1][:] = np.random.default_rng(2).integers(0, 2**32, 7, dtype=np.uint32)
    new.arrays[3][1] ^= np.uint64(1 << 63)
    return old, new


@pytest.fixture(scope="session")
def old() -> State:
    return small_pair()[0]


@pytest.fixture(scope="session")
def new() -> State:
    return small_pair()[1]


@pytest.fixture(scope="session")
def layout(old: State) -> Layout:
    return old.layout


@pytest.fixture(scope="session", params=CODECS)
def codec(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="session")
def part(codec: str, old: State, new: State) -> bytes:
    """The small patch."""
    return encode_bytes(old, new, codec=codec)


@pytest.fixture(scope="session")
def parts(old: State, new: State) -> dict[str, bytes]:
    """The small patch in every codec."""
    return {codec: encode_bytes(old, new, codec=codec) for codec in CODECS}


@pytest.fixture(scope="session")
def any_part(parts: dict[str, bytes]) -> bytes:
    """The small patch where the codec does not matter."""
    return parts["raw"]
