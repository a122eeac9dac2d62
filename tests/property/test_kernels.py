"""The native kernels give what the numpy reference gives, for every input."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pulsecast import kernels
from pulsecast.dtypes import DTYPES, DType
from pulsecast.errors import FormatError
from pulsecast.kernels import CLASSES, ClassMap, Kernels
from pulsecast.kernels.rans import LAST_TOKEN, SYMBOLS, Decoding
from pulsecast.kernels.reference import from_order, to_order, unzigzag, zigzag
from pulsecast.patch.tables import Tables, build
from tests.property.pairs import Pair, pairs
from tests.states import odd_patterns

Both = tuple[Kernels, Kernels]
# The fixture holds two objects without state.
quick = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
slow = settings(quick, max_examples=60)


def equal(a: object, b: object) -> bool:
    """Deep equality of tuples, dataclasses and arrays, dtypes included."""
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and a.tolist() == b.tolist()
    if isinstance(a, tuple):
        return isinstance(b, tuple) and all(equal(x, y) for x, y in zip(a, b, strict=True))
    if hasattr(a, "__dataclass_fields__"):
        return all(equal(getattr(a, f), getattr(b, f)) for f in a.__dataclass_fields__)
    return a == b


def changes_of(pair: Pair) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    places = np.flatnonzero(pair.old != pair.new).astype(np.int64)
    return places, pair.old[places], pair.new[places]


@st.composite
def class_maps(draw: st.DrawFn, dtype: DType) -> ClassMap:
    if not dtype.is_float:
        return ClassMap(dtype)
    lo = draw(st.one_of(st.integers(0, dtype.exponent_mask), st.just(dtype.exponent_mask // 2 - 3)))
    return ClassMap(dtype, lo, draw(st.integers(1, CLASSES)))


@quick
@given(pair=pairs())
def test_diff(both: Both, pair: Pair) -> None:
    expected = both[0].diff(pair.old, pair.new)
    assert equal(both[1].diff(pair.old, pair.new), expected)
    assert equal(expected, changes_of(pair)[::2])


@quick
@given(pair=pairs())
def test_apply_and_gather(both: Both, pair: Pair) -> None:
    places, before, after = changes_of(pair)
    for kernel in both:
        target = pair.old.copy()
        assert equal(kernel.gather(target, places), before)
        undo = kernel.apply(target, places, after)
        assert equal(undo, before)
        assert target.tobytes() == pair.new.tobytes()
        kernel.apply(target, places, undo)
        assert target.tobytes() == pair.old.tobytes()


@quick
@given(pair=pairs(), start=st.sampled_from([0, 1, 1023, 1024, 2**40 + 5]))
def test_write_says_what_it_read(both: Both, pair: Pair, start: int) -> None:
    places, before, after = changes_of(pair)
    expected = (both[0].digest(pair.new, start) - both[0].digest(pair.old, start)) % 2**64
    for kernel in both:
        target = pair.old.copy()
        assert kernel.write(target, places, start, before, after) % 2**64 == expected
        assert target.tobytes() == pair.new.tobytes()


@quick
@given(
    places=st.lists(st.one_of(st.integers(-3, 40), st.sampled_from([2**62, -(2**63), 2**63 - 1]))),
    ascending=st.booleans(),
    size=st.integers(0, 40),
)
def test_check_places(both: Both, places: list[int], ascending: bool, size: int) -> None:
    array = np.array(sorted(set(places)) if ascending else places, np.int64)
    good = 0
    while (
        good < len(array)
        and 0 <= array[good] < size
        and (good == 0 or array[good - 1] < array[good])
    ):
        good += 1
    assert [kernel.check_places(array, size) for kernel in both] == [good, good]


@quick
@given(pair=pairs(), start=st.one_of(st.integers(0, 5000), st.integers(2**32 - 9, 2**48)))
def test_digest(both: Both, pair: Pair, start: int) -> None:
    assert both[0].digest(pair.old, start) == both[1].digest(pair.old, start)


@quick
@given(pair=pairs(), start=st.one_of(st.integers(0, 5000), st.integers(2**32 - 9, 2**48)))
def test_digest_change(both: Both, pair: Pair, start: int) -> None:
    places, before, after = changes_of(pair)
    changes = [kernel.digest_change(places, start, before, after) for kernel in both]
    assert changes[0] == changes[1]
    full = both[0].digest(pair.new, start) - both[0].digest(pair.old, start)
    assert changes[0] == full % 2**64


@quick
@given(pair=pairs(), data=st.data())
def test_tokenise_and_locate(both: Both, pair: Pair, data: st.DataObject) -> None:
    classes = data.draw(class_maps(pair.dtype))
    tokens = both[0].tokenise(classes, pair.old, pair.new)
    assert equal(both[1].tokenise(classes, pair.old, pair.new), tokens)
    assert equal((tokens.changes.places, tokens.changes.old, tokens.changes.new), changes_of(pair))
    for kernel in both:
        found = kernel.locate(classes, pair.old, tokens.counts, tokens.gaps, tokens.diffs)
        assert equal(found, tokens.changes)


@quick
@given(pair=pairs(), data=st.data())
def test_locate_refuses_ranks_beyond_their_class(
    both: Both, pair: Pair, data: st.DataObject
) -> None:
    classes = data.draw(class_maps(pair.dtype))
    tokens = both[0].tokenise(classes, pair.old, pair.new)
    if not len(tokens.gaps):
        return
    gaps = tokens.gaps.copy()
    gaps[data.draw(st.integers(0, len(gaps) - 1))] += np.uint32(data.draw(st.integers(1, 70)))
    found = [k.locate(classes, pair.old, tokens.counts, gaps, tokens.diffs) for k in both]
    assert equal(found[0], found[1])


@quick
@given(pair=pairs(), data=st.data())
def test_histogram(both: Both, pair: Pair, data: st.DataObject) -> None:
    classes = data.draw(class_maps(pair.dtype))
    t = both[0].tokenise(classes, pair.old, pair.new)
    tables = both[0].histogram(t.gaps, t.diffs, t.counts)
    assert equal(both[1].histogram(t.gaps, t.diffs, t.counts), tables)
    assert all((table.sum(axis=1) == t.counts).all() for table in tables)


@st.composite
def tables_for(draw: st.DrawFn, classes: ClassMap, seen: tuple[np.ndarray, np.ndarray]) -> Tables:
    """Tables that fit, or that have never seen most of what they shall code."""
    if draw(st.booleans()):
        return build(classes, *seen)
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    made = rng.integers(0, 1000, (2, CLASSES, SYMBOLS)).astype(np.uint32)
    made[rng.random(made.shape) < draw(st.sampled_from([0.0, 0.5, 0.95, 1.0]))] = 0
    made[:, :, LAST_TOKEN + 1 :] = 0
    return build(classes, made[0], made[1])


@slow
@given(pair=pairs(most=1025), data=st.data())
def test_encode_and_decode(both: Both, pair: Pair, data: st.DataObject) -> None:
    classes = data.draw(class_maps(pair.dtype))
    if not len(pair.old):
        return
    t = both[0].tokenise(classes, pair.old, pair.new)
    tables = data.draw(tables_for(classes, both[0].histogram(t.gaps, t.diffs, t.counts)))
    arguments = (t.gaps, t.diffs, t.counts, classes.count, tables.frequencies)
    payload = both[0].encode(*arguments)
    assert both[1].encode(*arguments) == payload
    decoding = Decoding.of(tables.frequencies)
    for kernel in both:
        decoded = kernel.decode(payload, classes.count, pair.dtype.width, len(pair.old), decoding)
        assert equal(decoded, (t.counts, t.gaps, t.diffs))
        assert equal(kernel.read(classes, payload, pair.old, decoding), t.changes)


def verdict(
    kernel: Kernels, classes: ClassMap, payload: bytes, pair: Pair, tables: Decoding
) -> object:
    try:
        return kernel.read(classes, payload, pair.old, tables)
    except FormatError:
        return "refused"


@slow
@given(pair=pairs(most=257), data=st.data())
def test_damaged_blocks_get_the_same_verdict(both: Both, pair: Pair, data: st.DataObject) -> None:
    """Refused by both, or decoded by both to the same changes."""
    classes = data.draw(class_maps(pair.dtype))
    if not len(pair.old):
        return
    t = both[0].tokenise(classes, pair.old, pair.new)
    tables = data.draw(tables_for(classes, both[0].histogram(t.gaps, t.diffs, t.counts)))
    payload = both[0].encode(t.gaps, t.diffs, t.counts, classes.count, tables.frequencies)
    decoding = Decoding.of(tables.frequencies)
    for _ in range(8):
        damaged = bytearray(payload)
        for _ in range(data.draw(st.integers(1, 3))):
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
        cut = data.draw(st.integers(0, len(damaged)))
        for bytes_ in (bytes(damaged), bytes(damaged[:cut]), bytes(damaged) + b"\0"):
            if bytes_:
                found = [verdict(k, classes, bytes_, pair, decoding) for k in both]
                assert equal(found[0], found[1])


@quick
@given(pair=pairs(most=257), data=st.data())
def test_decode_refuses_ranks_beyond_the_block(both: Both, pair: Pair, data: st.DataObject) -> None:
    """Also when no single gap does: the inspection of a patch decodes without a base."""
    classes = data.draw(class_maps(pair.dtype))
    t = both[0].tokenise(classes, pair.old, pair.new)
    if not len(t.gaps):
        return
    tables = build(classes, *both[0].histogram(t.gaps, t.diffs, t.counts))
    gaps, size = t.gaps.copy(), len(pair.old)
    c = data.draw(st.sampled_from(np.flatnonzero(t.counts).tolist()))
    last = int(t.counts[: c + 1].sum()) - 1
    used = int((gaps[last + 1 - int(t.counts[c]) : last + 1].astype(int) + 1).sum())
    more = data.draw(st.integers(0, 3))
    gaps[last] += np.uint32(size - used + more)
    payload = both[0].encode(gaps, t.diffs, t.counts, classes.count, tables.frequencies)
    arguments = (payload, classes.count, pair.dtype.width, size, Decoding.of(tables.frequencies))
    for kernel in both:
        if more:
            with pytest.raises(FormatError):
                kernel.decode(*arguments)
        else:
            assert equal(kernel.decode(*arguments)[1], gaps)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
def test_ulp_order_is_a_bijection_that_follows_the_values(dtype: DType) -> None:
    if dtype.width <= 2:
        lanes = np.arange(1 << (8 * dtype.width), dtype=np.uint32).astype(dtype.lane)
    else:
        lanes = odd_patterns(dtype)
    order = to_order(lanes, dtype.is_float)
    assert len(np.unique(order)) == len(lanes)
    assert (from_order(order, dtype.is_float) == lanes).all()
    if dtype.name in ("F16", "F32", "F64"):
        values = lanes[np.argsort(order)].view(f"<f{dtype.width}")
        finite = values[np.isfinite(values)]
        assert (finite[1:] >= finite[:-1]).all()


@given(pair=pairs())
def test_zigzag_is_a_bijection(pair: Pair) -> None:
    _, before, after = changes_of(pair)
    z = zigzag(before, after, pair.dtype.is_float)
    assert (z <= np.uint64(2 ** (8 * pair.dtype.width) - 1)).all()
    assert equal(unzigzag(before, z, pair.dtype.is_float), after)


def test_diff_across_the_slices_of_the_native_binding(both: Both) -> None:
    size = (1 << 22) + 100
    old = np.zeros(size, np.uint8)
    new = old.copy()
    at = [0, 1, (1 << 22) - 1, 1 << 22, size - 1]
    new[at] = 7
    for kernel in both:
        places, values = kernel.diff(old, new)
        assert places.tolist() == at
        assert values.tolist() == [7] * 5
    assert both[0].digest(new, 3) == both[1].digest(new, 3)


@given(pair=pairs(most=257), places=st.lists(st.integers(-2, 300), max_size=20))
def test_bad_places_are_refused_before_a_write(pair: Pair, places: list[int]) -> None:
    at = np.array(places, np.int64)
    good = all(0 <= p < len(pair.old) for p in places) and places == sorted(set(places))
    values = np.zeros(len(at), pair.dtype.lane)
    for name in ("reference", "native"):
        with kernels.use(name):
            target = pair.old.copy()
            if good:
                kernels.apply(target, at, values)
                assert (target[at] == values).all()
            else:
                with pytest.raises(FormatError, match="place"):
                    kernels.apply(target, at, values)
                with pytest.raises(FormatError, match="place"):
                    kernels.gather(target, at)
                with pytest.raises(FormatError, match="place"):
                    kernels.write(target, at, values, values)
                assert target.tobytes() == pair.old.tobytes()
