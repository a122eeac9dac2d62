"""The wire format of docs/spec/patch-format.md: layout, state root, codecs, parts."""
