import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import codec, ours

ROOT = Path(__file__).parents[2]
FIELDS = {
    "trace",
    "codec",
    "density",
    "bits_per_change",
    "ratio_to_full",
    "encode_ns_per_weight",
    "decode_ns_per_weight",
    "exact",
}
OURS = ["weightwise", "raw", "pulse"]
OTHERS = ["limit", "int32", "gap16", "pulse-v3.1", "xor-zstd", "gap16-xor-zstd"]


def test_every_codec_is_exact_on_the_excerpt() -> None:
    wanted = [*OURS, *OTHERS]
    records = codec.run(codec.EXCERPT, codecs=wanted, steps=2, threads=1)
    for trace in {record["trace"] for record in records}:
        found = {r["codec"]: r for r in records if r["trace"] == trace}
        assert set(found) == set(wanted)
        assert all(r["exact"] and r["n"] == 2 and r.keys() >= FIELDS for r in found.values())
        bits = {name: r["bits_per_change"] for name, r in found.items()}
        assert bits["limit"] < bits["weightwise"] < min(bits[n] for n in OTHERS if n != "limit")
        full = 16 / found["limit"]["density"]
        assert full / bits["int32"] == pytest.approx(found["int32"]["ratio_to_full"])


def test_json_is_alone_on_stdout() -> None:
    command = [sys.executable, "-m", "benchmarks", "codec", "--json", "--steps", "1", "--check"]
    only = ["--codec", "weightwise", "--codec", "limit"]
    done = subprocess.run([*command, *only], cwd=ROOT, capture_output=True, text=True, check=True)
    records = json.loads(done.stdout)
    assert [r["codec"] for r in records] == ["weightwise", "limit"] * 2
    assert all(r["machine"] and r["versions"]["numpy"] and r["commit"] for r in records)


def test_a_directory_without_traces_says_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no .*safetensors in"):
        codec.run(tmp_path, codecs=[], steps=None, threads=1)


def test_the_json_header_counts_only_above_100_kb(monkeypatch: pytest.MonkeyPatch) -> None:
    class Header:
        header_bytes = 500

    monkeypatch.setattr(ours, "Part", lambda _: Header())
    size = ours.Ours("weightwise", 1).counted_bytes
    assert size([b"x" * 100_000]) == 99_500
    assert size([b"x" * 100_001]) == 100_001
