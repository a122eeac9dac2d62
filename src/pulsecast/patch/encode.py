"""Encoding: two states in, one part file out, as a stream over blocks."""

from __future__ import annotations

import io
import os
import shutil
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from blake3 import blake3

from ..errors import HeaderError
from ..kernels.bits import write_varint
from . import codecs, digest
from .blockwork import BlockWork, EncodedBlock
from .boxes import Box, BoxMap
from .codecs.survey import Survey, survey
from .digest import Progress, Sums
from .parallel import Workers
from .part import (
    BLOCK_LOG2,
    GROUP,
    MODES,
    PartHeader,
    Touched,
    write_part,
)
from .state import State

_CHANGES_PER_BLOCK = 1 << 14  # enough that a block's own overhead is below 1 %
_SMALLEST, _LARGEST = 16, 22
_SPOOL = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodeReport:
    """What an encode did."""

    codec: str
    base: bytes
    target: bytes
    changes: int
    weights: int
    file_bytes: int
    header_bytes: int
    full_bytes: int
    blocks: dict[str, int]
    seconds: float
    target_sums: Sums

    @property
    def density(self) -> float:
        """Changed / all."""
        return self.changes / self.weights if self.weights else 0.0

    @property
    def bits_per_change(self) -> float:
        """Bits of the file per change, without the JSON header; 0 if nothing changed."""
        return 8 * (self.file_bytes - self.header_bytes) / self.changes if self.changes else 0.0

    @property
    def ratio_to_full(self) -> float:
        """Bytes of the full state / bytes of the file."""
        return self.full_bytes / self.file_bytes


class _Body:
    """What the blocks of a part add up to: payload, index, group hashes and touched boxes."""

    def __init__(self, folder: str | None) -> None:
        self.payload = tempfile.SpooledTemporaryFile(max_size=_SPOOL, dir=folder)  # noqa: SIM115
        self.index = bytearray()
        self.touched: dict[int, tuple[int, int]] = {}  # number of changes, change of the sum
        self.modes = [0] * len(MODES)
        self._hashes: list[bytes] = []
        self._group = blake3()

    def __enter__(self) -> _Body:
        return self

    def __exit__(self, *_: object) -> None:
        self.payload.close()

    def add(self, block: EncodedBlock) -> None:
        """Append a block."""
        done = sum(self.modes)
        if done and done % GROUP == 0:
            self._hashes.append(self._group.digest())
            self._group = blake3()
        self._group.update(block.payload)
        self.payload.write(block.payload)
        self.index += write_varint(4 * len(block.payload) + block.mode)
        self.modes[block.mode] += 1
        for box, count, change in block.touched:
            before = self.touched.get(box, (0, 0))
            self.touched[box] = before[0] + count, before[1] + change

    def hashes(self) -> list[bytes]:
        """The hashes of all groups, the last one included."""
        return [*self._hashes, self._group.digest()] if any(self.modes) else []


def encode(
    old: State,
    new: State,
    out: str | os.PathLike[str] | BinaryIO,
    *,
    codec: str = "weightwise",
    boxes: Iterable[Box] | None = None,
    part: tuple[int, int] = (0, 1),
    base_sums: Sums | None = None,
    target_sums: Sums | None = None,
    embed_layout: bool = False,
    threads: int | None = None,
    progress: Progress | None = None,
) -> EncodeReport:
    """Write the patch that turns one state into another; the same bytes for any number of threads.

    Args:
        old: The base.
        new: The target, of the same layout.
        out: A path, which is replaced at the end and never seen half-written, or a binary stream.
        codec: ``"weightwise"`` (smallest), ``"raw"`` or ``"pulse"``.
        boxes: What this part covers; by default all tensors.
        part: Number of this part and number of parts.
        base_sums: Sums of ``old`` (`digest.tensor_sums`) if they are known; else one more pass.
        target_sums: Sums of ``new``; wanted only when ``boxes`` do not cover every change.
        embed_layout: Carry the layout in the file, so that tools can name tensors without the base.
        threads: By default all cores this process may use.
        progress: Called with the number of weights done.

    Raises:
        LayoutMismatchError: The states have other tensors.
        FormatError: The boxes overlap or lie outside of their tensors.
        UnsupportedError: No such codec.
    """
    started = time.perf_counter()
    if not 0 <= part[0] < part[1] < 10**7:
        raise HeaderError(f"there is no part {part[0]} of {part[1]}")
    old.layout.require_same(new.layout, "the new state")
    covered = BoxMap(old.layout, boxes, BLOCK_LOG2[-1])
    surveys = survey(covered, old, new)
    covered = BoxMap(old.layout, None if covered.whole else covered.boxes, _block_log2(surveys))
    encoder = codecs.encoder(codec, covered, surveys)
    if base_sums is None:
        base_sums = digest.tensor_sums(old, threads=threads)
    work = BlockWork(covered, encoder, old, new)
    with _Body(_beside(out)) as body, Workers(threads) as workers:
        work.learn(workers)
        for done in workers.map(work.encode, range(len(covered.blocks))):
            body.add(done)
            if progress:
                progress(done.weights)
        sums = _target_sums(covered, base_sums, target_sums, body.touched, new, threads)
        tables = encoder.tables()
        header = PartHeader(
            codec=codec,
            layout_id=old.layout.id,
            base=digest.root(old.layout, base_sums),
            target=digest.root(old.layout, sums),
            part=part[0],
            parts=part[1],
            boxes=covered.to_json(),
            block_log2=covered.block_log2,
            touched=tuple(
                Touched(box, count, _box_sum(covered, box, old, base_sums, change))
                for box, (count, change) in sorted(body.touched.items())
            ),
            hashes=(blake3(bytes(body.index)).update(tables).digest(), *body.hashes()),
            layout=old.layout if embed_layout else None,
        )
        head = write_part(header, bytes(body.index), tables, body.payload.tell())
        file_bytes = len(head) + body.payload.tell()
        body.payload.seek(0)
        _write(out, head, body.payload)
    return EncodeReport(
        codec=codec,
        base=header.base,
        target=header.target,
        changes=header.changes,
        weights=sum(box.size for box in covered.boxes),
        file_bytes=file_bytes,
        header_bytes=8 + int.from_bytes(head[:8], "little"),
        full_bytes=sum(box.size * covered.dtype(i).width for i, box in enumerate(covered.boxes)),
        blocks=dict(zip(MODES, body.modes, strict=True)),
        seconds=time.perf_counter() - started,
        target_sums=sums,
    )


def encode_bytes(old: State, new: State, **options: Any) -> bytes:
    """`encode` into memory."""
    out = io.BytesIO()
    encode(old, new, out, **options)
    return out.getvalue()


def _block_log2(surveys: dict[int, Survey]) -> int:
    """Blocks grow when changes are few, so that their own overhead stays small."""
    weights = sum(float(s.weights.sum()) / s.share for s in surveys.values() if s.share)
    changes = sum(float(s.changes.sum()) / s.share for s in surveys.values() if s.share)
    for log2 in range(_SMALLEST, _LARGEST):
        if changes * (1 << log2) >= weights * _CHANGES_PER_BLOCK:
            return log2
    return _LARGEST


def _box_sum(boxes: BoxMap, box: int, old: State, base_sums: Sums, change: int) -> int:
    b = boxes.boxes[box]
    whole = b.shape == boxes.layout.tensors[b.tensor].shape
    base = int(base_sums[b.tensor]) if whole else boxes.sum(old, box)
    return (base + change) % (1 << 64)


def _target_sums(
    boxes: BoxMap,
    base_sums: Sums,
    target_sums: Sums | None,
    touched: dict[int, tuple[int, int]],
    new: State,
    threads: int | None,
) -> Sums:
    if target_sums is not None:
        return target_sums
    if not boxes.whole:  # what the boxes leave out may have changed too
        return digest.tensor_sums(new, threads=threads)
    sums = base_sums.copy()
    for box, (_, change) in touched.items():
        tensor = boxes.boxes[box].tensor
        sums[tensor] = (int(sums[tensor]) + change) % (1 << 64)
    return sums


def _beside(out: str | os.PathLike[str] | BinaryIO) -> str | None:
    """Where to spool: on the disk that must hold the result, not on a small temporary one."""
    return str(Path(out).parent) if isinstance(out, (str, os.PathLike)) else None


def _write(out: str | os.PathLike[str] | BinaryIO, head: bytes, payload: Any) -> None:
    if not isinstance(out, (str, os.PathLike)):
        out.write(head)
        shutil.copyfileobj(payload, out, 1 << 20)
        return
    path = Path(out)
    draft = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with draft.open("wb") as file:
            file.write(head)
            shutil.copyfileobj(payload, file, 1 << 20)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
