"""Numbers as arguments of a command: argparse prints the message of what they raise."""

from __future__ import annotations

from argparse import ArgumentTypeError

__all__ = ["at_least_one", "not_negative", "positive"]


def at_least_one(text: str) -> int:
    """A count."""
    value = int(text)
    if value < 1:
        raise ArgumentTypeError(f"must be at least 1, got {value}")
    return value


def positive(text: str) -> float:
    """A time or a size."""
    value = float(text)
    if not value > 0:
        raise ArgumentTypeError(f"must be more than 0, got {value:g}")
    return value


def not_negative(text: str) -> float:
    """A time that may be nothing."""
    value = float(text)
    if not value >= 0:
        raise ArgumentTypeError(f"must be 0 or more, got {value:g}")
    return value
