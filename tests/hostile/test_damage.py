"""Every truncation and every single flipped bit: a typed error or exactly the target."""

from __future__ import annotations

import pytest

from pulsecast import kernels
from pulsecast.errors import FormatError, PulsecastError
from pulsecast.patch.decode import Patch
from pulsecast.patch.encode import encode_bytes
from pulsecast.patch.part import Part
from pulsecast.patch.state import State
from tests.hostile.forge import Forge, attempt


def test_the_patch_itself_is_good(part: bytes, old: State, new: State, backend: str) -> None:
    assert attempt(part, old, new) is None
    assert attempt(Forge(part).pack(), old, new) is None
    modes = [mode for mode, _ in Forge(part).blocks]
    assert {0, 1, 2} == set(modes)
    assert len(part) < 2000


@pytest.mark.usefixtures("backend")
def test_truncation_at_every_byte(part: bytes, old: State, new: State) -> None:
    for length in range(len(part)):
        error = attempt(part[:length], old, new)
        assert isinstance(error, FormatError), f"cut to {length} bytes: {error!r}"


@pytest.mark.usefixtures("backend")
def test_appended_bytes(part: bytes, old: State, new: State) -> None:
    for tail in (b"\0", b" ", b"\xff" * 8, part):
        assert isinstance(attempt(part + tail, old, new), FormatError)


@pytest.mark.usefixtures("backend")
def test_every_flipped_bit(part: bytes, old: State, new: State) -> None:
    damaged = bytearray(part)
    header = Part(part).header_bytes
    for byte in range(len(part)):
        for bit in range(8):
            damaged[byte] ^= 1 << bit
            error = attempt(bytes(damaged), old, new)
            if byte >= header:
                assert isinstance(error, FormatError), f"bit {bit} of byte {byte}: {error!r}"
            damaged[byte] ^= 1 << bit


def test_every_flipped_bit_of_an_embedded_layout(old: State, new: State) -> None:
    whole = encode_bytes(old, new, embed_layout=True)
    text = Forge(whole).metadata["layout_zstd"].encode()
    start = whole.index(text)
    for byte in range(start, start + len(text)):
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[byte] ^= 1 << bit
            attempt(bytes(damaged), old, new)


def decoded(data: bytes, old: State) -> object:
    """All changes of a patch as plain values, or the fact that it was refused."""
    try:
        return [
            (change.tensor, change.flat().tolist(), change.old.tolist(), change.new.tolist())
            for block in Patch([Part(data)]).decode(old, threads=1)
            for change in block
        ]
    except PulsecastError:
        return "refused"


@pytest.mark.parametrize("where", ["tables", "blocks", "index"])
def test_every_flipped_bit_under_mended_hashes(
    part: bytes, old: State, new: State, where: str
) -> None:
    """The decoders themselves: both backends refuse, or both decode the same, and never a crash."""
    sound = Forge(part)
    fields = {
        "tables": [sound.tables],
        "index": [sound.own_index()],
        "blocks": [data for _, data in sound.blocks],
    }[where]
    refused = 0
    for number, field in enumerate(fields):
        for byte in range(len(field)):
            for bit in range(8):
                damaged = bytearray(field)
                damaged[byte] ^= 1 << bit
                forged = Forge(part)
                if where == "tables":
                    forged.tables = bytes(damaged)
                elif where == "index":
                    forged.index = bytes(damaged)
                else:
                    forged.blocks[number] = (forged.blocks[number][0], bytes(damaged))
                data = forged.pack()
                found = []
                for name in ("reference", "native"):
                    with kernels.use(name):
                        found.append(decoded(data, old))
                assert found[0] == found[1]
                refused += found[0] == "refused"
                # The native backend is in use again here: the whole way to the root.
                error = attempt(data, old, new)
                assert error is not None or found[0] != "refused"
    if where == "index":
        assert refused == 8 * len(fields[0])


@pytest.mark.usefixtures("backend")
def test_every_byte_of_the_header_set_to_extremes(part: bytes, old: State, new: State) -> None:
    damaged = bytearray(part)
    for byte in range(Part(part).header_bytes):
        kept = damaged[byte]
        for value in (0, 0x20, 0x22, 0x5C, 0x7B, 0x7D, 0xFF, ord("9"), ord("-")):
            damaged[byte] = value
            attempt(bytes(damaged), old, new)
        damaged[byte] = kept


@pytest.mark.usefixtures("backend")
def test_bytes_taken_out_or_put_in(part: bytes, old: State, new: State) -> None:
    for byte in range(0, len(part), 3):
        attempt(part[:byte] + part[byte + 1 :], old, new)
        attempt(part[:byte] + b"\1" + part[byte:], old, new)
        attempt(part[:byte] + part[byte : byte + 1] + part[byte:], old, new)
