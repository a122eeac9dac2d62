"""Tools for tests, also for those of users: synthetic updates and recorded ones."""

from .synthetic import adam_pair, perturb, scramble
from .traces import Trace, save_trace

__all__ = ["Trace", "adam_pair", "perturb", "save_trace", "scramble"]
