"""The tree of errors.

PulsecastError
├─ FormatError (ValueError)      a patch, checkpoint or layout file breaks its format
│  ├─ HeaderError                a header or a metadata field is missing or malformed
│  ├─ TruncatedError             bytes end before what they declare
│  ├─ UnsupportedError           a format, codec or dtype this release does not know
│  ├─ LimitError                 a declared size is above its limit
│  └─ HashMismatchError          bytes do not have the hash their header declares
├─ LayoutError (ValueError)      tensors cannot form a layout
│  └─ LayoutMismatchError        two states or a state and a patch have other tensors
├─ ApplyError                    a patch was not applied; the state is unchanged
│  ├─ WrongBaseError             the state is not the patch's base
│  └─ RootMismatchError          the written state was not the target
├─ CheckpointError (ValueError)  files on disk do not form a checkpoint
├─ JournalError                  a journal is damaged or belongs to other files
│  └─ BusyError                  another process holds the checkpoint
├─ ArrayError (TypeError)        an array is not contiguous, not on the CPU, read-only …
└─ BackendUnavailableError       a kernel backend was demanded that is not there
"""

from __future__ import annotations


class PulsecastError(Exception):
    """Base of every error that pulsecast raises on purpose."""


class FormatError(PulsecastError, ValueError):
    """A file breaks its format; nothing was written."""


class HeaderError(FormatError):
    """A header or a metadata field is missing or malformed."""


class TruncatedError(FormatError):
    """The bytes end before what they declare."""


class UnsupportedError(FormatError):
    """The format, codec or dtype is unknown to this release."""


class LimitError(FormatError):
    """A declared size is above its limit (spec section 9)."""


class HashMismatchError(FormatError):
    """Bytes do not have the hash that their header declares."""


class LayoutError(PulsecastError, ValueError):
    """The tensors cannot form a layout."""


class LayoutMismatchError(LayoutError):
    """Two sides have other tensors, shapes or dtypes; the message names them."""


class ApplyError(PulsecastError):
    """The patch was not applied; the state is unchanged."""


class WrongBaseError(ApplyError):
    """The state is not the base of the patch.

    Attributes:
        have: State root found, hex.
        need: State root the patch needs, hex.
    """

    def __init__(self, have: str, need: str) -> None:
        super().__init__(
            f"the state has root {have[:16]}…, the patch needs base {need[:16]}…: "
            "apply it to its own base, or fetch a patch that starts from this state"
        )
        self.have = have
        self.need = need


class RootMismatchError(ApplyError):
    """What was read back after writing is not the target; a state that lives on was restored."""


class CheckpointError(PulsecastError, ValueError):
    """Files on disk do not form a checkpoint."""


class JournalError(PulsecastError):
    """A journal is damaged, or belongs to other files."""


class BusyError(JournalError):
    """Another process holds the checkpoint."""


class ArrayError(PulsecastError, TypeError):
    """An array is not contiguous, not on the CPU, read-only or of the wrong dtype."""


class BackendUnavailableError(PulsecastError):
    """A kernel backend was demanded that is not there."""
