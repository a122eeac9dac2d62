"""`weightwise`: changes conditioned on the exponent of the base weight (spec section 8)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from ...dtypes import Lanes
from ...errors import FormatError
from ...kernels import CLASSES, Changes, ClassMap, Tokens, backend
from ...kernels.rans import SYMBOLS, U32, U64, Decoding
from ..boxes import Block, BoxMap
from ..tables import Tables, build, read_tables, write_tables
from .survey import Survey


class WeightwiseEncoder:
    """Writes spec section 8 with one set of tables per dtype, fitted to a sample of blocks."""

    learns = True

    def __init__(self, boxes: BoxMap, surveys: Mapping[int, Survey]) -> None:
        self._classes = {code: surveys[code].classes() for code in sorted(surveys)}
        self._tables: dict[int, Tables] = {}

    def split(self, block: Block, old: Lanes, new: Lanes) -> Tokens:
        """The changes of a block."""
        return backend().tokenise(self._classes[block.dtype.code], old, new)

    def observe(self, block: Block, split: Tokens) -> tuple[int, U32, U32]:
        """How often a block has each token."""
        gaps, values = backend().histogram(split.gaps, split.diffs, split.counts)
        return block.dtype.code, gaps, values

    def learn(self, observations: Iterable[tuple[int, U32, U32]]) -> None:
        """Fit the tables."""
        shape = (2, CLASSES, SYMBOLS)
        seen = {code: np.zeros(shape, np.uint64) for code in self._classes}
        for code, gaps, values in observations:
            seen[code][0] += gaps
            seen[code][1] += values
        for code, counts in seen.items():
            self._tables[code] = build(self._classes[code], counts[0], counts[1])

    def write(self, block: Block, split: Tokens) -> bytes:
        """The payload of a sparse block."""
        tables = self._tables[block.dtype.code]
        return backend().encode(
            split.gaps, split.diffs, split.counts, tables.classes.count, tables.frequencies
        )

    def tables(self) -> bytes:
        """The `tables` tensor."""
        return write_tables(list(self._tables.values()))


class WeightwiseDecoder:
    """Reads spec section 8."""

    def __init__(self, boxes: BoxMap, tables: memoryview) -> None:
        self._tables = read_tables(tables)
        self._decoding = {code: Decoding.of(t.frequencies) for code, t in self._tables.items()}

    def _of(self, block: Block) -> tuple[ClassMap, Decoding]:
        code = block.dtype.code
        if code not in self._tables:
            raise FormatError(f"a part has changes of {block.dtype.name} and no tables for it")
        return self._tables[code].classes, self._decoding[code]

    def split(self, block: Block, data: memoryview) -> tuple[U32, U32, U64]:
        """Counts, gaps and differences of a sparse block, without the base."""
        classes, tables = self._of(block)
        return backend().decode(bytes(data), classes.count, block.dtype.width, block.size, tables)

    def read(self, block: Block, data: memoryview, base: Lanes) -> Changes:
        """The changes of a sparse block."""
        classes, tables = self._of(block)
        found = backend().read(classes, bytes(data), base, tables)
        if found is None:
            raise FormatError("a block changes more weights of a class than its base has")
        return found
