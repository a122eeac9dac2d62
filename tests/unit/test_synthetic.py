import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsecast.dtypes import DTYPES, by_name
from pulsecast.errors import LayoutError
from pulsecast.patch.layout import Layout, TensorSpec
from pulsecast.patch.state import State
from pulsecast.testing import adam_pair, perturb, scramble

SHAPES = {"mlp.weight": (1000, 1024), "norm.weight": (1024,), "scalar": ()}


def changes(old: State, new: State) -> list[int]:
    return [int((old.arrays[i] != new.arrays[i]).sum()) for i in range(len(old.layout.tensors))]


def random_state(dtype: str, size: int, seed: int = 0) -> State:
    kind = by_name(dtype)
    raw = np.random.default_rng(seed).integers(0, 256, size * kind.width, np.uint8)
    lanes = raw.view(kind.lane) & 1 if dtype == "BOOL" else raw.view(kind.lane)
    return State(Layout([TensorSpec("x", kind, (size,))]), [lanes])


@pytest.mark.parametrize(("lr", "density"), [(1e-6, 0.004), (3e-6, 0.0105), (5e-6, 0.0163)])
def test_adam_pair_has_the_density_of_real_runs(lr: float, density: float) -> None:
    old, new = adam_pair(SHAPES, lr=lr)
    matrix, norm, scalar = changes(old, new)
    assert matrix / (1000 * 1024) == pytest.approx(density, rel=0.1)
    assert norm == 0
    assert scalar in (0, 1)


def test_adam_pair_changes_mostly_by_one_ulp() -> None:
    old, new = adam_pair({"w": (1000, 1000)})
    changed = old.arrays[0] != new.arrays[0]
    steps = np.abs(old.arrays[0][changed].astype(int) - new.arrays[0][changed].astype(int))
    assert 0.85 < (steps == 1).mean() < 0.95


def test_adam_pair_is_determined_by_the_seed() -> None:
    (a, b), (c, d), (e, _) = (adam_pair(SHAPES, seed=seed) for seed in (7, 7, 8))
    assert changes(a, c) == changes(b, d) == [0, 0, 0]
    assert changes(a, e)[0] > 0


def test_a_tensor_does_not_depend_on_the_shape_of_others() -> None:
    first, _ = adam_pair({"a": (10,), "b": (3, 5)})
    second, _ = adam_pair({"a": (4_000_000,), "b": (3, 5)})
    assert np.array_equal(first.arrays[1], second.arrays[1])


def test_more_steps_change_more() -> None:
    counts = [changes(*adam_pair({"w": (500, 1000)}, steps=steps))[0] for steps in (1, 8, 32)]
    assert counts[0] * 2 < counts[1] < counts[2]


def test_bf16_is_the_master_rounded_to_nearest_even() -> None:
    bf16, f32 = (
        adam_pair(Layout([TensorSpec("w", by_name(name), (100, 100))]))[0].arrays[0]
        for name in ("BF16", "F32")
    )
    low = f32 >> 16
    half = (f32 & 0xFFFF).astype(np.int64) - 0x8000
    up = (half > 0) | ((half == 0) & (low & 1 == 1))
    assert np.array_equal(bf16, low + up)


def test_adam_pair_refuses_other_dtypes() -> None:
    with pytest.raises(LayoutError, match="router is I8"):
        adam_pair(Layout([TensorSpec("router", by_name("I8"), (4,))]))


@pytest.mark.parametrize("dtype", [d.name for d in DTYPES])
@pytest.mark.parametrize("density", [0, 0.001, 0.37, 1])
def test_changed_count_is_exact_for_every_dtype(dtype: str, density: float) -> None:
    old = random_state(dtype, 3000)
    for new in (
        perturb(old, density, 1),
        perturb(old, density, 1, like_adam=True),
        scramble(old, density, 1),
    ):
        assert changes(old, new) == [round(density * 3000)]
        if dtype == "BOOL":
            assert new.arrays[0].max() <= 1


@given(
    sizes=st.lists(st.integers(0, 50), min_size=1, max_size=20),
    density=st.floats(0, 1),
    seed=st.integers(0, 1000),
)
def test_changed_count_is_exact_over_many_tensors(
    sizes: list[int], density: float, seed: int
) -> None:
    bf16 = by_name("BF16")
    layout = Layout([TensorSpec(f"t{i:02d}", bf16, (n,)) for i, n in enumerate(sizes)])
    old = State(layout, [np.zeros(n, np.uint16) for n in sizes])
    new = perturb(old, density, seed)
    assert sum(changes(old, new)) == round(density * sum(sizes))


def test_perturb_leaves_its_argument_alone_and_is_determined_by_the_seed() -> None:
    old = random_state("BF16", 1000)
    before = old.arrays[0].copy()
    first, second, other = perturb(old, 0.1, 1), perturb(old, 0.1, 1), perturb(old, 0.1, 2)
    assert np.array_equal(old.arrays[0], before)
    assert np.array_equal(first.arrays[0], second.arrays[0])
    assert not np.array_equal(first.arrays[0], other.arrays[0])


def test_like_adam_prefers_small_weights() -> None:
    old, _ = adam_pair({"w": (1000, 1000)}, lr=0)
    new = perturb(old, 0.01, like_adam=True)
    exponent = (old.arrays[0] >> 7) & 0xFF
    changed = old.arrays[0] != new.arrays[0]
    assert exponent[changed].mean() < exponent.mean() - 2


def test_density_outside_of_0_to_1_is_refused() -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        perturb(random_state("I8", 4), 1.5)
