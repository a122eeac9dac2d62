"""Lossless sparse weight sync: diff, patch, apply and verify model states bit for bit."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .errors import PulsecastError
    from .patch.decode import Patch, open_patch
    from .patch.digest import state_root
    from .patch.encode import EncodeReport, encode
    from .patch.layout import Layout, TensorSpec
    from .patch.state import State
    from .patch.transaction import ApplyReport, apply
    from .weights.checkpoint import Checkpoint
    from .weights.journal import Journal

__version__ = "0.1.0"

__all__ = [
    "ApplyReport",
    "Checkpoint",
    "EncodeReport",
    "Journal",
    "Layout",
    "Patch",
    "PulsecastError",
    "State",
    "TensorSpec",
    "__version__",
    "apply",
    "encode",
    "open_patch",
    "state_root",
]

# Loaded at first use: `pulsecast --help` must not wait for numpy.
_HOMES = {
    "ApplyReport": "patch.transaction",
    "Checkpoint": "weights.checkpoint",
    "EncodeReport": "patch.encode",
    "Journal": "weights.journal",
    "Layout": "patch.layout",
    "Patch": "patch.decode",
    "PulsecastError": "errors",
    "State": "patch.state",
    "TensorSpec": "patch.layout",
    "apply": "patch.transaction",
    "encode": "patch.encode",
    "open_patch": "patch.decode",
    "state_root": "patch.digest",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'pulsecast' has no attribute {name!r}")
    value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
