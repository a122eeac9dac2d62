"""The wire format: layout, state root, codecs, part files (docs/spec/patch-format.md). numpy and bytes only."""
