"""The journal: what was begun is undone, and one that does not lead back exactly is not used."""

from __future__ import annotations

import logging
import os
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pulsecast.dtypes import by_name
from pulsecast.errors import BusyError, JournalError
from pulsecast.patch.decode import Change
from pulsecast.patch.digest import state_root
from pulsecast.patch.layout import Layout, TensorSpec
from pulsecast.weights import Checkpoint, Journal, journal_file
from pulsecast.weights.journal import journal_path
from tests.checkpoint_files import change, file_bytes, make_tensors, weights_of, write_folder

SHARD = "model-00001-of-00002.safetensors"


def _roots(tmp_path: Path, tensors: dict, target: dict) -> tuple[bytes, bytes]:
    found = []
    for content in (tensors, target):
        path = tmp_path / "root.safetensors"
        path.write_bytes(file_bytes(content))
        with Checkpoint.open(path) as checkpoint:
            found.append(state_root(checkpoint.state))
        path.unlink()
    return found[0], found[1]


@pytest.fixture(params=["folder", "file"])
def case(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, dict, bytes, bytes]:
    """A checkpoint, the lanes of its target by tensor name, base root and target root."""
    tensors = make_tensors()
    target = change(tensors, 0.05)
    path = tmp_path / "m"
    if request.param == "folder":
        write_folder(path, tensors)
    else:
        path = tmp_path / "m.safetensors"
        path.write_bytes(file_bytes(tensors, pad=3))
    return path, target, *_roots(tmp_path, tensors, target)


def begin(checkpoint: Checkpoint, target: dict, base: bytes, goal: bytes) -> Journal:
    """A journal with all changes recorded: matrices as places, the rest as runs."""
    journal = Journal(checkpoint, base=base, target=goal)
    for i, spec in enumerate(checkpoint.state.layout.tensors):
        old = checkpoint.state.arrays[i]
        new = np.frombuffer(target[spec.name][2], spec.dtype.lane)
        if len(spec.shape) == 2:
            places = np.flatnonzero(old != new).astype(np.int64)
            journal.record(Change(i, 0, places, old[places], new[places]))
        elif spec.size:
            journal.record(Change(i, 0, None, old.copy(), new))
    return journal


def scatter(checkpoint: Checkpoint, journal: Journal, stop_after: int | None = None) -> int:
    """Writes the new bits, as an apply does; gives the number of records."""
    count = 0
    for entry in journal.entries():
        if count == stop_after:
            break
        lanes = checkpoint.state.arrays[entry.tensor]
        assert np.array_equal(lanes[entry.flat()], entry.old)
        lanes[entry.flat()] = entry.new
        count += 1
    return count


def leave_journal(case: tuple[Path, dict, bytes, bytes], stop_after: int | None = None) -> Path:
    """An apply that ends without commit or rollback; gives the journal's path."""
    path, target, base, goal = case
    with Checkpoint.open(path, writable=True) as checkpoint:
        journal = begin(checkpoint, target, base, goal)
        journal.seal()
        scatter(checkpoint, journal, stop_after)
    assert journal_path(path).exists()
    return journal_path(path)


def root_of(path: Path) -> bytes:
    with Checkpoint.open(path) as checkpoint:
        return state_root(checkpoint.state)


def test_commit_leaves_the_target_and_no_journal(case: tuple[Path, dict, bytes, bytes]) -> None:
    path, target, base, goal = case
    with Checkpoint.open(path, writable=True) as checkpoint:
        with begin(checkpoint, target, base, goal) as journal:
            journal.seal()
            scatter(checkpoint, journal)
            journal.commit()
        assert not journal_path(path).exists()
    assert root_of(path) == goal


def test_rollback_restores_the_base(case: tuple[Path, dict, bytes, bytes]) -> None:
    path, target, base, goal = case
    before = weights_of(path)
    with (
        Checkpoint.open(path, writable=True) as checkpoint,
        begin(checkpoint, target, base, goal) as journal,
    ):
        journal.seal()
        scatter(checkpoint, journal)
        journal.rollback(checkpoint.state)
    assert weights_of(path) == before
    assert not list(path.parent.rglob("*journal*"))


@pytest.mark.parametrize("stop_after", [0, 1, 3, None])
def test_the_next_opening_rolls_back(
    case: tuple[Path, dict, bytes, bytes], stop_after: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    path, _, base, _ = case
    before = weights_of(path)
    leave_journal(case, stop_after)
    if stop_after != 0:
        assert weights_of(path) != before
    with caplog.at_level(logging.WARNING, "pulsecast"):
        assert root_of(path) == base
    assert weights_of(path) == before
    assert not list(path.parent.rglob("*journal*"))
    assert [record.getMessage() for record in caplog.records] == [
        f"an apply in place was cut short: {path} is rolled back to its base {base.hex()[:16]}…"
    ]


def test_an_unsealed_journal_is_thrown_away(case: tuple[Path, dict, bytes, bytes]) -> None:
    path, target, base, goal = case
    before = weights_of(path)
    with Checkpoint.open(path, writable=True) as checkpoint:
        begin(checkpoint, target, base, goal)._close_file()
    assert list(path.parent.rglob("*journal*"))
    assert root_of(path) == base
    assert weights_of(path) == before
    assert not list(path.parent.rglob("*journal*"))


def test_leaving_before_the_seal_throws_the_journal_away(
    case: tuple[Path, dict, bytes, bytes],
) -> None:
    path, target, base, goal = case
    with (
        Checkpoint.open(path, writable=True) as checkpoint,
        pytest.raises(JournalError, match="not sealed"),
        begin(checkpoint, target, base, goal) as journal,
    ):
        journal.entries()
    assert not list(path.parent.rglob("*journal*"))


@pytest.mark.parametrize("case", ["folder"], indirect=True)
def test_a_folder_is_rolled_back_when_one_of_its_files_is_opened(
    case: tuple[Path, dict, bytes, bytes],
) -> None:
    path, _, base, _ = case
    before = weights_of(path)
    leave_journal(case, 3)
    with Checkpoint.open(path / SHARD):
        pass
    assert weights_of(path) == before
    assert root_of(path) == base


@pytest.mark.parametrize("case", ["folder"], indirect=True)
def test_a_file_is_rolled_back_when_its_folder_is_opened(
    case: tuple[Path, dict, bytes, bytes],
) -> None:
    path, target, base, _ = case
    before = weights_of(path)
    with Checkpoint.open(path / SHARD) as shard:
        shard_base = state_root(shard.state)
    leave_journal((path / SHARD, target, shard_base, bytes(32)), 2)
    assert weights_of(path) != before
    assert root_of(path) == base
    assert weights_of(path) == before


def test_a_journal_is_not_used_while_its_writer_lives(
    case: tuple[Path, dict, bytes, bytes],
) -> None:
    path, target, base, goal = case
    with Checkpoint.open(path, writable=True) as checkpoint:
        journal = begin(checkpoint, target, base, goal)
        journal.seal()
        with pytest.raises(BusyError):
            Checkpoint.open(path)
        journal.rollback(checkpoint.state)


def require_refused(path: Path, match: str = "journal") -> None:
    """Opening fails, the weights and the journal stay as they are."""
    before = weights_of(path)
    for writable in (False, True):
        with pytest.raises(JournalError, match=match):
            Checkpoint.open(path, writable=writable)
    assert weights_of(path) == before
    assert os.path.lexists(journal_path(path))


@pytest.mark.parametrize("case", ["file"], indirect=True)
def test_no_damaged_journal_is_used(case: tuple[Path, dict, bytes, bytes]) -> None:
    path, *_ = case
    journal = leave_journal(case, 2)
    content = journal.read_bytes()
    step = max(1, len(content) // 300)
    damaged = [content[:n] for n in {*range(600), *range(0, len(content), step)}]
    for at in {
        *range(400),
        *range(0, len(content), step),
        *range(len(content) - 48, len(content)),
    }:
        damaged.append(content[:at] + bytes([content[at] ^ (1 << (at % 8))]) + content[at + 1 :])
    damaged.append(content + b"\x00")
    before = weights_of(path)
    for wrong in damaged:
        journal.write_bytes(wrong)
        with pytest.raises(JournalError):
            Checkpoint.open(path)
    assert weights_of(path) == before
    journal.write_bytes(content)
    assert root_of(path) == case[2]


def forge(journal: Path, edit: Callable[[bytearray, int], None]) -> None:
    """Changes a journal, by a function of content and start of the records, and mends its hash."""
    content = bytearray(journal.read_bytes()[: -journal_file._TRAILER.size])
    (size,) = struct.unpack_from("<I", content, 8)
    count = struct.unpack_from("<Q", journal.read_bytes(), len(content) + 8)[0]
    edit(content, 12 + size + (-(4 + size) % 8))
    digest = journal_file.blake3(content).digest()
    journal.write_bytes(
        bytes(content) + journal_file._TRAILER.pack(journal_file.END_MAGIC, count, digest)
    )


def _set(field: str, value: int) -> Callable[[bytearray, int], None]:
    fmt, offset = {"tensor": ("<I", 0), "kind": ("<I", 4), "start": ("<Q", 8), "count": ("<Q", 16)}[
        field
    ]
    return lambda content, at: struct.pack_into(fmt, content, at + offset, value)


@pytest.mark.parametrize("case", ["file"], indirect=True)
@pytest.mark.parametrize(
    "edit",
    [
        _set("tensor", 6),
        _set("tensor", 0xFFFFFFFF),
        _set("tensor", 1),
        _set("kind", 0),
        _set("kind", 3),
        _set("start", 1),
        _set("start", 1 << 40),
        _set("start", (1 << 64) - 1),
        _set("count", 0),
        _set("count", 5),
        _set("count", 1 << 20),
        _set("count", (1 << 64) - 1),
        lambda content, at: struct.pack_into(
            "<I", content, at + 24, 7
        ),  # first place is not the start
        lambda content, at: struct.pack_into("<I", content, at + 32, 0),  # places do not ascend
        lambda content, at: content.extend(bytes(8)),
        lambda content, at: content.__delitem__(slice(-8, None)),
        lambda content, at: content.__delitem__(slice(at, None)),
        lambda content, at: content.__setitem__(slice(8, 12), b"\xff\xff\xff\xff"),
        lambda content, at: content.__setitem__(slice(12, 14), b"[["),
    ],
)
def test_no_forged_journal_is_used(
    case: tuple[Path, dict, bytes, bytes], edit: Callable[[bytearray, int], None]
) -> None:
    forge(leave_journal(case, 2), edit)
    require_refused(case[0])


def test_old_bits_that_do_not_lead_to_the_base_are_not_written(
    case: tuple[Path, dict, bytes, bytes],
) -> None:
    path, target, _, goal = case
    leave_journal((path, target, bytes(32), goal), 2)
    require_refused(path, "does not lead back")


def test_weights_that_somebody_else_changed_are_not_overwritten(
    case: tuple[Path, dict, bytes, bytes],
) -> None:
    path, *_ = case
    leave_journal(case)
    file = path / "model-00002-of-00002.safetensors" if path.is_dir() else path
    content = bytearray(file.read_bytes())
    content[-1] ^= 0x55
    file.write_bytes(content)
    require_refused(path)


def test_a_journal_of_other_files_is_not_used(
    case: tuple[Path, dict, bytes, bytes], tmp_path: Path
) -> None:
    content = leave_journal(case).read_bytes()
    other = tmp_path / "other.safetensors"
    other.write_bytes(file_bytes({"w": ("U8", (3,), b"abc")}))
    journal_path(other).write_bytes(content)
    require_refused(other, "other files")


def test_a_link_or_a_pipe_is_no_journal(
    case: tuple[Path, dict, bytes, bytes], tmp_path: Path
) -> None:
    path, *_ = case
    journal = leave_journal(case)
    journal.rename(tmp_path / "real")
    journal.symlink_to(tmp_path / "real")
    require_refused(path)
    journal.unlink()
    os.mkfifo(journal)
    require_refused(path)
    journal.unlink()
    journal.mkdir()
    require_refused(path)


def test_long_changes_are_cut_into_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_file, "RECORD_MAX", 5)
    identity = journal_file.Identity(layout="", base="", target="", files={})
    path = tmp_path / "j"
    places = np.array([0, 3, 4, 7, 9, 11, (1 << 33) + 1, (1 << 33) + 2], np.int64)
    lanes = np.arange(8, dtype=np.uint16)
    with path.open("wb") as file:
        writer = journal_file.JournalWriter(file, identity)
        writer.write(Change(0, 0, places, lanes, lanes + 1))
        writer.write(Change(1, 4, None, lanes, lanes + 2))
        writer.finish()

    layout = Layout([TensorSpec(name, by_name("BF16"), (1 << 34,)) for name in "ab"])
    records = list(journal_file.JournalReader(path).records(layout))
    assert [len(c.old) for c in records] == [5, 1, 2, 5, 3]
    assert np.concatenate([c.flat() for c in records[:3]]).tolist() == places.tolist()
    assert np.concatenate([c.flat() for c in records[3:]]).tolist() == [*range(4, 12)]
    for part, added in ((records[:3], 1), (records[3:], 2)):
        assert np.array_equal(np.concatenate([c.old for c in part]), lanes)
        assert np.array_equal(np.concatenate([c.new for c in part]), lanes + added)


def test_a_reader_of_a_file_beside_a_checkpoint_leaves_its_writer_alone(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    tensors = make_tensors(1)
    write_folder(folder, tensors)
    beside = folder / "adapter.safetensors"
    beside.write_bytes(file_bytes(tensors))
    with (
        Checkpoint.open(folder, writable=True) as checkpoint,
        Journal(checkpoint, base=bytes(32), target=bytes(32)) as journal,
    ):
        Checkpoint.open(beside).close()
        journal.seal()
        Checkpoint.open(beside).close()
        journal.rollback(checkpoint.state)
