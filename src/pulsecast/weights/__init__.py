"""Where weights lie: checkpoints on disk, and the journal for changing them in place."""

from pulsecast.weights.checkpoint import Checkpoint
from pulsecast.weights.journal import Journal

__all__ = ["Checkpoint", "Journal"]
