"""Takes a part apart, lets a test change anything in it, and puts it together with correct hashes.

A forger can always compute hashes, so most checks are reached only by files whose hashes match.
"""

from __future__ import annotations

import base64
import json

from blake3 import blake3

from pulsecast import kernels
from pulsecast.errors import FormatError, PulsecastError
from pulsecast.kernels.bits import read_varint, write_varint
from pulsecast.patch.decode import Patch
from pulsecast.patch.part import GROUP, Part
from pulsecast.patch.safefile import read_header
from pulsecast.patch.state import State
from pulsecast.patch.transaction import apply
from tests.states import same_bits

TENSORS = ("index", "tables", "payload")


class Forge:
    """A part in pieces.

    Attributes:
        metadata: The strings of the header.
        blocks: Mode and payload of every block.
        tables: The tables tensor.
        index: Bytes to write instead of the index of the blocks, if not None.
        payload: Bytes to write instead of the blocks' payloads, if not None.
    """

    def __init__(self, data: bytes) -> None:
        safe = read_header(data)
        self.metadata = dict(safe.metadata)
        index, self.tables, payload = (
            data[safe.entries[name].start : safe.entries[name].stop] for name in TENSORS
        )
        self.blocks: list[tuple[int, bytes]] = []
        position = start = 0
        while position < len(index):
            number, position = read_varint(index, position)
            self.blocks.append((number % 4, payload[start : start + number // 4]))
            start += number // 4
        self.index: bytes | None = None
        self.payload: bytes | None = None

    def own_index(self) -> bytes:
        """The index that the blocks need."""
        return b"".join(write_varint(4 * len(data) + mode) for mode, data in self.blocks)

    def touch(self, *records: tuple[int, int, int]) -> None:
        """Declare touched boxes: ``(box, changes, sum)``, in any order."""
        out, previous = b"", -1
        for box, changes, total in records:
            out += write_varint(box - previous - 1) + write_varint(changes)
            out += total.to_bytes(8, "little")
            previous = box
        self.metadata["touched"] = base64.b64encode(out).decode()

    def touched(self) -> list[tuple[int, int, int]]:
        """What is declared."""
        data, position, box, out = base64.b64decode(self.metadata["touched"]), 0, -1, []
        while position < len(data):
            distance, position = read_varint(data, position)
            changes, position = read_varint(data, position)
            box += distance + 1
            out.append((box, changes, int.from_bytes(data[position : position + 8], "little")))
            position += 8
        return out

    def pack(self, *, mend: bool = True, order: tuple[str, ...] = TENSORS) -> bytes:
        """The file; with ``mend`` its hashes fit to what it holds."""
        index = self.own_index() if self.index is None else self.index
        payload = b"".join(data for _, data in self.blocks)
        payload = payload if self.payload is None else self.payload
        if mend:
            hashes = [blake3(index + self.tables).digest()]
            start = 0
            for first in range(0, len(self.blocks), GROUP):
                size = sum(len(data) for _, data in self.blocks[first : first + GROUP])
                hashes.append(blake3(payload[start : start + size]).digest())
                start += size
            self.metadata["hashes"] = b"".join(hashes).hex()
        pieces = dict(zip(TENSORS, (index, self.tables, payload), strict=True))
        header: dict[str, object] = {"__metadata__": self.metadata}
        position = 0
        for name in order:
            stop = position + len(pieces[name])
            header[name] = {
                "dtype": "U8", "shape": [len(pieces[name])], "data_offsets": [position, stop],
            }  # fmt: skip
            position = stop
        text = json.dumps(header).encode()
        return len(text).to_bytes(8, "little") + text + b"".join(pieces[name] for name in order)


def attempt(data: bytes, old: State, new: State) -> PulsecastError | None:
    """Apply a patch to a copy of the base: the typed error, or None when it became the target.

    Anything else, another exception or a wrong state, fails the test.
    """
    state = old.copy()
    try:
        apply(Patch([Part(data)]), state, threads=1)
    except PulsecastError as error:
        assert same_bits(state, old), "the state was left changed"
        return error
    assert same_bits(state, new), "the patch was taken and gave a wrong state"
    return None


def refusal(data: bytes, old: State, new: State) -> PulsecastError:
    """The error that both backends refuse a patch with: of the same branch of the tree."""
    found = []
    for backend in ("reference", "native"):
        with kernels.use(backend):
            found.append(attempt(data, old, new))
    for error in found:
        assert error is not None, "the patch was taken"
    assert isinstance(found[0], FormatError) == isinstance(found[1], FormatError)
    return found[1]
