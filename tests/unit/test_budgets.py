from typing import Any

from benchmarks.budgets import missed_by_codecs, missed_by_kernels


def sizes(**bits: float) -> list[dict[str, Any]]:
    return [
        {"trace": "t", "codec": name.replace("_", "-"), "bits_per_change": value}
        | {"exact": True, "changes": 20_000}
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
    assert not list(missed_by_codecs(sizes(weightwise=6, limit=5.9, arc=13, pulse=30)))


def test_each_promise_on_sizes_is_judged() -> None:
    records = sizes(weightwise=6, limit=5, arc=11)
    records += [{**records[0], "codec": "pulse-v3.1", "bits_per_change": 20}]
    lines = list(missed_by_codecs(records))
    assert [line.split()[1] for line in lines] == ["weightwise", "arc", "pulse-v3.1"]


def test_our_other_codecs_and_tiny_patches_are_not_judged() -> None:
    assert not list(missed_by_codecs(sizes(weightwise=6, raw=7, pulse=8)))
    tiny = [{**r, "changes": 500} for r in sizes(weightwise=6, limit=1)]
    assert not list(missed_by_codecs(tiny))


def test_a_wrong_bit_is_always_missed() -> None:
    records = [{**r, "exact": False, "changes": 1} for r in sizes(raw=40)]
    assert len(list(missed_by_codecs(records))) == 1


def test_each_promise_on_speed_is_judged() -> None:
    assert not list(missed_by_kernels(times(diff=1.9, digest=5.9, weightwise_encode=10)))
    lines = list(
        missed_by_kernels(times(diff=2.1, digest=6.1, weightwise_encode=15, encode_two=10))
    )
    assert len(lines) == 4


def test_small_sizes_prove_nothing() -> None:
    small = [{**r, "bytes": 1 << 20} for r in times(diff=1.0)]
    assert list(missed_by_kernels(small)) == ["no measurement of 256 MB or more at 1 % density"]
