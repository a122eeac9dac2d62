from typing import Any

from benchmarks.budgets import missed_by_codecs, missed_by_kernels, too_small

GOOD = {
    "weightwise": 6.0,
    "limit": 5.9,
    "int32": 48.0,
    "gap16": 32.0,
    "pulse-v3.1": 28.0,
    "xor-zstd": 25.0,
    "gap16-xor-zstd": 16.0,
    "arc_v2": 26.0,
    "arc_v3": 13.0,
}


def sizes(bits: dict[str, float]) -> list[dict[str, Any]]:
    return [
        {"trace": "t", "codec": name, "bits_per_change": value, "exact": True, "changes": 20_000}
        for name, value in bits.items()
    ]


def times(encode_two: float = 5.0, **times_memcpy: float) -> list[dict[str, Any]]:
    shared = {"density": 0.01, "weights": 1 << 27, "bytes": 1 << 28}
    one = [
        {**shared, "kernel": k.replace("_", "-"), "threads": 1, "times_memcpy": t}
        | {"ns_per_weight": t}
        for k, t in times_memcpy.items()
    ]
    return [
        *one,
        {**shared, "kernel": "weightwise-encode", "threads": 2, "times_memcpy": encode_two}
        | {"ns_per_weight": encode_two},
    ]


def test_good_sizes_pass() -> None:
    assert not list(missed_by_codecs(sizes(GOOD)))


def test_each_promise_on_sizes_is_judged() -> None:
    bad = {"limit": 5.0, "pulse-v3.1": 20.0, "arc_v3": 11.0}
    lines = list(missed_by_codecs(sizes(GOOD | bad)))
    assert [line.split()[1] for line in lines] == ["weightwise", "pulse-v3.1", "arc_v3"]


def test_a_rival_that_was_left_out_is_missed() -> None:
    bits = {name: value for name, value in GOOD.items() if name != "arc_v3"}
    assert list(missed_by_codecs(sizes(bits))) == ["t: arc_v3 was not measured"]


def test_our_other_codecs_are_not_judged() -> None:
    assert not list(missed_by_codecs(sizes(GOOD | {"raw": 7.0, "pulse": 8.0})))


def test_tiny_patches_are_judged_for_exactness_only() -> None:
    tiny = [{**r, "changes": 500} for r in sizes({"weightwise": 6.0, "limit": 1.0})]
    assert too_small(tiny, "t")
    assert not list(missed_by_codecs(tiny))
    assert len(list(missed_by_codecs([{**r, "exact": False} for r in tiny]))) == 2


def test_each_promise_on_speed_is_judged() -> None:
    assert not list(missed_by_kernels(times(diff=1.9, digest=5.9, weightwise_encode=10)))
    lines = list(
        missed_by_kernels(times(diff=2.1, digest=6.1, weightwise_encode=15, encode_two=10))
    )
    assert len(lines) == 4


def test_small_sizes_prove_nothing() -> None:
    small = [{**r, "bytes": 1 << 20} for r in times(diff=1.0)]
    assert list(missed_by_kernels(small)) == ["no measurement of 256 MB or more at 1 % density"]
