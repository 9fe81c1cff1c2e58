"""Published checks for ops, sources and executors of your own, and tools for tests that use penstock."""

from penstock.testing.interleaving import Deadlock, Interleaving, interleave
from penstock.testing.leaks import leaks_since, no_leaks, snapshot

__all__ = [
    "Deadlock",
    "Interleaving",
    "interleave",
    "leaks_since",
    "no_leaks",
    "snapshot",
]
